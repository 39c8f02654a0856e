"""Verdicts by companions and by the ids of kept operations, beside other ways to find a loss."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.made_up_operations import EVENT, Happened, Shop
from bench.measurement import Measurement
from shared.sampling.companions import Pairs, judge_companions, with_companions
from shared.sampling.comparison import Day
from shared.sampling.kept_ids import Weights, hash_scores, weights_seen
from shared.sampling.verdict import LOST, judge

SHOPS, ALARM_SHOPS = 24, 96
LOSSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
OTEL_LOSSES = (0.0, 0.05, 0.1, 0.5, 0.9)
FIRST = 28
OTEL = "dotnet8.0:otel1.9.0:ext1.3.0"
OPERATIONS = 500
LYING_DAYS = 200
SIGMAS = 3.0
ZERO = 1e-9
NOTHING = Happened()
CASES: Mapping[str, tuple[Happened, bool]] = {
    "campaign": (Happened(traffic=2.0), False),
    "holiday": (Happened(traffic=0.5), False),
    "renamed_event": (Happened(renamed=True), False),
    "burst": (Happened(burst=True), False),
    "new_event": (Happened(new_event=True), False),
    "instance_gone": (Happened(instance_gone=True), True),
    "instance_drops_one_event": (Happened(instance_drops=True), True),
}
"""What happens on a day, and whether something was lost."""


@dataclass(frozen=True)
class Found:
    """Whether a loss is called by both verdicts together, by today's and by two usual ways."""

    both: bool
    alone: bool
    decomposed: bool
    weekdays: bool


def found(today: tuple[Day, Pairs], history: Sequence[tuple[Day, Pairs]]) -> Found:
    days = [day for day, _ in history]
    verdict = judge(today[0], days)
    seen = judge_companions(today[1], [pairs for _, pairs in history]).get(EVENT)
    values = [math.log(max(day.value, 0.5)) for day in (*days, today[0])]
    return Found(
        (with_companions(verdict, seen) if seen else verdict).kind in LOST,
        verdict.kind in LOST,
        _below_decomposition(values),
        _below_weekdays(values),
    )


def _below_decomposition(values: Sequence[float]) -> bool:
    """STL with a periodic week, and 3 standard deviations of its remainder."""
    known, days = np.array(values[:-1]), np.arange(len(values) - 1)
    if len(known) < 2 * 7:
        return False
    season, trend = np.zeros(7), np.zeros(len(known))
    for _ in range(3):
        detrended = known - trend
        season = np.array([detrended[days % 7 == weekday].mean() for weekday in range(7)])
        season -= season.mean()
        trend = np.array([_loess(days, known - season[days % 7], at) for at in range(len(known))])
    remainder = known - trend - season[days % 7]
    expected = _loess(days, known - season[days % 7], len(known)) + season[len(known) % 7]
    return bool(values[-1] - expected < -SIGMAS * remainder.std(ddof=8))


def _loess(x: np.ndarray, y: np.ndarray, at: int, span: int = 21) -> float:
    near = np.argsort(abs(x - at))[:span]
    distance = abs(x[near] - at)
    weights = (1 - (distance / (distance.max() + 1)) ** 3) ** 3
    return float(np.polyfit(x[near] - at, y[near], 1, w=np.sqrt(weights))[1])


def _below_weekdays(values: Sequence[float]) -> bool:
    """The median of the last four same weekdays, and 3 robust deviations of such differences."""
    if len(values) < 4 * 7 + 1:
        return False

    def distance(at: int) -> float:
        return values[at] - float(np.median(values[max(at - 28, at % 7) : at : 7]))

    earlier = [distance(at) for at in range(7, len(values) - 1)]
    spread = 1.4826 * float(np.median(np.abs(np.array(earlier) - np.median(earlier))))
    return distance(len(values) - 1) < -SIGMAS * spread


@dataclass
class Trial:
    """Shops with a history, in which single days are changed."""

    shops: Sequence[Shop]
    rng: np.random.Generator
    first: int = FIRST
    last: int = 42
    each: int = 3
    seen: Callable[[Day], Day] = lambda day: day

    def __post_init__(self) -> None:
        self.usual = [[self._day(shop, index) for index in range(shop.days)] for shop in self.shops]
        self.chosen = [
            sorted(self.rng.choice(range(self.first, self.last), self.each, replace=False).tolist())
            for _ in self.shops
        ]

    def _day(self, shop: Shop, index: int, what: Happened = NOTHING) -> tuple[Day, Pairs]:
        day, pairs = shop.day(index, what)
        return self.seen(day), pairs

    def shares(self, what: Happened) -> dict[str, float]:
        """The share of days on which each way calls a loss."""
        all_found = [
            found(self._day(shop, index, what), usual[:index])
            for shop, usual, chosen in zip(self.shops, self.usual, self.chosen, strict=True)
            for index in chosen
        ]
        names = Found.__dataclass_fields__
        return {n: float(np.mean([getattr(f, n) for f in all_found])) for n in names}

    def companion_alarms(self) -> tuple[float, float]:
        """The shares of events, and of days, on which companions call a loss although none is."""
        events, days = [], []
        for usual in self.usual:
            for index in range(1, len(usual)):
                history = [pairs for _, pairs in usual[:index]]
                lost = [v.lost for v in judge_companions(usual[index][1], history).values()]
                events += lost
                days.append(any(lost))
        return float(np.mean(events)), float(np.mean(days))


def _others(shares: Mapping[str, float]) -> str:
    return (
        f"by the count alone {shares['alone']:.2f} (baseline),"
        f" STL at three sigma {shares['decomposed']:.2f},"
        f" median of weekdays {shares['weekdays']:.2f}"
    )


def _recalls(name: str, trial: Trial, aims: Mapping[float, str]) -> Iterator[Measurement]:
    for lost in LOSSES:
        shares = trial.shares(Happened(lost=lost))
        yield Measurement(
            f"{name}.recall_at_{100 * lost:.0f}_percent", shares["both"], "share of days",
            max(shares["alone"], ZERO), aims.get(lost, ""), _others(shares),
        )  # fmt: skip


def measure(seed: int = 14) -> Iterator[Measurement]:
    rng = np.random.default_rng(seed)

    def shops(count: int = SHOPS, **options: object) -> list[Shop]:
        return [Shop(rng, kept=float(rng.uniform(3_500, 8_000)), **options) for _ in range(count)]  # type: ignore[arg-type]

    usual = Trial(shops(), rng)
    yield from _recalls("verdict.companions", usual, {0.05: "≥ 0.95", 0.1: "≥ 0.95"})
    yield from _false_alarms("verdict.companions", 0.005)
    early = Trial(shops(), rng, first=1, last=8).shares(Happened(lost=0.1))
    yield Measurement(
        "verdict.companions.first_week.recall_at_10_percent", early["both"], "share of days",
        max(early["alone"], ZERO), "≥ 0.95", f"days 2 to 8; {_others(early)}",
    )  # fmt: skip
    second = Trial(shops(), rng, first=7, last=28)
    shares = second.shares(Happened(lost=0.05))
    yield Measurement(
        "verdict.companions.from_day_8.recall_at_5_percent", shares["both"], "share of days",
        max(shares["alone"], ZERO), "≥ 0.95", f"days 8 to 28; {_others(shares)}",
    )  # fmt: skip
    uneven = Trial(shops(noise=0.01), rng, first=7, last=28)
    shares = uneven.shares(Happened(lost=0.05))
    yield Measurement(
        "verdict.companions.varying_by_1_percent.recall_at_5_percent", shares["both"],
        "share of days", max(shares["alone"], ZERO), "≥ 0.85", f"days 8 to 28; {_others(shares)}",
    )  # fmt: skip
    yield from _false_alarms("verdict.companions.varying_by_1_percent", 0.01)
    adaptive = Trial(shops(weights=(4.0, 2.0, 5.0)), rng)
    yield from _recalls("verdict.adaptive", adaptive, {})
    yield from _cases(usual, adaptive)
    yield from _otel(shops(weights=(1.0,)), rng)
    yield from _lying()


def _false_alarms(name: str, noise: float) -> Iterator[Measurement]:
    rng = np.random.default_rng(17)
    shops = [Shop(rng, noise, float(rng.uniform(3_500, 8_000))) for _ in range(ALARM_SHOPS)]
    events, days = Trial(shops, rng).companion_alarms()
    note = f"of {ALARM_SHOPS * (shops[0].days - 1)} days without a loss; {events:.4f} of events"
    yield Measurement(
        f"{name}.false_alarms", days, "share of days", 0.005, "ratio ≤ 1",
        f"{note}; the baseline is the aim",
    )  # fmt: skip


def _cases(usual: Trial, adaptive: Trial) -> Iterator[Measurement]:
    for name, (what, is_loss) in {**CASES, "nothing": (NOTHING, False)}.items():
        shares = usual.shares(what)
        aim = "no less than the baseline" if is_loss else "no more than the baseline"
        yield Measurement(
            f"verdict.{name}.called_loss", shares["both"], "share of days",
            max(shares["alone"], ZERO), aim, _others(shares),
        )  # fmt: skip
    shares = adaptive.shares(NOTHING)
    yield Measurement(
        "verdict.adaptive.called_loss", shares["both"], "share of days",
        max(shares["alone"], ZERO), "no more than the baseline", _others(shares),
    )  # fmt: skip


def _otel(shops: Sequence[Shop], rng: np.random.Generator) -> Iterator[Measurement]:
    """An unsampled application whose records state ItemCount 1, beside the same one with a classic
    SDK, whose weights are trusted."""
    ids = random.Random(15)

    def by_ids(day: Day) -> Day:
        operations = {f"{ids.getrandbits(128):032x}": 1.0 for _ in range(OPERATIONS // 2)}
        return replace(day, trusted=weights_seen(operations).proves_weight_1(OTEL))

    shown = Trial(shops, rng, seen=by_ids)
    for lost in OTEL_LOSSES:
        state = rng.bit_generator.state
        shares = shown.shares(Happened(lost=lost))
        rng.bit_generator.state = state
        shown.seen = lambda day: day
        classic = shown.shares(Happened(lost=lost))
        shown.seen = lambda day: replace(day, trusted=False)
        rng.bit_generator.state = state
        before = shown.shares(Happened(lost=lost))
        shown.seen = by_ids
        yield Measurement(
            f"verdict.otel.recall_at_{100 * lost:.0f}_percent", shares["both"], "share of days",
            max(classic["both"], ZERO), "no less than the baseline" if lost else "≤ 0.01",
            f"the baseline is the same with a classic SDK; without the ids, by the count alone"
            f" {before['alone']:.2f}",
        )  # fmt: skip


def _lying() -> Iterator[Measurement]:
    """ItemCount 1 although operations were dropped, at a fixed rate or at rates that change."""
    changing, adaptive = (0.5, 0.25, 0.2, 0.1), (1.0, 0.5, 0.25, 0.2, 0.1)
    for case, rates, stated, baseline, aim in (
        ("lying_counts.found", (0.204,), _one, 1.0, "≥ 0.99"),
        ("lying_counts.found_at_changing_rates", changing, _one, 1.0, "≥ 0.99"),
        ("true_counts.called_wrong", (0.2,), _rounded, 0.005, "ratio ≤ 1"),
        ("true_counts.adaptive.called_wrong", adaptive, _rounded, 0.005, "ratio ≤ 1"),
        ("true_counts.unsampled.called_wrong", (1.0,), _one, 0.005, "ratio ≤ 1"),
    ):
        yield _share_wrong(f"verdict.{case}", rates, stated, baseline, aim)


def _one(_rate: float) -> float:
    return 1.0


def _rounded(rate: float) -> float:
    return float(round(1 / rate))


def _share_wrong(
    name: str, rates: Sequence[float], stated: Callable[[float], float], baseline: float, aim: str
) -> Measurement:
    rng = random.Random(16)
    wrong = []
    for _ in range(LYING_DAYS):
        kept: dict[str, float] = {}
        while len(kept) < OPERATIONS:
            ids = [f"{rng.getrandbits(128):032x}" for _ in range(OPERATIONS)]
            for operation_id, score in zip(ids, hash_scores(ids).tolist(), strict=True):
                rate = rng.choice(rates)
                if score < rate and len(kept) < OPERATIONS:
                    kept[operation_id] = stated(rate)
        wrong.append(weights_seen(kept).weights is Weights.WRONG)
    note = f"of {LYING_DAYS} days with {OPERATIONS} kept operations; the baseline is the aim"
    return Measurement(name, float(np.mean(wrong)), "share of days", baseline, aim, note)
