"""Stores demands to recompute dates, every night and after data of a period have arrived. A date is
a UTC day in the paths of the exported files."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta

from shared.notifications.ports import Notifier
from shared.trends.nightly.model import (
    Demand,
    InputReader,
    InputUnreadable,
    Ledger,
    NightFailed,
    RunStore,
)
from shared.trends.nightly.trend_news import night_notice

log = logging.getLogger(__name__)

DAY = timedelta(days=1)
Newest = Mapping[date, datetime] | InputUnreadable
"""The time at which data of each date were last written, or the reason why that is unknown."""
KEPT = timedelta(days=400)
"""How long the runs of a date are stored. It is more than a year, so that years can be compared."""


async def demand_nightly(
    datasets: Sequence[str],
    late_days: int,
    store: RunStore,
    inputs: InputReader,
    notifier: Notifier,
) -> None:
    """Demand yesterday and the dates with late data, and delete old runs. Raises NightFailed after
    trying all data sets.
    """
    errors: dict[str, Exception] = {}
    for dataset in datasets:
        try:
            await _demand_recent(dataset, late_days, store, inputs, notifier)
        except Exception as error:
            extra = {"action": "trends_night_failed", "dataset": dataset}
            log.exception("[trends_night_failed] %s", dataset, extra=extra)
            errors[dataset] = error
    if errors:
        raise NightFailed(errors)


async def demand_period(
    dataset: str, start: datetime, end: datetime, store: RunStore, inputs: InputReader
) -> None:
    """Demand the dates of a period whose data have arrived."""
    now = (await store.read(dataset)).now
    dates = completed_dates(start, end, now)
    newest = await _newest(dataset, dates, inputs)
    reason = f"data of {start:%Y-%m-%d %H:%M} arrived"
    await _demand(dataset, demands_for(dates, newest, reason, now), store)


async def _demand_recent(
    dataset: str, late_days: int, store: RunStore, inputs: InputReader, notifier: Notifier
) -> None:
    ledger = await store.read(dataset)
    dates = recent_dates(ledger.now, late_days)
    newest = await _newest(dataset, dates, inputs)
    await _demand(dataset, demands_for(dates, newest, "nightly run"), store)
    await _forget_old(ledger, store)
    if text := _input_problem(dates, newest):
        await notifier.tell(night_notice(dataset, dates[0], text, ledger.now))


def _input_problem(dates: Sequence[date], newest: Newest) -> str:
    """The problem with the input data; empty if there is none. The list is needed only to detect
    late data, so it may fail if there are no late days.
    """
    if not isinstance(newest, InputUnreadable):
        missing = "there are no data; check that telemetry is still exported"
        return "" if dates[0] in newest else missing
    if len(dates) == 1:
        return ""
    return f"late data cannot be detected, because the input cannot be listed: {newest}"


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


async def _demand(dataset: str, demands: Sequence[Demand], store: RunStore) -> None:
    for demand in demands:
        if await store.ask(dataset, demand):
            extra = {"action": "trends_asked", "dataset": dataset, "date": str(demand.date)}
            text = "[trends_asked] %s %s: %s"
            log.info(text, dataset, demand.date, demand.reason, extra=extra)


def recent_dates(now: datetime, late_days: int) -> tuple[date, ...]:
    """Yesterday and the ``late_days`` before it, newest first."""
    today = now.astimezone(UTC).date()
    return tuple(today - n * DAY for n in range(1, late_days + 2))


def completed_dates(start: datetime, end: datetime, now: datetime) -> tuple[date, ...]:
    """The dates between ``start`` (inclusive) and ``end`` (exclusive) that are over, because an
    incomplete day would look like lost events."""
    first = start.astimezone(UTC).date()
    last = (end.astimezone(UTC) - timedelta(microseconds=1)).date()
    touched = [first + n * DAY for n in range((last - first).days + 1)]
    return tuple(day for day in touched if _end(day) <= now)


def demands_for(
    dates: Sequence[date], newest: Newest, reason: str, known_until: datetime | None = None
) -> tuple[Demand, ...]:
    """The demands for those of the dates that have data.

    If the data cannot be listed, each demand is for data up to ``known_until``, or up to the end of
    the day, so that the date is computed once.
    """
    if isinstance(newest, InputUnreadable):
        reason = f"{reason}; its data cannot be listed"
        return tuple(Demand(day, known_until or _end(day), reason) for day in dates)
    return tuple(Demand(day, newest[day], reason) for day in dates if day in newest)


def _end(day: date) -> datetime:
    return datetime.combine(day + DAY, time(), UTC)
