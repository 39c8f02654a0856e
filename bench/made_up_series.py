"""Synthetic daily series with known losses: a sampled event, and a control that is not sampled."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Protocol

import numpy as np

from shared.sampling.comparison import Day

START = date(2017, 1, 2)
REAL = Path(__file__).parent / "data" / "nab_tweets_daily.csv"


class World(Protocol):
    """A source of days: what would have been counted with a given loss and traffic."""

    @property
    def days(self) -> int: ...

    def day(self, index: int, *, lost: float = 0, traffic: float = 1) -> Day: ...


@dataclass
class MadeUp:
    """Weekdays, slow drift, and days that scatter by 3 to 12 %, at times heavily; sampled 1 in k.

    Levels, rates and scatter were chosen without knowledge of the verdict's limits. They differ
    from the series that these limits were fitted on.
    """

    rng: np.random.Generator
    days: int = 77

    def __post_init__(self) -> None:
        rng = self.rng
        week = np.append(rng.uniform(0.85, 1.15, 5), rng.uniform(0.25, 1.0, 2))
        drift = np.cumsum(rng.normal(0, rng.uniform(0, 0.02), self.days))
        scatter = rng.uniform(0.03, 0.12) * rng.standard_t(rng.choice([5, 30]), self.days)
        self.k = int(rng.choice([1, 4, 10]))
        level = 10 ** rng.uniform(2.5, 5.5)
        self.traffic = level * week[np.arange(self.days) % 7] * np.exp(drift + scatter)
        self.control = self.traffic * np.exp(rng.normal(0, rng.uniform(0.01, 0.06), self.days))

    def day(self, index: int, *, lost: float = 0, traffic: float = 1) -> Day:
        sent = self.rng.poisson(self.traffic[index] * traffic * (1 - lost))
        kept = float(self.rng.binomial(sent, 1 / self.k))
        return Day(
            START + timedelta(days=index),
            value=kept * self.k,
            standard_error=math.sqrt(kept * self.k * (self.k - 1)),
            effective_records=kept,
            sampling_rate_percent=100 / self.k,
            control=float(self.control[index] * traffic),
        )


@dataclass
class Measured:
    """An event whose records carry a value: the sum of the values, with the count as control.

    Values are even, skewed, heavy-tailed (one in a thousand makes up a third of the sum) or of
    infinite variance. Their mean has weekdays, a slow drift, and days that scatter by 1 to 5 %.
    """

    rng: np.random.Generator
    days: int = 77

    def __post_init__(self) -> None:
        rng = self.rng
        self._counts = MadeUp(rng, self.days)
        self._counts.traffic *= 10 ** rng.uniform(2.3, 4.3) / self._counts.traffic.mean()
        week = np.exp(rng.normal(0, 0.05, 7))
        drift = np.cumsum(rng.normal(0, rng.uniform(0, 0.01), self.days))
        scatter = rng.normal(0, rng.uniform(0.01, 0.05), self.days)
        self.mean = week[np.arange(self.days) % 7] * np.exp(drift + scatter)
        self.tail = str(rng.choice(["even", "skewed", "heavy", "infinite"]))

    def day(self, index: int, *, lost: float = 0, traffic: float = 1, values: float = 0) -> Day:
        """``lost`` is the share of lost events; ``values`` that of lost values among the rest."""
        count = self._counts.day(index, lost=lost, traffic=traffic)
        k, kept = self._counts.k, int(count.effective_records)
        values_kept = self.mean[index] * self._values(kept) * (self.rng.random(kept) >= values)
        return replace(
            count,
            value=float(k * values_kept.sum()),
            standard_error=math.sqrt(k * (k - 1) * float((values_kept**2).sum())),
            control=count.value,
        )

    def _values(self, size: int) -> np.ndarray:
        if self.tail == "infinite":
            return self.rng.pareto(1.5, size) + 1
        return self.rng.lognormal(0, {"even": 0.3, "skewed": 1.0, "heavy": 2.0}[self.tail], size)


class Tweets:
    """Tweets a day that name a company: NAB's Twitter_volume_AMZN, 53 whole days of 2015."""

    def __init__(self) -> None:
        with REAL.open() as file:
            self._rows = [(row["date"], float(row["value"])) for row in csv.DictReader(file)]

    @property
    def days(self) -> int:
        return len(self._rows)

    def day(self, index: int, *, lost: float = 0, traffic: float = 1) -> Day:
        day, value = self._rows[index]
        left = value * traffic * (1 - lost)
        return Day(date.fromisoformat(day), left, effective_records=left)
