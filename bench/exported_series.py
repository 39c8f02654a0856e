"""Synthetic exports by hour: an event and the metric that counts requests, in the same files.

Collection of both may stop, a part of both may be lost, and records may arrive a day late or be
sampled. Each series is judged in the night after its last day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np

from bench.measurement import Measurement
from shared.sampling.estimates import Sums
from shared.sampling.profile import UsualWeek, usual_week
from shared.sampling.series import BlobDate, DaySums, HourSums, Series, Shape
from shared.sampling.trend_rows import Trend
from shared.sampling.trends import TrendInputs, trends_of
from shared.sampling.weights import weigh

WORLDS = 60
DAYS = 50
START = date(2017, 1, 2)
FIRST_HOUR = (START - date(1970, 1, 1)).days * 24
EVENT, METRIC = Series("event", "OrderPlaced"), Series("metric", "requests/duration")
LOST, TRAFFIC = "events lost", "traffic changed"
SAMPLING = "sampling"

Totals = dict[tuple[str, Series], DaySums]


@dataclass
class Exported:
    """A service that is busiest in the afternoon, with weekdays and days that scatter by 3 to 8 %.

    ``traffic`` has the expected events by day and hour.
    """

    rng: np.random.Generator

    def __post_init__(self) -> None:
        rng = self.rng
        week = np.append(rng.uniform(0.85, 1.15, 5), rng.uniform(0.3, 1.0, 2))
        scatter = rng.normal(0, rng.uniform(0.03, 0.08), DAYS)
        by_day = 10 ** rng.uniform(2.5, 4) * week[np.arange(DAYS) % 7] * np.exp(scatter)
        by_hour = 1 + rng.uniform(0.3, 0.98) * np.cos((np.arange(24) - 14) * np.pi / 12)
        self.traffic = np.outer(by_day, by_hour / by_hour.sum())
        self.requests = 5 * self.traffic * np.exp(rng.normal(0, 0.03, (DAYS, 1)))

    def night(
        self,
        collected: np.ndarray | float = 1.0,
        kept: np.ndarray | float = 1.0,
        traffic: np.ndarray | float = 1.0,
        late: float = 0.0,
        cap: int = 0,
        sdk: str = "aspnet5c:2.20.0",
        control: bool = True,
    ) -> Totals:
        """``collected`` is the share of both that the export contains, and ``kept`` the share of
        events that sampling keeps without stating it, by day and hour. ``late`` is the share of
        events that arrive a day later. ``cap`` is the number of records of both that are
        collected a day, up to 1 %.
        """
        rng = self.rng
        events = rng.poisson(self.traffic * traffic * kept * collected)
        requests = rng.poisson(self.requests * traffic * collected)
        if cap:
            both = events + requests
            left = cap * np.exp(rng.normal(0, 0.01, (DAYS, 1))) - (both.cumsum(axis=1) - both)
            fits = np.clip(left / np.maximum(both, 1), 0, 1)
            events, requests = rng.binomial(events, fits), rng.binomial(requests, fits)
        delayed = rng.binomial(events, late)
        delayed_seen = delayed.copy()
        delayed_seen[-1] = 0
        doubtful = not weigh(1, None, sdk).trusted
        totals: Totals = {}
        for index in range(DAYS):
            day = str(START + timedelta(days=index))
            of_event = [(events[index] - delayed[index], 0), (delayed_seen[index], 1)]
            of_day = day_sums(index, of_event, doubtful)
            if of_day.sums.records:
                totals[day, EVENT] = of_day
            if control and requests[index].any():
                totals[day, METRIC] = day_sums(index, [(requests[index], 0)])
        return totals


def day_sums(index: int, by_age: list[tuple[np.ndarray, int]], doubtful: bool = False) -> DaySums:
    hours = [
        HourSums(FIRST_HOUR + 24 * index + hour, int(n), float(n), age)
        for counts, age in by_age
        for hour, n in enumerate(counts.tolist())
        if n
    ]
    n = sum(hour.records for hour in hours)
    same = {"weight_sum": n, "weight_square_sum": n, "weight_max": 1}
    return DaySums(Sums(n, doubtful=n if doubtful else 0, **same), hours)


def judged(totals: Totals) -> list[Trend]:
    days = [START + timedelta(days=index) for index in range(DAYS)]
    read = {str(day): BlobDate(records={str(day): 1}) for day in days}
    inputs = TrendInputs(Shape(), read, days[-1] + timedelta(days=1))
    return [trend for trend in trends_of(totals, inputs) if trend.kind == EVENT.kind]


def last_day(share: float, first: int = 0, end: int = 24) -> np.ndarray:
    """This share in some hours of the last day, otherwise all."""
    shares = np.ones((DAYS, 24))
    shares[-1, first:end] = share
    return shares


def measure(seed: int = 13) -> Iterator[Measurement]:
    rng = np.random.default_rng(seed)
    worlds = [Exported(rng) for _ in range(WORLDS)]

    def share(night: Callable[[Exported], Totals], true: Callable[[Trend], bool]) -> float:
        return float(np.mean([true(judged(night(world))[-1]) for world in worlds]))

    def lost(trend: Trend) -> bool:
        return trend.verdict == LOST

    def traffic_changed(trend: Trend) -> bool:
        return trend.verdict == TRAFFIC

    def lost_for_sure(trend: Trend) -> bool:
        return lost(trend) and SAMPLING not in trend.reason

    stopped, half = last_day(0, 13), last_day(0.5)
    shares = {
        "same_export.false_alarms": (share(Exported.night, lost), "≤ 0.01", "ordinary days"),
        "same_export.holidays_called_loss": (
            share(lambda w: w.night(traffic=half), lost), "≤ 0.01", "half the traffic"),
        "same_export.half_lost_called_traffic": (
            share(lambda w: w.night(half), traffic_changed), "≤ 0.01", "half of all records lost"),
        "cap_one_day.called_loss": (
            share(lambda w: w.night(stopped), lost), "≥ 0.95", "no record of any table from 13:00"),
        "cap_one_day.called_traffic": (
            share(lambda w: w.night(stopped), traffic_changed), "≤ 0.01", "the same"),
        "cap_one_day_alone.called_loss": (
            share(lambda w: w.night(stopped, control=False), lost), "≥ 0.95", "without the metric"),
        "seven_hours_missing.called_loss": (
            share(lambda w: w.night(last_day(0, 9, 16)), lost), "≥ 0.95", "9:00 to 16:00"),
        "late_25_percent.false_alarms": (
            share(lambda w: w.night(late=0.25), lost), "≤ 0.01", "a day late, on every day"),
        "late_12_percent.false_alarms": (
            share(lambda w: w.night(late=0.12), lost), "≤ 0.01", "the same"),
        "late_25_percent.recall_at_50_percent": (
            share(lambda w: w.night(kept=half, late=0.25), lost), "≥ 0.9", "half the events lost"),
        "unstated_20_percent.called_loss": (
            share(lambda w: w.night(kept=last_day(0.2), sdk="py3.9:oc0.11"), lost), "≤ 0.01",
            "OpenCensus keeps 20 % on the last day and writes no rate"),
        "unstated_75_percent.called_loss_only": (
            share(lambda w: w.night(kept=last_day(0.75)), lost_for_sure), "≤ 0.01",
            "ItemCount 1 at 75 %; the reason does not mention sampling"),
    }  # fmt: skip
    for name, (value, aim, note) in shares.items():
        yield Measurement(f"verdict.{name}", value, "share of days", 1.0, aim, note)
    yield from _caps(worlds)


def _caps(worlds: list[Exported]) -> Iterator[Measurement]:
    """Measure a cap that is reached each day, at half of a weekday's events."""
    warned, ordinary, zeros = [], [], []
    complete = [str(START + timedelta(days=index)) for index in range(DAYS)]
    for world in worlds:
        usual = (world.traffic + world.requests).sum(axis=1)
        totals = world.night(cap=int(np.median(usual) / 2))
        warned += [_warned(trend) for trend in judged(totals)]
        ordinary += [_warned(trend) for trend in judged(world.night())]
        week = usual_week(totals, EVENT.event, complete, "UTC")
        values = week.items_per_minute if isinstance(week, UsualWeek) else ()
        zeros += [values[24 * day + hour] == 0 for day in range(5) for hour in range(18, 24)
                  if values]  # fmt: skip
    for name, found, aim, note in (
        ("cap_each_day.warned", warned, "≥ 0.9", "the cap is half of a weekday's events"),
        ("no_cap.warned", ordinary, "≤ 0.01", "the same series without a cap"),
        ("cap_each_day.zero_in_profile", zeros, "≤ 0.01", "18:00 to 24:00 of weekdays"),
    ):
        value = float(np.mean(found)) if found else 0.0
        yield Measurement(f"verdict.{name}", value, "share", 1.0, aim, note)


def _warned(trend: Trend) -> bool:
    return any("daily cap" in text and "each day" in text for text in trend.warnings)
