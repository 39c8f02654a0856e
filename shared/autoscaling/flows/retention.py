"""log_retention: deletes old entries of the decision log."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable
from datetime import timedelta

from shared.autoscaling.errors import AutoscalingError
from shared.autoscaling.flows.common import log_action, store_time, work_through
from shared.autoscaling.flows.poison import UNATTRIBUTED
from shared.autoscaling.ports import StateStore

log = logging.getLogger(__name__)

BUDGET_SECONDS = 270
"""The time budget of a run. A function on a Consumption plan may run for five minutes."""


async def delete_old_entries(
    resource_names: Iterable[str],
    store: StateStore,
    days: float,
    budget_seconds: float = BUDGET_SECONDS,
) -> int:
    """Delete entries older than ``days`` by the store's clock, and return the number of rows.

    Resources that fail, or that the time budget does not cover, are left to the next run. Their
    order is random, so that none is left out in every run.
    """

    async def prune(name: str) -> int:
        try:
            now = await store_time(name, store)
            return await store.prune_log(name, now - timedelta(days=days))
        except Exception as error:
            raise AutoscalingError(f"{name}: {type(error).__name__}: {error}") from error

    names = [*resource_names, UNATTRIBUTED]
    random.shuffle(names)
    counts, left, why = await work_through(names, prune, budget_seconds)
    if left:
        text = f"old entries of some logs stay until the next run: {why}"
        log_action(log, "prune_failed", "decision log", text, logging.WARNING)
    log_action(log, "log_pruned", "decision log", f"{sum(counts)} old rows deleted")
    return sum(counts)
