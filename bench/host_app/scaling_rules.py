"""The rules of the measured app, which scale many resources."""

from collections.abc import Sequence

from bench import fleet
from shared.autoscaling import Resource
from shared.settings import Settings


def resources(_settings: Settings) -> Sequence[Resource]:
    return fleet.declared()
