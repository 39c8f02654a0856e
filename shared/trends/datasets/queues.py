"""Checks that the settings of the two queues guarantee one message per data set and period."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from shared.trends.datasets.errors import EntitiesMisconfigured, ManageRightMissing
from shared.trends.datasets.periods import Period

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """The settings of a queue, as Service Bus reports them."""

    name: str
    duplicate_window: timedelta | None
    """How long duplicates are detected; None if they are not detected."""

    requires_session: bool
    forward_to: str | None
    """The name of an entity in the same namespace."""


@dataclass(slots=True)
class CheckOnce:
    """Runs the check until it has passed once. ``facts`` reads the settings of a queue; it raises
    LinkFailed if the queue does not exist, and ManageRightMissing."""

    processing: str
    working: str
    periods: Sequence[Period]
    facts: Callable[[str], Awaitable[QueueDescription]]
    passed: bool = field(default=False, init=False)

    async def check(self) -> None:
        """Raises EntitiesMisconfigured and LinkFailed. If the app may not read the settings of
        queues, a warning is logged and the check counts as passed."""
        if self.passed:
            return
        try:
            found = await self.facts(self.processing), await self.facts(self.working)
            if wrong := problems(*found, self.periods):
                raise EntitiesMisconfigured(wrong)
        except ManageRightMissing as error:
            extra = {"action": "queues_not_checked"}
            log.warning("[queues_not_checked] %s", error, extra=extra)
        self.passed = True


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
