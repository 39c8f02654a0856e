"""The check at start-up that the queues guarantee one message per data set and period."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shared.trends.datasets.entities import QueueDescription, problems
from shared.trends.datasets.errors import EntitiesMisconfigured, ManageRightMissing
from shared.trends.datasets.periods import Period

log = logging.getLogger(__name__)


class QueueReader(Protocol):
    """Reads the settings of queues."""

    async def facts(self, queue: str) -> QueueDescription:
        """Raises LinkFailed if the queue does not exist, and ManageRightMissing if the identity
        lacks the right."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class CheckOnce:
    """Runs the check for a process that starts with its first message. A passed check is not
    repeated."""

    processing: str
    working: str
    periods: Sequence[Period]
    reader: QueueReader
    passed: bool = field(default=False, init=False)

    async def check(self) -> None:
        """Raises EntitiesMisconfigured with all problems, and the errors of ``reader``. If the app
        may not read the settings of queues, a warning is logged and the check counts as passed."""
        if self.passed:
            return
        facts = self.reader.facts
        try:
            found = await facts(self.processing), await facts(self.working)
            if wrong := problems(*found, self.periods):
                raise EntitiesMisconfigured(wrong)
        except ManageRightMissing as error:
            extra = {"action": "queues_not_checked"}
            log.warning("[queues_not_checked] %s", error, extra=extra)
        self.passed = True
