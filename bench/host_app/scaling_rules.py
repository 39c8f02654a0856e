"""The rules of the app that is measured: many resources instead of one."""

from collections.abc import Sequence

from bench import fleet
from shared.autoscaling import Resource
from shared.settings import Settings


def resources(_settings: Settings) -> Sequence[Resource]:
    return fleet.resources()
