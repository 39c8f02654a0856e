"""Checks that the settings of the two queues guarantee one message per data set and period."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from shared.trends.datasets.periods import Period


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """The settings of a queue, as Service Bus reports them."""

    name: str
    duplicate_window: timedelta | None
    """How long duplicates are detected; None if they are not detected."""

    requires_session: bool
    forward_to: str | None
    """The name of an entity in the same namespace."""


def problems(
    processing: QueueDescription, working: QueueDescription, periods: Sequence[Period]
) -> Sequence[str]:
    """The problems of the queue that receives messages, and of that which delivers them."""
    wrong = _window_problems(processing, periods)
    if processing.requires_session:
        wrong.append(
            f"queue {processing.name}: it requires sessions, so it cannot forward; delete it "
            "and create it without sessions"
        )
    if (processing.forward_to or "").lower() != working.name.lower():
        target = f"to {processing.forward_to}" if processing.forward_to else "to no other queue"
        wrong.append(
            f"queue {processing.name}: it forwards {target}; let it forward to {working.name}"
        )
    if not working.requires_session:
        wrong.append(
            f"queue {working.name}: it does not require sessions, so a data set may be processed "
            "twice at once; delete it and create it with sessions"
        )
    return wrong


def _window_problems(queue: QueueDescription, periods: Sequence[Period]) -> list[str]:
    if queue.duplicate_window is None:
        return [
            f"queue {queue.name}: it does not detect duplicates; delete it and create it "
            "with duplicate detection"
        ]
    return [
        f"queue {queue.name}: it detects duplicates for {queue.duplicate_window}; that must be "
        f"more than {period.memory} for a period of {period.length} with a delay of "
        f"{period.delay} and a lateness of {period.lateness}"
        for period in periods
        if queue.duplicate_window <= period.memory
    ]
