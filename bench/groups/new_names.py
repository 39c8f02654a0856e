"""new_names: what the nightly job and the notifier do if events get 50 new names a day.

The baseline has as many sums, of 50 names that occur every day.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import date, timedelta

from bench.measurement import Measurement
from shared.sampling.estimates import Sums
from shared.sampling.series import BlobDate, DaySums, Series, Shape, Totals, limited
from shared.sampling.trend_rows import Trend
from shared.sampling.trends import TrendInputs, trends_of
from shared.sampling.verdict import LOST
from shared.trends.store.trends import KEPT
from shared.wiring.notifications import TREND_DAYS
from spark_jobs.publish.results import merged

DAYS, NAMES = 180, 50
FIRST = date(2026, 1, 1)
STEADY = "baseline: 50 names that occur every day"


def measure() -> Iterator[Measurement]:
    trends, seconds = _nights(new_names=True)
    steady_trends, steady_seconds = _nights(new_names=False)
    name, count = f"new_names.{DAYS}_days", len(trends)
    yield Measurement(f"{name}.trends", count, "trends", len(steady_trends), note=STEADY)
    yield Measurement(f"{name}.driver_seconds", seconds, "s of CPU", steady_seconds, note=STEADY)
    yield Measurement(
        f"{name}.rows_a_notifier_reads",
        1 + len([t for t in trends if t.verdict in LOST and _age(t) <= TREND_DAYS]),
        "rows a minute",
        len([t for t in trends if _age(t) <= KEPT]),
        "ratio ≤ 0.01",
        "baseline: all rows of the table, of which old ones are deleted",
    )


def _age(trend: Trend) -> timedelta:
    return FIRST + timedelta(days=DAYS) - date.fromisoformat(trend.date)


def _nights(*, new_names: bool) -> tuple[list[Trend], float]:
    """Publishes each day in a night of its own. Returns the trends and the time of the last one."""
    old: Totals = {}
    started = 0.0
    for day in (str(FIRST + timedelta(days=n)) for n in range(DAYS)):
        started = time.process_time()
        names = [f"{day if new_names else ''} {n}" for n in range(NAMES)]
        new = {(day, Series("event", name)): DaySums(Sums(9, weight_sum=9)) for name in names}
        placed, _ = limited(old, new, day, ())
        old = merged(old, placed, {day})
    dates = {str(FIRST + timedelta(days=n)): BlobDate() for n in range(DAYS)}
    inputs = TrendInputs(Shape(), dates, FIRST + timedelta(days=DAYS))
    trends = trends_of(old, inputs)
    return trends, time.process_time() - started
