"""Judges each day of an event: normal, changed sampling, lost events, or changed traffic.

The adjusted figure is compared with its weekday baseline. If there is a control series that is not
sampled, such as the messages of a queue, the ratio of the event to the control series is compared
as well. When events are lost, the ratio falls; on a holiday, it does not fall. Without a control
series, a fall is reported as loss, and the reason says that it may also be less traffic. A control
from the same export may be lost together with the event, so it does not prove that nothing was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from enum import StrEnum
from statistics import median
from types import MappingProxyType
from typing import TypeAlias

from shared.sampling.baseline import MEMORY_DAYS
from shared.sampling.comparison import Day, Test, Tests, at_same_age, compare, unread_explains

SUPPORT = 2.0
"""The limit for the ratio to the control, in standard errors, if the value itself has fallen
unusually far.
"""
FALLEN_ALONG = -1.0
"""Above this score, the value did not fall. It is used when the control series rose."""
RATE_CHANGE_MIN = 1.25
"""The factor by which the sampling rate must differ from the usual one to count as changed."""
RATE_DAYS = 7
SAME_RECORDS = (0.8, 1.25)
"""If the number of records is within these shares of the expected one, it has not changed."""
ROUNDED = 0.5
"""Item counts are whole numbers, which differ by at most this from 100 / rate."""
CHANCE = 0.1
"""The share by which a day may differ by chance from what rounding explains."""
ARRIVED_MIN = 0.98
"""If a smaller share of a day has usually arrived by now, the reason says so."""
UNREAD = "what is missing may be in lines that could not be read"
LOSS_SEEN_MAX = 0.8
"""If a test can detect only losses larger than this share, its result is uncertain."""
CAPPED = "collection ends at about the same number of records each day, as at a daily cap"
ACCEPT_AFTER_DAYS = 28
ACCEPT_AFTER_DAYS_UNPROVEN = 7
"""Unusual days enter the baseline when they have lasted for this many days: ACCEPT_AFTER_DAYS for a
loss against a control series, ACCEPT_AFTER_DAYS_UNPROVEN for anything else."""

Evidence = Mapping[str, float | str | None]
NOTHING: Evidence = MappingProxyType({})
Judgement: TypeAlias = "tuple[VerdictKind, str]"
"""The kind of a verdict and its reason."""


class VerdictKind(StrEnum):
    NORMAL = "normal"
    SAMPLING_CHANGED = "sampling changed"
    EVENTS_LOST = "events lost"
    TRAFFIC_CHANGED = "traffic changed"
    UNCERTAIN = "uncertain"
    MEASUREMENT_LOST = "measurement lost"
    """The values are fewer or smaller than the count suggests."""
    MEASUREMENT_CHANGED = "measurement changed"
    """The values are larger than the count suggests."""


LOST = frozenset({VerdictKind.EVENTS_LOST, VerdictKind.MEASUREMENT_LOST})
UNUSUAL = LOST | {VerdictKind.TRAFFIC_CHANGED, VerdictKind.MEASUREMENT_CHANGED}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a day, its reason, and its evidence. Shares and ratios have no unit."""

    day: date
    kind: VerdictKind
    reason: str
    evidence: Evidence = field(default_factory=lambda: NOTHING)
    figure: str = "count"
    """What it is about: the count, the sum, or both."""


def judge_all(
    days: Sequence[Day], holidays: Collection[date] = (), by: Callable[..., Verdict] | None = None
) -> tuple[Verdict, ...]:
    """One verdict for each day, in order of the days, by ``judge`` or by another judge.

    Unusual days are left out of the baseline at first. They enter it when they have lasted for four
    weeks, if they are a loss against a control series, or for one week otherwise. After this time
    the loss is known, or the change is permanent.
    """
    verdicts: list[Verdict] = []
    history: list[Day] = []
    run: list[int] = []
    for day in sorted(days, key=lambda d: d.day):
        lasting = bool(verdicts) and verdicts[-1].kind in LOST
        verdict = (by or judge)(day, history[-MEMORY_DAYS:], holidays, lasting=lasting)
        if run and verdict.kind is not verdicts[-1].kind:
            run = []
        verdicts.append(verdict)
        history.append(day)
        if verdict.kind in UNUSUAL and not day.excluded:
            run.append(len(history) - 1)
            _leave_out(history, run, _accept_after_days(day, verdict))
    return tuple(verdicts)


def _accept_after_days(day: Day, verdict: Verdict) -> int:
    proven = verdict.kind is VerdictKind.EVENTS_LOST and day.control is not None
    return ACCEPT_AFTER_DAYS if proven else ACCEPT_AFTER_DAYS_UNPROVEN


def _leave_out(history: list[Day], run: Sequence[int], days_max: int) -> None:
    """Exclude the days of a run from the baseline, unless the run is longer than ``days_max``."""
    for index in run:
        history[index] = replace(history[index], excluded=len(run) <= days_max)


def judge(
    today: Day,
    history: Sequence[Day],
    holidays: Collection[date] = (),
    *,
    lasting: bool = False,
) -> Verdict:
    """The verdict on one day.

    ``history`` has earlier days; later ones are ignored. Ten weeks are enough. ``lasting`` means
    that there was a loss on the day before.
    """
    same, holiday = at_same_age(today, history), today.day in holidays
    tests = compare(same.today, same.before, lasting)
    usual_rate = _usual_rate(same.before)
    kind, reason = _judge(same.today, tests, same.before, holiday)
    if tests.by_value is not None:
        kind, reason = _doubted(kind, reason, today, same.before, tests, tests.by_value, usual_rate)
        kind, reason = _collected(kind, reason, today, tests, tests.by_value, holiday)
        by_most = tests.by_control or tests.by_value
        if kind in UNUSUAL and unread_explains(same.today, same.before, by_most):
            kind, reason = VerdictKind.UNCERTAIN, f"{reason}; {UNREAD}"
    elif any(d.key != today.key for d in history):
        reason = f"{reason}; earlier days were counted by another key"
    evidence = evidence_of(today, tests, usual_rate)
    if same.usually_arrived < ARRIVED_MIN:
        later = f"{1 - same.usually_arrived:.0%} of a day's records usually arrive later than these"
        reason = f"{reason}; compared with earlier days at the same age, because {later}"
        evidence = {**evidence, "usually_arrived": same.usually_arrived}
    return Verdict(today.day, kind, reason, evidence)


def _judge(today: Day, tests: Tests, before: Sequence[Day], holiday: bool) -> Judgement:
    if tests.by_value is None:
        return VerdictKind.UNCERTAIN, why_unknown(before)
    if tests.by_control is not None:
        return _judge_with_control(today, tests, tests.by_value, tests.by_control, holiday)
    expected = f"{tests.by_value.share:.0%} of what was expected"
    if tests.by_value.high:
        return VerdictKind.TRAFFIC_CHANGED, expected
    if not tests.by_value.low:
        return nothing_seen(tests.by_value)
    if holiday:
        reason = f"{expected} on a holiday, without a control series to compare with"
        return VerdictKind.UNCERTAIN, reason
    alone = f"{expected}; without a control series, this may also be less traffic"
    return fallen(tests.by_value, alone)


def why_unknown(before: Sequence[Day]) -> str:
    if before and median([d.value for d in before]) <= 0:
        return "most earlier days are zero, so there is no level to compare with"
    return "too little history of this weekday to compare with"


def _judge_with_control(
    today: Day, tests: Tests, by_value: Test, by_control: Test, holiday: bool
) -> Judgement:
    expected = f"{by_value.share:.0%} of what was expected"
    against = f"{by_control.share:.0%} of what the control series suggests"
    control = tests.of_control
    if by_control.low and rose_alone(by_value, control):
        reason = f"{against}, because the control series rose and this one did not"
        return VerdictKind.UNCERTAIN, reason
    if by_control.low or fell_alone(by_value, by_control, control):
        return fallen(by_control, against)
    if by_control.high and not by_value.high:
        reason = f"{against}, because the control series fell and this one did not"
        return VerdictKind.UNCERTAIN, reason
    if by_control.high:
        return VerdictKind.TRAFFIC_CHANGED, f"{expected}, and {against}"
    if by_value.low or by_value.high:
        similar = f"{expected}, and the control series changed by a similar share"
        if by_value.low and today.control_exported and not holiday:
            both = "it comes from the same export, which may have lost a part of both"
            return VerdictKind.UNCERTAIN, f"{similar}; {both}"
        return VerdictKind.TRAFFIC_CHANGED, similar
    return nothing_seen(by_control)


def rose_alone(by_value: Test, control: Test | None) -> bool:
    """Whether the control rose and the value did not fall."""
    return control is not None and control.high and by_value.score > FALLEN_ALONG


def fell_alone(by_value: Test, by_control: Test, control: Test | None) -> bool:
    """Whether the value fell unusually far, and whether its ratio to the control fell more than the
    control differs from its own past.
    """
    unmoved = control is None or abs(control.score) < -by_control.score
    return by_value.low and by_control.score < -SUPPORT and unmoved


def fallen(test: Test, reason: str, loss: Judgement | None = None) -> Judgement:
    """A loss, unless there are too few records for it."""
    if test.smallest_loss > LOSS_SEEN_MAX and test.few_records:
        return VerdictKind.UNCERTAIN, f"{reason}; there are too few records for a verdict"
    return loss or (VerdictKind.EVENTS_LOST, reason)


def _doubted(
    kind: VerdictKind,
    reason: str,
    today: Day,
    before: Sequence[Day],
    tests: Tests,
    by_value: Test,
    usual_rate: float | None,
) -> Judgement:
    """The verdict, after considering that weights may be wrong, rounded, or not stated."""
    rate, lately = today.sampling_rate_percent, sorted(before, key=lambda d: d.day)[-RATE_DAYS:]
    rates = _rates(rate, usual_rate)
    if rates and kind is VerdictKind.NORMAL:
        reason = f"{rates}; adjusted for sampling, the day is as expected"
        return VerdictKind.SAMPLING_CHANGED, reason
    if not _unconfirmed(kind, tests):
        return kind, reason
    risen = kind is VerdictKind.TRAFFIC_CHANGED
    if not today.trusted or (risen and not all(d.trusted for d in lately)):
        doubt = "weights cannot be trusted, so this may be sampling"
        return VerdictKind.UNCERTAIN, f"{reason}; {doubt}"
    if rate is None or usual_rate is None:
        return kind, reason
    if _weights_explain(by_value.share, usual_rate / rate):
        doubt = f"{rate:.3g} % of records were kept if that is true, {usual_rate:.3g} % before"
        same = "as many records arrived as before, and only their weights changed"
        return VerdictKind.UNCERTAIN, f"{reason}; {same}: {doubt}"
    if rates:
        reason = f"{reason}; this is adjusted for sampling, which changed too: {rates}"
    test = tests.by_control or by_value
    chance = max(CHANCE, test.smallest_loss) if rates else CHANCE
    if _rounding_explains(test.share, rate, usual_rate, chance, (today, *lately)):
        kind = VerdictKind.UNCERTAIN if rates else kind
        reason = f"{reason}; {_rounding(100 / rate)}"
    return kind, reason


def _unconfirmed(kind: VerdictKind, tests: Tests) -> bool:
    """Whether this is a loss, or a change of traffic that the control did not share."""
    shared = tests.by_control is not None and not (tests.by_control.low or tests.by_control.high)
    changed = kind is VerdictKind.TRAFFIC_CHANGED and not shared
    return changed or kind is VerdictKind.EVENTS_LOST


def _weights_explain(share: float, weights: float) -> bool:
    """Whether the value changed with the weights, and the records did not. When sampling begins,
    fewer records arrive; when records are lost, their weights stay.
    """
    least, most = SAME_RECORDS
    records = share / weights
    explained = share > 0 and abs(math.log(records)) <= abs(math.log(share)) / 2
    return explained and least <= records <= most


def _rounding_explains(
    share: float, rate: float, usual_rate: float, chance: float, days: Sequence[Day]
) -> bool:
    now, then = 100 / rate, 100 / usual_rate
    least = now / (now + ROUNDED) * max(then - ROUNDED, 1.0) / then
    most = now / max(now - ROUNDED, 1.0) * (then + ROUNDED) / then
    explained = least * (1 - chance) <= share <= most * (1 + chance)
    return explained and not all(day.exact for day in days)


def _rounding(weight: float) -> str:
    low, high = 100 / (weight + ROUNDED), 100 / max(weight - ROUNDED, 1.0)
    return (
        f"this may also be sampling, because ItemCount is a whole number: {weight:.3g} stands for"
        f" any rate from {low:.0f} to {high:.0f} %"
    )


def _collected(
    kind: VerdictKind, reason: str, today: Day, tests: Tests, by_value: Test, holiday: bool
) -> Judgement:
    """The verdict, after considering hours in which no telemetry at all was collected."""
    if today.silent:
        silent = f"no table has a record {today.silent}, although all earlier days have some then"
        independent = tests.by_control is not None and not today.control_exported
        if holiday or (independent and kind is VerdictKind.TRAFFIC_CHANGED):
            return kind, f"{reason}; {silent}"
        expected = f"{by_value.share:.0%} of what was expected"
        stopped = "collection stopped, or the application did"
        return VerdictKind.EVENTS_LOST, f"{expected}; {silent}: {stopped}"
    if today.capped and kind is not VerdictKind.EVENTS_LOST:
        return VerdictKind.UNCERTAIN, f"{CAPPED}, so the rest of the day is unknown; {reason}"
    return kind, reason


def nothing_seen(test: Test) -> Judgement:
    if test.smallest_loss > LOSS_SEEN_MAX:
        loss = f"only a loss above {test.smallest_loss:.0%} would be detected"
        return VerdictKind.UNCERTAIN, f"days differ too much for a verdict: {loss}"
    return VerdictKind.NORMAL, f"{test.share:.0%} of what was expected"


def _usual_rate(before: Sequence[Day]) -> float | None:
    latest = sorted(before, key=lambda d: d.day)[-RATE_DAYS:]
    rates = [d.sampling_rate_percent for d in latest if d.sampling_rate_percent is not None]
    return median(rates) if rates else None


def _rates(rate: float | None, usual: float | None) -> str:
    """The rate and the usual one; empty if they are about equal or unknown."""
    if rate is None or usual is None or max(rate, usual) <= RATE_CHANGE_MIN * min(rate, usual):
        return ""
    return f"{rate:.3g} % of records were kept, {usual:.3g} % before"


def evidence_of(today: Day, tests: Tests, usual_rate: float | None) -> Evidence:
    evidence: dict[str, float | str | None] = {
        "value": today.value,
        "sampling_rate_percent": today.sampling_rate_percent,
        "usual_sampling_rate_percent": usual_rate,
        "control": today.control,
    }
    for name in Tests.__slots__:
        test = getattr(tests, name)
        for figure in ("share", "score", "score_min", "smallest_loss") if test else ():
            evidence[f"{figure}_{name}"] = getattr(test, figure)
    return evidence
