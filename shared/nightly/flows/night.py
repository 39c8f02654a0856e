"""The night: ask for yesterday and for days with late data, and forget what is long over."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta

from shared.nightly.dates import night
from shared.nightly.errors import InputUnreadable, NightFailed
from shared.nightly.flows.asking import ask, look
from shared.nightly.model import Ledger
from shared.nightly.ports import InputReader, RunStore
from shared.nightly.telling import night_news
from shared.notifications.ports import Notifier

log = logging.getLogger(__name__)

KEPT = timedelta(days=400)
"""How long runs of a date are remembered: a year and a month, so that years can be compared."""


async def run(
    datasets: Sequence[str],
    late_days: int,
    store: RunStore,
    inputs: InputReader,
    notifier: Notifier,
) -> dict[str, list[date]]:
    """Answers what is newly asked for. Raises NightFailed, after all data sets had their turn."""
    asked: dict[str, list[date]] = {}
    errors: dict[str, Exception] = {}
    for dataset in datasets:
        try:
            asked[dataset] = await _night(dataset, late_days, store, inputs, notifier)
        except Exception as error:
            extra = {"action": "trends_night_failed", "dataset": dataset}
            log.exception("[trends_night_failed] %s", dataset, extra=extra)
            errors[dataset] = error
    if errors:
        raise NightFailed(errors)
    return asked


async def _night(
    dataset: str, late_days: int, store: RunStore, inputs: InputReader, notifier: Notifier
) -> list[date]:
    ledger = await store.read(dataset)
    dates = night(ledger.now, late_days)
    newest = await look(dataset, dates, inputs)
    asked = await ask(dataset, dates, newest, "the night", store)
    await _forget_old(ledger, store)
    if text := _alarm(dates, newest):
        await notifier.tell(night_news(dataset, dates[0], text, ledger.now))
    return asked


def _alarm(dates: Sequence[date], newest: Mapping[date, datetime] | InputUnreadable) -> str:
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
