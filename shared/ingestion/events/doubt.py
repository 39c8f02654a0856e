"""Decides whether an event that failed for an unknown reason is at fault, or a dependency is down:
an event is at fault if it fails, another call succeeds, and it fails again. Until then it is in
doubt, and holds its partition, for ``PROBES_MAX`` probes if no other event fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

PROBES_MAX = 3


@dataclass(frozen=True, slots=True)
class Doubt:
    """An event, the store's time of its first failure, and how many probes it has failed."""

    sequence: int
    since: datetime
    probes: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What shows that an event is at fault if it fails again: ``succeeded`` counts this process's
    successful calls, some call succeeded after ``at_fault`` failed, and ``last_probe`` is at fault
    unless others fail too and none succeeds."""

    succeeded: Callable[[], int]
    at_fault: int | None = None
    last_probe: int | None = None


def doubted(doubt: Doubt | None, sequence: int, since: datetime, *, probing: bool) -> Doubt:
    """The doubt after another failure of the event that holds the partition."""
    if doubt is None or doubt.sequence != sequence:
        doubt = Doubt(sequence, since)
    return Doubt(sequence, doubt.since, doubt.probes + probing)


def evidence(
    doubt: Doubt | None, succeeded: Callable[[], int], *, others_succeeded: bool, probing: bool
) -> Evidence:
    """What is known before an event in doubt is tried again."""
    if doubt is None:
        return Evidence(succeeded)
    is_last = probing and doubt.probes + 1 >= PROBES_MAX
    return Evidence(
        succeeded,
        doubt.sequence if others_succeeded else None,
        doubt.sequence if is_last else None,
    )
