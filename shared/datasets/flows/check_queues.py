"""At start-up: do the queues keep the promise of one message per data set and period?"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.datasets.entities import problems
from shared.datasets.errors import EntitiesMisconfigured, ManageRightMissing
from shared.datasets.periods import Period
from shared.datasets.ports import QueueReader

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CheckOnce:
    """The check for a process that starts by its first message: passed once, it is not repeated."""

    processing: str
    working: str
    periods: Sequence[Period]
    reader: QueueReader
    passed: bool = field(default=False, init=False)

    async def run(self) -> None:
        """See ``run``. Who may not read what queues are like is warned, and trusted."""
        if self.passed:
            return
        try:
            await run(self.processing, self.working, self.periods, self.reader)
        except ManageRightMissing as error:
            extra = {"action": "queues_not_checked"}
            log.warning("[queues_not_checked] %s", error, extra=extra)
        self.passed = True


async def run(
    processing: str, working: str, periods: Sequence[Period], reader: QueueReader
) -> None:
    """Raises EntitiesMisconfigured with all that is wrong, and what ``reader`` raises."""
    wrong = problems(await reader.facts(processing), await reader.facts(working), periods)
    if wrong:
        raise EntitiesMisconfigured(wrong)
