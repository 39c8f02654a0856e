"""From a day's figures to the day that is judged."""

from __future__ import annotations

from datetime import date
from typing import Literal

from shared.sampling.comparison import Day
from shared.sampling.estimates import EventEstimates

DOUBTFUL_MAX = 0.05
"""A larger share of records with doubtful weights makes the whole day doubtful."""


def day_of(
    figures: EventEstimates,
    day: date,
    of: Literal["count", "total"] = "count",
    control: float | None = None,
) -> Day:
    """By adjusted count, or by adjusted sum of a measurement that is not negative."""
    estimate = figures.count if of == "count" else figures.total
    return Day(
        day=day,
        value=estimate.value,
        standard_error=estimate.standard_error,
        effective_records=figures.effective_records,
        sampling_rate_percent=figures.sampling_rate_percent,
        control=control,
        trusted=figures.doubtful_records <= DOUBTFUL_MAX * figures.records,
    )
