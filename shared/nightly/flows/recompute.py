"""Data of a period came: ask for its dates."""

from __future__ import annotations

from datetime import date, datetime

from shared.nightly.dates import over
from shared.nightly.flows.asking import ask, look
from shared.nightly.ports import InputReader, RunStore


async def run(
    dataset: str, start: datetime, end: datetime, store: RunStore, inputs: InputReader
) -> list[date]:
    """Answers the dates that are newly asked for."""
    now = (await store.read(dataset)).now
    dates = over(start, end, now)
    newest = await look(dataset, dates, inputs)
    return await ask(dataset, dates, newest, f"data of {start:%Y-%m-%d %H:%M} came", store, now)
