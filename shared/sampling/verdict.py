"""What happened to an event on a day: was it sampling, were events lost, or was there less to send?

The adjusted figure is held against its weekday baseline; where a control series exists that is not
sampled, such as the messages of a queue, so is the ratio to it: loss falls against its control, a
holiday does not. Without a control a fall is called loss, and the reason says what else it may be.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from enum import StrEnum
from statistics import median
from types import MappingProxyType
from typing import Protocol

from shared.sampling.baseline import MEMORY_DAYS
from shared.sampling.comparison import Day, Test, Tests, compare

SUPPORT = 2.0
"""A day that fell out of the ordinary needs only so much of its control to be called loss."""
FALLEN_ALONG = -1.0
"""A higher score by value tells that the event did not move while its control rose."""
RATE_CHANGE_MIN = 1.25
RATE_DAYS = 7
LOSS_SEEN_MAX = 0.8
"""Where only larger losses would show, a fall proves nothing."""
ACCEPT_AFTER_DAYS = 28
ACCEPT_AFTER_DAYS_UNPROVEN = 7

Evidence = Mapping[str, float | str | None]
NOTHING: Evidence = MappingProxyType({})


class VerdictKind(StrEnum):
    NORMAL = "normal"
    SAMPLING_CHANGED = "sampling changed"
    EVENTS_LOST = "events lost"
    TRAFFIC_CHANGED = "traffic changed"
    UNCERTAIN = "uncertain"
    MEASUREMENT_LOST = "measurement lost"
    """Fewer or smaller values than the count lets expect."""
    MEASUREMENT_CHANGED = "measurement changed"
    """Larger values than the count lets expect."""


LOST = frozenset({VerdictKind.EVENTS_LOST, VerdictKind.MEASUREMENT_LOST})
UNUSUAL = LOST | {VerdictKind.TRAFFIC_CHANGED, VerdictKind.MEASUREMENT_CHANGED}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found, why, and the numbers behind it. Shares and ratios have no unit."""

    day: date
    kind: VerdictKind
    reason: str
    evidence: Evidence = field(default_factory=lambda: NOTHING)


class Judge(Protocol):
    """See ``judge``."""

    def __call__(
        self, today: Day, history: Sequence[Day], holidays: Collection[date], *, lasting: bool
    ) -> Verdict: ...


def judge_all(
    days: Sequence[Day], holidays: Collection[date] = (), by: Judge | None = None
) -> tuple[Verdict, ...]:
    """One verdict a day, in order of days, by ``judge`` if not by another.

    What is out of the ordinary is not at once the new one.

    Such days are left out of the baseline, until they have lasted for so long that they are either
    known or no loss: four weeks of loss against a control series, one week of anything else.
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
            _leave_out(history, run, _patience(day, verdict))
    return tuple(verdicts)


def _patience(day: Day, verdict: Verdict) -> int:
    proven = verdict.kind is VerdictKind.EVENTS_LOST and day.control is not None
    return ACCEPT_AFTER_DAYS if proven else ACCEPT_AFTER_DAYS_UNPROVEN


def _leave_out(history: list[Day], run: Sequence[int], patience: int) -> None:
    """The days of a run, or none of them once it has lasted."""
    for index in run:
        history[index] = replace(history[index], excluded=len(run) <= patience)


def judge(
    today: Day,
    history: Sequence[Day],
    holidays: Collection[date] = (),
    *,
    lasting: bool = False,
) -> Verdict:
    """``history`` holds days before; others in it are passed over. Ten weeks are enough.

    ``lasting`` tells that the day before was one of loss.
    """
    since = today.day - timedelta(days=MEMORY_DAYS)
    before = [d for d in history if since <= d.day < today.day and not d.excluded]
    tests = compare(today, before, lasting)
    usual_rate = _usual_rate(before)
    finding, reason = _find(today, tests, before, today.day in holidays)
    if _rate_changed(today.sampling_rate_percent, usual_rate):
        rates = (
            f"{today.sampling_rate_percent:.3g} % of records were kept, {usual_rate:.3g} % before"
        )
        if finding is VerdictKind.NORMAL:
            finding = VerdictKind.SAMPLING_CHANGED
            reason = f"{rates}; adjusted for that the day is as expected"
        elif finding is not VerdictKind.UNCERTAIN:
            reason = f"{reason}; adjusted for sampling, which changed too: {rates}"
    return Verdict(today.day, finding, reason, evidence_of(today, tests, usual_rate))


def _find(
    today: Day, tests: Tests, before: Sequence[Day], holiday: bool
) -> tuple[VerdictKind, str]:
    if tests.by_value is None:
        return VerdictKind.UNCERTAIN, why_unknown(before)
    if tests.by_control is not None:
        return _find_with_control(today, tests, tests.by_value, tests.by_control)
    expected = f"{tests.by_value.share:.0%} of what was expected"
    if tests.by_value.high:
        return VerdictKind.TRAFFIC_CHANGED, expected
    if not tests.by_value.low:
        return nothing_seen(tests.by_value)
    if holiday:
        return (
            VerdictKind.UNCERTAIN,
            f"{expected} on a holiday, and no control series to compare with",
        )
    return _fallen(
        today, tests.by_value, f"{expected}; no control series to tell it from less traffic"
    )


def why_unknown(before: Sequence[Day]) -> str:
    if before and median([d.value for d in before]) <= 0:
        return "on most days before there was nothing, so there is nothing to fall from"
    return "too little history of this weekday to compare with"


def _find_with_control(
    today: Day, tests: Tests, by_value: Test, by_control: Test
) -> tuple[VerdictKind, str]:
    expected = f"{by_value.share:.0%} of what was expected"
    against = f"{by_control.share:.0%} of what the control series lets expect"
    control = tests.of_control
    if by_control.low and rose_alone(by_value, control):
        return VerdictKind.UNCERTAIN, f"{against}, as the control series rose and this one did not"
    if by_control.low or fell_alone(by_value, by_control, control):
        return _fallen(today, by_control, against)
    if by_control.high and not by_value.high:
        return VerdictKind.UNCERTAIN, f"{against}: the control series fell and this one did not"
    if by_control.high:
        return VerdictKind.TRAFFIC_CHANGED, f"{expected}, and {against}"
    if by_value.low or by_value.high:
        return VerdictKind.TRAFFIC_CHANGED, f"{expected}, and the control series changed alike"
    return nothing_seen(by_control)


def rose_alone(by_value: Test, control: Test | None) -> bool:
    """The control rose, and this did not fall."""
    return control is not None and control.high and by_value.score > FALLEN_ALONG


def fell_alone(by_value: Test, by_control: Test, control: Test | None) -> bool:
    """Out of the ordinary by itself, and more at odds with its control than that with its past."""
    unmoved = control is None or abs(control.score) < -by_control.score
    return by_value.low and by_control.score < -SUPPORT and unmoved


def _fallen(today: Day, test: Test, reason: str) -> tuple[VerdictKind, str]:
    if too_few_records(test):
        return VerdictKind.UNCERTAIN, f"{reason}; there are too few records to tell"
    if not today.trusted:
        return VerdictKind.UNCERTAIN, f"{reason}; weights cannot be trusted, so it may be sampling"
    return VerdictKind.EVENTS_LOST, reason


def too_few_records(test: Test) -> bool:
    return test.smallest_loss > LOSS_SEEN_MAX and test.few_records


def nothing_seen(test: Test) -> tuple[VerdictKind, str]:
    if test.smallest_loss > LOSS_SEEN_MAX:
        loss = f"only a loss above {test.smallest_loss:.0%} would show"
        return VerdictKind.UNCERTAIN, f"days differ too much to tell: {loss}"
    return VerdictKind.NORMAL, f"{test.share:.0%} of what was expected"


def _usual_rate(before: Sequence[Day]) -> float | None:
    latest = sorted(before, key=lambda d: d.day)[-RATE_DAYS:]
    rates = [d.sampling_rate_percent for d in latest if d.sampling_rate_percent is not None]
    return median(rates) if rates else None


def _rate_changed(rate: float | None, usual: float | None) -> bool:
    if rate is None or usual is None:
        return False
    return max(rate, usual) > RATE_CHANGE_MIN * min(rate, usual)


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
