"""log_retention: deletes old entries of the decision log."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from datetime import timedelta

from shared.autoscaling.flows.common import log_action, store_time
from shared.autoscaling.flows.poison import UNATTRIBUTED
from shared.autoscaling.ports import StateStore

log = logging.getLogger(__name__)

CONCURRENT_MAX = 8
BUDGET_SECONDS = 270
"""The time budget of a run, in seconds. A function on a Consumption plan may run for five minutes.
"""


async def delete_old_entries(
    resource_names: Iterable[str],
    store: StateStore,
    days: float,
    budget_seconds: float = BUDGET_SECONDS,
) -> int:
    """Delete entries older than ``days`` by the store's clock, and return the number of rows.

    Resources that the time budget does not cover are left to the next run. The order of resources
    is random, so that no resource is left out in every run.
    """
    names = [*resource_names, UNATTRIBUTED]
    random.shuffle(names)
    counts: list[int] = []
    free = asyncio.Semaphore(CONCURRENT_MAX)
    try:
        async with asyncio.timeout(budget_seconds), asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(_prune(name, store, days, free, counts))
    except TimeoutError:
        text = (
            f"{len(counts)} of {len(names)} logs pruned in {budget_seconds:g} s, the next run "
            "prunes the others"
        )
        log_action(log, "prune_cut_short", "decision log", text, logging.WARNING)
    log_action(log, "log_pruned", "decision log", f"{sum(counts)} old rows deleted")
    return sum(counts)


async def _prune(
    name: str, store: StateStore, days: float, free: asyncio.Semaphore, counts: list[int]
) -> None:
    async with free:
        try:
            now = await store_time(name, store)
            counts.append(await store.prune_log(name, now - timedelta(days=days)))
        except Exception as error:
            text = f"old entries stay until the next run: {type(error).__name__}: {error}"
            log_action(log, "prune_failed", name, text, logging.WARNING)
