"""The Recompute of an app without a configured job: it only logs which period is due."""

from __future__ import annotations

import logging

from shared.datasets.processing import DatasetWork
from shared.values.redaction import redacting

log = logging.getLogger(__name__)


@redacting
class LoggedRecompute:
    """See Recompute. It logs the work and does nothing else."""

    async def run(self, work: DatasetWork) -> None:
        extra = {"action": "recompute", "dataset": work.dataset, "period": work.label}
        log.info(
            "[recompute] %s is due: no job is configured to process it",
            work.message_id,
            extra=extra,
        )
