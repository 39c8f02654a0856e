"""Measures the runs of recent dates, for telemetry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

from shared.trends.nightly.model import Ledger, RunState
from shared.values.metering import Measurement

DAYS_COUNTED = timedelta(days=7)
REQUESTED = "requested"
"""The state of a date that has been requested but has no run yet."""


def of_dates(dataset: str, ledger: Ledger) -> Iterator[Measurement]:
    """The number of dates of the last seven days, by the state of the latest run."""
    since = ledger.now.date() - DAYS_COUNTED
    days = [day for day in ledger.days.values() if day.date >= since]
    states = Counter(str(day.latest.state) if day.latest else REQUESTED for day in days)
    for state in (REQUESTED, *map(str, RunState)):
        yield "trends.dates", states[state], {"dataset": dataset, "state": state}
