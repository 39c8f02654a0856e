"""Demand that dates are recomputed: every night, and when data of a period came."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta

from shared.nightly.demands import completed_dates, demands, recent_dates
from shared.nightly.errors import InputUnreadable, NightFailed
from shared.nightly.model import Demand, Ledger
from shared.nightly.notices import night_notice
from shared.nightly.ports import InputReader, RunStore
from shared.notifications.ports import Notifier

log = logging.getLogger(__name__)

KEPT = timedelta(days=400)
"""How long runs of a date are remembered: a year and a month, so that years can be compared."""

Newest = Mapping[date, datetime] | InputUnreadable
"""When the data of each date were last written, or why that cannot be seen."""


async def demand_nightly(
    datasets: Sequence[str],
    late_days: int,
    store: RunStore,
    inputs: InputReader,
    notifier: Notifier,
) -> dict[str, list[date]]:
    """Yesterday and days with late data; runs that are long over are forgotten.

    Answers what is newly demanded. Raises NightFailed, after all data sets had their turn.
    """
    demanded: dict[str, list[date]] = {}
    errors: dict[str, Exception] = {}
    for dataset in datasets:
        try:
            demanded[dataset] = await _night(dataset, late_days, store, inputs, notifier)
        except Exception as error:
            extra = {"action": "trends_night_failed", "dataset": dataset}
            log.exception("[trends_night_failed] %s", dataset, extra=extra)
            errors[dataset] = error
    if errors:
        raise NightFailed(errors)
    return demanded


async def demand_period(
    dataset: str, start: datetime, end: datetime, store: RunStore, inputs: InputReader
) -> list[date]:
    """The dates of a period whose data came. Answers those that are newly demanded."""
    now = (await store.read(dataset)).now
    dates = completed_dates(start, end, now)
    newest = await _newest(dataset, dates, inputs)
    return await _demand(dataset, dates, newest, f"data of {start:%Y-%m-%d %H:%M} came", store, now)


async def _night(
    dataset: str, late_days: int, store: RunStore, inputs: InputReader, notifier: Notifier
) -> list[date]:
    ledger = await store.read(dataset)
    dates = recent_dates(ledger.now, late_days)
    newest = await _newest(dataset, dates, inputs)
    demanded = await _demand(dataset, dates, newest, "the night", store)
    await _forget_old(ledger, store)
    if text := _alarm(dates, newest):
        await notifier.tell(night_notice(dataset, dates[0], text, ledger.now))
    return demanded


def _alarm(dates: Sequence[date], newest: Newest) -> str:
    """What is wrong with the data, if anything; who waits for no late data need not see them."""
    if not isinstance(newest, InputUnreadable):
        return "" if dates[0] in newest else "there are no data at all: are they still exported?"
    if len(dates) == 1:
        return ""
    return f"late data go unnoticed, for nobody can see what there is: {newest}"


async def _forget_old(ledger: Ledger, store: RunStore) -> None:
    for day in ledger.days.values():
        ended = day.latest is None or day.latest.state.ended
        if ended and ledger.now.date() - day.date > KEPT:
            await store.forget(ledger.dataset, day.date)


async def _newest(dataset: str, dates: Sequence[date], inputs: InputReader) -> Newest:
    try:
        return await inputs.newest(dataset, dates)
    except InputUnreadable as error:
        extra = {"action": "trends_input_unreadable", "dataset": dataset}
        log.warning("[trends_input_unreadable] %s: %s", dataset, error, extra=extra)
        return error


async def _demand(
    dataset: str,
    dates: Sequence[date],
    newest: Newest,
    reason: str,
    store: RunStore,
    known_until: datetime | None = None,
) -> list[date]:
    """Answers the dates that were not demanded with so much data before."""
    seen = None if isinstance(newest, InputUnreadable) else newest
    wanted = demands(dates, seen, reason, known_until)
    return [demand.date for demand in wanted if await _is_new(dataset, demand, store)]


async def _is_new(dataset: str, demand: Demand, store: RunStore) -> bool:
    new = await store.ask(dataset, demand)
    if new:
        extra = {"action": "trends_asked", "dataset": dataset, "date": str(demand.date)}
        log.info("[trends_asked] %s %s: %s", dataset, demand.date, demand.reason, extra=extra)
    return new
