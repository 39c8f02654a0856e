"""Which rows of a resource's state a commit has to write."""

from __future__ import annotations

from collections.abc import Iterator

from shared.autoscaling.model import Desired, History, ScalingState

DESIRED_ROW = "desired"
METRIC_PREFIX = "metric|"
OVERRIDE_ROW = "override"


def changed_rows(old: ScalingState, new: ScalingState) -> Iterator[tuple[str, History | Desired]]:
    """Row key and value of each row that differs. Overrides belong to people, never to a flow."""
    for name, history in new.histories.items():
        if old.histories.get(name) != history:
            yield METRIC_PREFIX + name, history
    if new.desired is not None and old.desired != new.desired:
        yield DESIRED_ROW, new.desired
