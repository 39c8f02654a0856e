"""The recompute of an app without a job for it: it says in the log what is due."""

from __future__ import annotations

import logging

from shared.datasets.processing import DatasetWork
from shared.values.redaction import redacting

log = logging.getLogger(__name__)


@redacting
class LoggedRecompute:
    """See Recompute."""

    async def run(self, work: DatasetWork) -> None:
        extra = {"action": "recompute", "dataset": work.dataset, "period": work.label}
        log.info(
            "[recompute] %s is due: no job is configured to process it",
            work.message_id,
            extra=extra,
        )
