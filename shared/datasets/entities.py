"""What the two queues must be like for one message per data set and period, and what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from shared.datasets.periods import Period


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """Settings of a queue, as the service tells them."""

    name: str
    duplicate_window: timedelta | None
    """None: duplicates are not detected."""

    requires_session: bool
    forward_to: str | None
    """The path of an entity of the same namespace: Service Bus forwards to no other."""


def problems(
    processing: QueueDescription, working: QueueDescription, periods: Sequence[Period]
) -> Sequence[str]:
    """What is wrong with the queue that takes messages in and the one that hands them out."""
    wrong = _window_problems(processing, periods)
    if processing.requires_session:
        wrong.append(f"queue {processing.name}: with sessions it cannot forward; switch them off")
    if (processing.forward_to or "").lower() != working.name.lower():
        forwards = f"forwards to {processing.forward_to or 'nowhere'}"
        wrong.append(f"queue {processing.name}: {forwards}, must forward to {working.name}")
    if not working.requires_session:
        wrong.append(
            f"queue {working.name}: without sessions a data set may be processed twice at once"
        )
    return wrong


def _window_problems(queue: QueueDescription, periods: Sequence[Period]) -> list[str]:
    if queue.duplicate_window is None:
        return [f"queue {queue.name}: does not detect duplicates; it must be made anew to do so"]
    return [
        f"queue {queue.name}: detects duplicates for {queue.duplicate_window}, must be more than "
        f"{period.memory} for a period of {period.length}, {period.delay} of delay and "
        f"{period.lateness} of lateness"
        for period in periods
        if queue.duplicate_window <= period.memory
    ]
