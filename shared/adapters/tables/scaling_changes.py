"""Which rows of a resource's state a commit has to write, and what a committed state is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shared.autoscaling.desired import Desired
from shared.autoscaling.state import History, Learned, ScalingState

DESIRED_ROW = "desired"
LEARNED_ROW = "learned"
METRIC_PREFIX = "metric|"
OVERRIDE_ROW = "override"
PROFILE_ROW = "profile"
WISHES_ROW = "wishes"

RowValue = History | Desired | Learned


def changed_rows(old: ScalingState, new: ScalingState) -> Iterator[tuple[str, RowValue]]:
    """Row key and value of each row that differs.

    Overrides belong to people and profiles to the nightly job, never to a flow.
    """
    for name, history in new.histories.items():
        if old.histories.get(name) != history:
            yield METRIC_PREFIX + name, history
    if new.desired is not None and old.desired != new.desired:
        yield DESIRED_ROW, new.desired
    if old.wishes != new.wishes:
        yield WISHES_ROW, new.wishes
    if old.learned != new.learned:
        yield LEARNED_ROW, new.learned


def with_rows(kept: ScalingState, new: ScalingState, keys: set[str]) -> ScalingState:
    """``kept`` with those rows of ``new`` in it."""
    changed = {n: h for n, h in new.histories.items() if METRIC_PREFIX + n in keys}
    return replace(
        kept,
        histories={**kept.histories, **changed},
        desired=new.desired if DESIRED_ROW in keys else kept.desired,
        wishes=new.wishes if WISHES_ROW in keys else kept.wishes,
        learned=new.learned if LEARNED_ROW in keys else kept.learned,
    )
