"""Write down which dates are to be recomputed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import date, datetime

from shared.nightly.dates import demands
from shared.nightly.errors import InputUnreadable
from shared.nightly.model import Demand
from shared.nightly.ports import InputReader, RunStore

log = logging.getLogger(__name__)


async def look(
    dataset: str, dates: Sequence[date], inputs: InputReader
) -> Mapping[date, datetime] | InputUnreadable:
    """When the data of each date were last written, or why that cannot be seen."""
    try:
        return await inputs.newest(dataset, dates)
    except InputUnreadable as error:
        extra = {"action": "trends_input_unreadable", "dataset": dataset}
        log.warning("[trends_input_unreadable] %s: %s", dataset, error, extra=extra)
        return error


async def ask(
    dataset: str,
    dates: Sequence[date],
    newest: Mapping[date, datetime] | InputUnreadable,
    reason: str,
    store: RunStore,
    known_until: datetime | None = None,
) -> list[date]:
    """Answers the dates that were not asked for with so much data before."""
    seen = None if isinstance(newest, InputUnreadable) else newest
    asked = demands(dates, seen, reason, known_until)
    return [demand.date for demand in asked if await _asked(dataset, demand, store)]


async def _asked(dataset: str, demand: Demand, store: RunStore) -> bool:
    new = await store.ask(dataset, demand)
    if new:
        extra = {"action": "trends_asked", "dataset": dataset, "date": str(demand.date)}
        log.info("[trends_asked] %s %s: %s", dataset, demand.date, demand.reason, extra=extra)
    return new
