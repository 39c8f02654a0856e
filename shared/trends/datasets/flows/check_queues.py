"""The check at start-up that the queues guarantee one message per data set and period."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from shared.trends.datasets.entities import QueueDescription, problems
from shared.trends.datasets.errors import EntitiesMisconfigured, ManageRightMissing
from shared.trends.datasets.periods import Period

log = logging.getLogger(__name__)


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
