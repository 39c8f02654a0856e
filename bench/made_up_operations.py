"""Synthetic operations: a checkout and the events that share its operations, with known losses.

Levels, shares and noise were chosen without knowledge of the limits of the verdicts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import date, timedelta

import numpy as np

from shared.sampling.companions import Pairs, Share
from shared.sampling.comparison import Day

START = date(2026, 6, 1)
REQUEST, EVENT, RENAMED, NEW = "checkout", "OrderConfirmed", "OrderConfirmedV2", "Sale"
SHARES = {EVENT: 0.94, "Payment": 0.97, "EmailSent": 0.6}
INSTANCES = 8
LARGE_BURST = 4.0


@dataclass(frozen=True)
class Happened:
    """What happens on a day. ``lost`` is the share of the event that was lost at random."""

    lost: float = 0.0
    traffic: float = 1.0
    renamed: bool = False
    instance_gone: bool = False
    """One of eight instances sends nothing."""
    instance_drops: bool = False
    """One of eight instances sends no OrderConfirmed."""
    burst: bool = False
    """A client repeats an event again and again, within the same operations."""
    new_event: bool = False


@dataclass
class Shop:
    """Days with weekdays, drift and scatter. ``noise`` is that of the shares from day to day.

    A day keeps ``kept`` operations on average, one of each ``rates`` (weights), by day.
    """

    rng: np.random.Generator
    noise: float = 0.005
    kept: float = 4_000
    weights: tuple[float, ...] = (4.0,)
    days: int = 42
    control: bool = True
    _wiggle: dict[tuple[int, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = self.rng
        week = np.append(rng.uniform(0.9, 1.15, 5), rng.uniform(0.55, 1.0, 2))
        drift = np.cumsum(rng.normal(0, rng.uniform(0, 0.02), self.days))
        scatter = rng.uniform(0.03, 0.12) * rng.standard_t(rng.choice([5, 30]), self.days)
        self.traffic = self.kept * week[np.arange(self.days) % 7] * np.exp(drift + scatter)
        self._control = self.traffic * np.exp(rng.normal(0, rng.uniform(0.01, 0.06), self.days))
        self._weights = rng.choice(self.weights, self.days)

    def day(self, index: int, what: Happened = Happened()) -> tuple[Day, Pairs]:
        rng, day, k = self.rng, START + timedelta(days=index), float(self._weights[index])
        usual = self.weights[0]
        count = int(rng.poisson(max(self.traffic[index] * what.traffic * usual / k, 1.0)))
        instance = rng.integers(0, INSTANCES, count)
        has = {REQUEST: np.ones(count, bool)}
        for event, share in SHARES.items():
            has[event] = rng.random(count) < min(share * math.exp(self._noise(index, event)), 1.0)
        has[EVENT] &= rng.random(count) >= what.lost
        if what.instance_drops:
            has[EVENT] &= instance > 0
        if what.instance_gone:
            has = {event: column[instance > 0] for event, column in has.items()}
        if what.new_event:
            has[NEW] = rng.random(len(has[REQUEST])) < 0.5
        if what.renamed:
            has[RENAMED] = has.pop(EVENT)
        kept = float(has[EVENT].sum()) if EVENT in has else 0.0
        records = kept * (LARGE_BURST if what.burst else 1.0)
        return Day(
            day,
            value=records * k,
            standard_error=math.sqrt(records * k * (k - 1)),
            effective_records=records,
            sampling_rate_percent=100 / k,
            control=float(self._control[index] * usual * what.traffic) if self.control else None,
        ), _pairs(has)

    def _noise(self, index: int, event: str) -> float:
        if (index, event) not in self._wiggle:
            self._wiggle[index, event] = float(self.rng.normal(0, self.noise))
        return self._wiggle[index, event]


def _pairs(has: dict[str, np.ndarray]) -> Pairs:
    totals = {event: int(column.sum()) for event, column in has.items()}
    return {
        (event, companion): Share(totals[companion], int((column & has[companion]).sum()))
        for event, column in has.items()
        for companion in has
        if event != companion and totals[companion]
    }
