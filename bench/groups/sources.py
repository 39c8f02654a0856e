"""sources: at how many delays of its metrics a rule scales out and back in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bench.cookbook import recipes
from bench.imported_settings import SETTINGS, imported
from bench.measurement import Measurement
from bench.returning import DELAYS_MINUTES, may_lag, replay
from shared.autoscaling import Resource


def resources() -> Mapping[str, Resource]:
    """All recipes of the cookbook, and a converted setting of each kind."""
    return {**recipes(), **{f"imported_{name}": imported(name) for name in SETTINGS}}


def measure() -> Iterator[Measurement]:
    """For each recipe and setting, the share of delays at which the capacity returns."""
    for name, resource in resources().items():
        delays = DELAYS_MINUTES if may_lag(resource) else (0,)
        returned = [replay(resource, minutes).returned for minutes in delays]
        note = "sources that are read directly are never late"
        if may_lag(resource):
            note = f"delays of {delays[0]} to {delays[-1]} minutes; baseline: all of them"
        share = sum(returned) / len(returned)
        yield Measurement(f"recipes.{name}.returned", share, "of delays", 1.0, "= 1", note)
