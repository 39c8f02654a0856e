"""log_retention: the decision log is kept for some days, not for ever."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta

from shared.autoscaling.flows.poison import UNATTRIBUTED
from shared.autoscaling.ports import StateStore

log = logging.getLogger(__name__)


async def run(resource_names: Iterable[str], store: StateStore, days: float) -> int:
    """Delete entries older than ``days`` by the store's clock; answers how many."""
    deleted = 0
    for name in (*resource_names, UNATTRIBUTED):
        now = (await store.load(name)).read_at
        deleted += await store.prune_log(name, now - timedelta(days=days))
    log.info("%d old log entries deleted", deleted, extra={"action": "log_pruned"})
    return deleted
