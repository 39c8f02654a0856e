"""Decides whether an event that failed for an unknown reason is at fault, or a dependency is down.

An event is at fault if it fails, another call succeeds, and the event then fails again. Until that
is known, the event is in doubt: its partition is held. If no call succeeds anywhere, the breaker
opens. An event that has failed ``PROBES_MAX`` probes is at fault too, unless other events of its
last probe failed and none succeeded. So an event that is alone does not hold its partition forever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

PROBES_MAX = 3


@dataclass(frozen=True, slots=True)
class Doubt:
    """An event in doubt. ``since`` is the store's time of its first failure; ``probes`` counts
    the probes that it has failed."""

    sequence: int
    since: datetime
    probes: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What shows that an event is at fault if it fails again.

    ``succeeded`` counts the calls of this process that have succeeded so far. ``at_fault`` is the
    event after whose failure a call of any instance succeeded. ``last_probe`` is the event that is
    at fault if it fails this probe, unless other events fail too and none succeeds.
    """

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
    """What is known before an event in doubt is tried again. ``others_succeeded`` says whether a
    call has succeeded since the event failed first."""
    if doubt is None:
        return Evidence(succeeded)
    is_last = probing and doubt.probes + 1 >= PROBES_MAX
    return Evidence(
        succeeded,
        doubt.sequence if others_succeeded else None,
        doubt.sequence if is_last else None,
    )
