"""What a month of Azure Monitor says of a plan: arrivals, rate per instance, start-up time. Pure.

*Saturated minutes.* While messages wait, all instances are busy. ``active`` also counts messages in
hand: by Little's law, these are the completions of a minute times the minutes S that one takes. A
minute is saturated if, before, in and after it, ``active`` is above (1 + 2·S)·completed.

*Rate and start-up time.* An instance works D minutes after it was counted, so w_t(D), the least
number counted in the last D minutes, is what works. For each D, the rate is Σ completed / Σ w over
the saturated minutes. The D with the least Σ (completed - rate·w)²/w is taken. Hours are resampled
for the errors of both, because minutes next to each other are alike.

*Never saturated.* Then the CPU tells the rate, if it follows the completions: that at 100 %. If it
does not, the busiest minutes say what the rate is at least. Neither is sure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from backtest.arena import Floats, Schedule
from backtest.audit_month import COUNTS, DAY_MINUTES, Month
from backtest.errors import BacktestError
from backtest.traces.samples import MINUTE
from backtest.workload import FILLED_MINUTES_MAX, Workload, runs

START_UP_MAX, STEPS = 20, 2
"""The longest start-up time that is looked for, in minutes, and the steps of a minute."""
START_UP_ASSUMED = 3.0
SATURATED_MIN, HOURS_MIN = 30, 3
SURE_SHARE, SURE_MINUTES = 0.2, 4.0
"""How wide the interval of a sure estimate is at most."""
EXPLAINED_MIN = 0.7
RESAMPLES, SEED = 1000, 1
DIFFERENCE_MAX = 0.05
"""Messages that came and were not completed, or the other way round."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 90 % interval, where it comes from, and whether it may be relied on."""

    value: float
    low: float
    high: float
    evidence: str
    sure: bool


@dataclass(frozen=True)
class Findings:
    """What the month says. The arrays have one value for each minute that is kept."""

    month: Month
    workload: Workload
    backlog: Floats
    """Messages that wait at the end of the minute."""
    instances: Floats
    in_hand_minutes: float
    rate: Estimate
    start_up: Estimate
    cpu: tuple[float, float] | None
    """The CPU percentage of an idle and of a busy instance, if it follows the completions."""
    completed: float
    abandoned: float

    @cached_property
    def counted(self) -> Schedule:
        return np.maximum(np.rint(self.instances), 1).astype(np.int64)


def findings(month: Month) -> Findings:
    """Raises BacktestError if the month does not have what an audit needs."""
    notices = list[str]()
    columns, in_hand = _columns(month, notices)
    kept, known = _kept(columns, notices)
    if len(kept) < DAY_MINUTES:
        raise BacktestError(
            f"{month.entity}: {len(kept):,} minutes have both ActiveMessages and instances, and an "
            f"audit needs {DAY_MINUTES:,}. Check the names, and that the plan was running"
        )
    filled = {name: _filled(column)[kept] for name, column in columns.items()}
    arrivals = _arrivals(month, filled, notices)
    rate, start_up, cpu = _service(columns, in_hand, notices)
    backlog = np.maximum(filled["active"] - in_hand * filled["completed"], 0)
    starts = [month.start + MINUTE * int(minute) for minute in kept]
    missing = month.minutes - int(known.sum())
    return Findings(
        month=month,
        workload=Workload(month.entity, arrivals, starts, tuple(notices), missing),
        backlog=np.append((backlog[1:] + backlog[:-1]) / 2, backlog[-1]),
        instances=filled["instances"],
        in_hand_minutes=in_hand,
        rate=rate,
        start_up=start_up,
        cpu=cpu,
        completed=float(filled["completed"].sum()),
        abandoned=float(filled["abandoned"].sum()),
    )


def _columns(month: Month, notices: list[str]) -> tuple[dict[str, Floats], float]:
    """The columns, without messages that nobody reads, and with what an absent count means; and the
    minutes that a message is in hand."""
    columns = {name: month.column(name) for name in ("active", "instances", "cpu", *COUNTS)}
    active = columns["active"]
    if not np.isfinite(active).any():
        raise BacktestError(f"{month.entity}: no minute has ActiveMessages. Check its name")
    idle, in_hand = _at_rest(active, columns["completed"])
    if idle >= 1:
        columns["active"] = np.maximum(active - idle, 0)
        notices.append(f"{idle:,.0f} messages waited at all times: taken for such as nobody reads")
    for name in COUNTS:
        absent = np.isnan(columns[name]) & np.isfinite(active)
        if absent.any() and not (columns[name] == 0).any():
            columns[name] = np.where(absent, 0.0, columns[name])
            notices.append(
                f"{int(absent.sum()):,} minutes have ActiveMessages and no count of {name} "
                "messages, and no minute has 0: read as 0"
            )
    return columns, in_hand


def _kept(
    columns: dict[str, Floats], notices: list[str]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The minutes that are kept, and those that are known. Short gaps are filled."""
    needed = np.array([columns[name] for name in ("active", "instances", "incoming", "completed")])
    known = np.isfinite(needed).all(axis=0)
    kept, filled, cut = known.copy(), 0, 0
    for first, end in runs(~known):
        if first > 0 and end < len(known) and end - first <= FILLED_MINUTES_MAX:
            kept[first:end], filled = True, filled + end - first
        else:
            cut += end - first
    if filled or cut:
        notices.append(
            f"minutes without data: {filled} in gaps of up to {FILLED_MINUTES_MAX} min, filled with"
            f" what is beside them, and {cut} in longer ones, cut out"
        )
    return np.flatnonzero(kept), known


def _filled(column: Floats) -> Floats:
    known = np.isfinite(column)
    if not known.any():
        return np.zeros(len(column))
    at = np.arange(len(column))
    return np.interp(at, at[known], column[known])


def _arrivals(month: Month, filled: dict[str, Floats], notices: list[str]) -> Floats:
    """What came, for a topic counted once for each subscription."""
    incoming, active = filled["incoming"], filled["active"]
    done = float(filled["completed"].sum() + active[-1] - active[0])
    came = float(incoming.sum())
    if came <= 0 or done <= 0:
        raise BacktestError(
            f"{month.entity}: no message came, or none was completed. Check the name of the "
            f"{month.kind}, and that its workers complete messages"
        )
    if month.kind == "topic":
        notices.append(
            "Azure Monitor counts a topic as a whole, and no subscription of it: all subscriptions "
            f"count together, {done / came:.2f} deliveries a message. If other plans read some of "
            "them, the rate is too high by their share, and the plan looks too small for its work"
        )
        return incoming * (done / came)
    if abs(done / came - 1) > DIFFERENCE_MAX:
        notices.append(
            f"{done / came:.0%} of what came was completed: the rest expired, was dead-lettered or "
            "forwarded, or was received without being completed. All that came counts as work"
        )
    return incoming


def _at_rest(active: Floats, completed: Floats) -> tuple[float, float]:
    """The active messages that are there even without completions, and how many more there are for
    each completion a minute, which is how many minutes a message is in hand.

    Both are told by the quiet fifth of the minutes of each load, up to the usual load.
    """
    known = np.isfinite(active + completed)
    if known.sum() < DAY_MINUTES // 2:
        return 0.0, 0.0
    loads = np.array_split(np.argsort(completed[known], kind="stable"), 10)[:5]
    load = [float(completed[known][some].mean()) for some in loads]
    quiet = [float(np.percentile(active[known][some], 20)) for some in loads]
    if np.ptp(load) == 0:
        return 0.0, 0.0
    slope, rest = (float(n) for n in np.polyfit(load, quiet, 1))
    return min(max(rest, 0.0), float(np.nanmin(active))), max(slope, 0.0)


def _service(
    columns: dict[str, Floats], in_hand: float, notices: list[str]
) -> tuple[Estimate, Estimate, tuple[float, float] | None]:
    """The rate, the start-up time, and the CPU of an idle and of a busy instance."""
    working = _working(columns["instances"])
    rate, start_up = _saturated(columns, working, in_hand)
    least = working[2 * STEPS]
    completed, cpu = columns["completed"], columns["cpu"]
    steady = np.isfinite(cpu + completed) & (working[-1] == columns["instances"]) & (least > 0)
    slope = explained = 0.0
    idle = 0.0
    if steady.sum() >= DAY_MINUTES // 2 and np.ptp(completed[steady]) > 0:
        each = completed[steady] / columns["instances"][steady]
        slope, idle = (float(n) for n in np.polyfit(each, cpu[steady], 1))
        explained = float(np.corrcoef(each, cpu[steady])[0, 1] ** 2) if slope > 0 else 0.0
        if explained < EXPLAINED_MIN:
            notices.append(
                f"the CPU does not follow the completions (R² {explained:.2f}), so something else "
                "uses it: rules on CPU are not replayed"
            )
    follows = explained >= EXPLAINED_MIN
    if rate is None:
        rate = _by_cpu(slope, idle, explained) if follows else _at_least(columns)
    busy = min(max(idle, 0.0) + slope * rate.value, 100.0)
    return rate, start_up, (max(idle, 0.0), busy) if follows else None


def _working(instances: Floats) -> Floats:
    """For each start-up time in half minutes, the instances that work in each minute."""
    rows, least = list[Floats](), instances.copy()
    for back in range(START_UP_MAX + 1):
        if back:
            least = least.copy()
            least[back:] = np.minimum(least[back:], instances[:-back])
            least[:back] = np.nan
            rows.append((rows[-1] + least) / 2)
        rows.append(least)
    return np.array(rows)


def _saturated(
    columns: dict[str, Floats], working: Floats, in_hand: float
) -> tuple[Estimate | None, Estimate]:
    active, completed = columns["active"], columns["completed"]
    unknown = Estimate(START_UP_ASSUMED, 0, START_UP_MAX, "assumed, no scale-out shows it", False)
    enough = (1 + 2 * in_hand) * completed
    busy = np.isfinite(working).all(axis=0) & (working > 0).all(axis=0) & np.isfinite(completed)
    for shift in (-1, 0, 1):
        busy &= np.roll(active, shift) >= np.maximum(enough, 1)
    minutes = np.flatnonzero(busy)
    hours, at = np.unique(minutes // 60, return_inverse=True)
    if len(minutes) < SATURATED_MIN or len(hours) < HOURS_MIN:
        return None, unknown
    done, able = completed[minutes], working[:, minutes]
    sums = [_by_hour(done[None], at), _by_hour(able, at), _by_hour(done**2 / able, at)]
    weights = np.random.default_rng(SEED).multinomial(
        len(hours), np.full(len(hours), 1 / len(hours)), RESAMPLES
    )
    best, rates = _fit(np.ones((1, len(hours))), *sums)
    delays, resampled = _fit(weights.astype(np.float64), *sums)
    evidence = f"{len(minutes):,} minutes with a backlog, in {len(hours):,} hours"
    rate = _estimate(float(rates[0]), resampled, evidence)
    start_up = _estimate(float(best[0]), delays, "the completions after scale-outs")
    sure = start_up.high - start_up.low <= SURE_MINUTES and bool(np.ptp(able, axis=0).any())
    if not sure:
        return rate, unknown
    return rate, Estimate(start_up.value, start_up.low, start_up.high, start_up.evidence, True)


def _by_hour(values: Floats, at: NDArray[np.int64]) -> Floats:
    """Sums by hour: one row for each row of values."""
    return np.array([np.bincount(at, row) for row in values])


def _fit(weights: Floats, done: Floats, able: Floats, squares: Floats) -> tuple[Floats, Floats]:
    """The start-up time and the rate, for each row of weights of the hours."""
    count, can = weights @ done.T, weights @ able.T
    best = np.argmin(weights @ squares.T - count**2 / can, axis=1)
    return best / STEPS, count[:, 0] / can[np.arange(len(can)), best]


def _estimate(value: float, resampled: Floats, evidence: str) -> Estimate:
    low, high = (float(n) for n in np.percentile(resampled, (5, 95)))
    return Estimate(value, low, high, evidence, high - low <= SURE_SHARE * value)


def _by_cpu(slope: float, idle: float, explained: float) -> Estimate:
    value = (100 - idle) / slope
    said = (
        f"no minute shows a full load. At 100 % CPU, it would be {value:.4g} (R² {explained:.2f})"
    )
    return Estimate(value, value * explained, value / explained, said, False)


def _at_least(columns: dict[str, Floats]) -> Estimate:
    each = columns["completed"] / columns["instances"]
    value = float(np.percentile(each[np.isfinite(each)], 99))
    if value <= 0:
        raise BacktestError(
            "99 of 100 minutes have no completed message, so the rate per instance cannot be told"
        )
    said = "no minute shows a full load. It is at least that of the busiest minutes"
    return Estimate(value, value, np.inf, said, False)
