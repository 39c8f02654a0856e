"""verdict: how much of a loss is detected, by its size, and how often a good day is called a loss.

The baseline is the usual way to read a chart: comparing a day with the same weekday a week before,
with the limit that gives 1 % of false alarms on the same days.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bench import companion_verdicts, exported_series
from bench.made_up_series import MadeUp, Measured, Tweets, World
from bench.measurement import Measurement
from shared.sampling.comparison import Day
from shared.sampling.measured import judge_measured
from shared.sampling.verdict import LOST, Verdict, judge

WORLDS = 60
LOSSES = (0.1, 0.15, 0.2, 0.3, 0.5, 0.8)
FALSE_ALARMS_MAX = 0.01
LOSS_DAYS = 1 / 50
"""The share of days with a loss, for the precision that is reported."""
NOTHING, HOLIDAY, EVENTS = "nothing", "holiday", "events"

Judge = Callable[[Day, Sequence[Day]], Verdict]


@dataclass
class Tally:
    """Results by what happened on a day: was a loss called, and how far the day fell in a week."""

    judge: Judge = judge
    called: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    falls: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, happened: str, today: Day, history: Sequence[Day]) -> None:
        self.called[happened].append(self.judge(today, history).kind in LOST)
        before = history[-7].value
        self.falls[happened].append(math.log(max(today.value, 0.5) / max(before, 0.5)))

    def loss_share(self, happened: str) -> float:
        return float(np.mean(self.called[happened]))

    def loss_share_by_weekday(self, happened: str) -> float:
        limit = np.quantile(self.falls[NOTHING], FALSE_ALARMS_MAX)
        return float(np.mean(np.array(self.falls[happened]) < limit))


def measure() -> Iterator[Measurement]:
    rng = np.random.default_rng(11)
    worlds = [MadeUp(rng) for _ in range(WORLDS)]
    yield from _measurements("verdict.control", _tally(worlds, rng), holidays=True)
    yield from _measurements("verdict.alone", _tally(worlds, rng, control=False))
    yield from _measurements("verdict.tweets", _tally([Tweets()], rng, each=True))
    yield from _measured(np.random.default_rng(12))
    yield from exported_series.measure()
    yield from companion_verdicts.measure()


def _measured(rng: np.random.Generator) -> Iterator[Measurement]:
    """Measure sums. A loss takes values away, while their records still arrive."""
    worlds = [Measured(rng) for _ in range(2 * WORLDS)]
    tally = _tally_of_sums(worlds, rng)
    yield from _measurements("verdict.sum", tally, holidays=True)
    yield Measurement(
        "verdict.sum.lost_events_called_lost_values", tally.loss_share(EVENTS), "share", 0.05,
        "ratio ≤ 1", "half the events, each with its value; baseline: the permitted share",
    )  # fmt: skip
    heavy = [world for world in worlds if world.tail in ("heavy", "infinite")]
    yield from _measurements("verdict.sum_of_heavy_tails", _tally_of_sums(heavy, rng))


def _tally_of_sums(worlds: Sequence[Measured], rng: np.random.Generator) -> Tally:
    tally = Tally(judge_measured)
    for world in worlds:
        usual = [world.day(index) for index in range(world.days)]
        judged = range(49, world.days)
        for index in judged:
            tally.add(NOTHING, usual[index], usual[:index])
        for index in rng.choice(judged, 3, replace=False):
            for lost in LOSSES:
                tally.add(_name(lost), world.day(int(index), values=lost), usual[:index])
            tally.add(HOLIDAY, world.day(int(index), traffic=0.5), usual[:index])
            tally.add(EVENTS, world.day(int(index), lost=0.5), usual[:index])
    return tally


def _tally(
    worlds: Sequence[World], rng: np.random.Generator, control: bool = True, each: bool = False
) -> Tally:
    """``each`` simulates a loss on every day that can be judged, otherwise on three of a series."""
    tally = Tally()
    for world in worlds:
        usual = [_seen(world.day(index), control) for index in range(world.days)]
        judged = range(28 if each else 49, world.days)
        for index in judged:
            tally.add(NOTHING, usual[index], usual[:index])
        for index in judged if each else rng.choice(judged, 3, replace=False):
            for lost in LOSSES:
                today = _seen(world.day(int(index), lost=lost), control)
                tally.add(_name(lost), today, usual[:index])
            today = _seen(world.day(int(index), traffic=0.5), control)
            tally.add(HOLIDAY, today, usual[:index])
    return tally


def _seen(day: Day, control: bool) -> Day:
    return day if control else replace(day, control=None)


def _name(lost: float) -> str:
    return f"{lost:.0%}_loss"


def _measurements(name: str, tally: Tally, holidays: bool = False) -> Iterator[Measurement]:
    alarms = tally.loss_share(NOTHING)
    days = len(tally.called[NOTHING])
    yield Measurement(
        f"{name}.false_alarms", alarms, "share of days", FALSE_ALARMS_MAX, "ratio ≤ 1",
        f"of {days} ordinary days; baseline: the permitted share",
    )  # fmt: skip
    if holidays:
        yield Measurement(
            f"{name}.holidays_called_loss", tally.loss_share(HOLIDAY), "share",
            max(tally.loss_share_by_weekday(HOLIDAY), 1e-9), "≤ 0.01",
            "half the traffic, the control's too; baseline: same weekday before",
        )  # fmt: skip
    for lost in LOSSES:
        recall = tally.loss_share(_name(lost))
        hits, misses = recall * LOSS_DAYS, alarms * (1 - LOSS_DAYS)
        precision = hits / (hits + misses) if hits + misses else math.nan
        yield Measurement(
            f"{name}.recall_at_{100 * lost:.0f}_percent", recall, "share",
            max(tally.loss_share_by_weekday(_name(lost)), 1e-9), "",
            f"precision {precision:.2f} where one day in {1 / LOSS_DAYS:.0f} has such a loss;"
            " baseline: same weekday before, at 1 % false alarms",
        )  # fmt: skip
