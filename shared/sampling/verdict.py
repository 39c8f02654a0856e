"""What happened to an event on a day: was it sampling, were events lost, or was there less to send?

The adjusted figure is held against its weekday baseline; where a control series exists that is not
sampled, such as the messages of a queue, so is the ratio to it: loss falls against its control, a
holiday does not. Without a control a fall is called loss, and the reason says what else it may be.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from enum import StrEnum
from statistics import median
from types import MappingProxyType

from shared.sampling.baseline import LEVEL_DAYS, Point, expect

SCORE_MAX = 3.4
"""Standard errors from the expectation beyond which a day is out of the ordinary.

On made-up series 0.4 % of ordinary days are; 3.1 would make it 0.8 %, and find a tenth more of the
losses of 15 %, and hardly more of the larger ones.
"""
RATE_CHANGE_MIN = 1.25
LOSS_SEEN_MAX = 0.7
"""Where only larger losses would show, a fall proves nothing."""
FLOOR = 1e-3
"""Of the median: what is lower counts as that, so that nothing at all has a logarithm."""
RELATIVE_ERROR_MAX = 10.0
"""A larger one says no more than this."""
LOG_SHARE_MAX = 100.0
ACCEPT_AFTER_DAYS = 28
ACCEPT_AFTER_DAYS_UNCONTROLLED = 7

Evidence = Mapping[str, float | str | None]
NOTHING: Evidence = MappingProxyType({})


class Finding(StrEnum):
    NORMAL = "normal"
    SAMPLING_CHANGED = "sampling changed"
    EVENTS_LOST = "events lost"
    TRAFFIC_CHANGED = "traffic changed"
    UNCERTAIN = "uncertain"


@dataclass(frozen=True, slots=True)
class Day:
    """The figures of one event on one day; a day without records has the value 0.

    ``value`` is the adjusted count or sum; standard error in its unit. ``control`` is the day's
    figure of the control series in any unit, None where it is not known.
    """

    day: date
    value: float
    standard_error: float = 0
    effective_records: float = math.inf
    sampling_rate_percent: float | None = None
    control: float | None = None
    trusted: bool = True
    """False where weights cannot be trusted."""
    excluded: bool = False
    """True where the day tells nothing of later ones, such as one of known loss."""

    @property
    def relative_variance(self) -> float:
        """Of counting and sampling together; 0 where nothing was kept."""
        if self.value <= 0 or self.effective_records <= 0:
            return 0.0
        relative_error = min(self.standard_error / self.value, RELATIVE_ERROR_MAX)
        return max(1 / max(self.effective_records, 1.0), relative_error**2)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found, why, and the numbers behind it. Shares and ratios have no unit."""

    day: date
    finding: Finding
    reason: str
    evidence: Evidence = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True)
class _Tests:
    """None where there is too little history, or no control."""

    by_value: _Test | None
    by_control: _Test | None
    of_control: _Test | None


@dataclass(frozen=True, slots=True)
class _Test:
    """One comparison: the share of what was expected, and its distance in standard errors."""

    share: float
    score: float
    smallest_loss: float
    """The smallest loss that it would have called one, as a share."""

    @property
    def low(self) -> bool:
        return self.score < -SCORE_MAX

    @property
    def high(self) -> bool:
        return self.score > SCORE_MAX


def judge_all(days: Sequence[Day], holidays: Collection[date] = ()) -> tuple[Verdict, ...]:
    """One verdict a day, in order of days. Days of loss do not become the new normal at once.

    They are left out of the baseline, until the loss has lasted for so long that it is either known
    or none: four weeks, or one week without a control series.
    """
    verdicts: list[Verdict] = []
    history: list[Day] = []
    run = 0
    for day in sorted(days, key=lambda d: d.day):
        verdict = judge(day, history, holidays)
        run = run + 1 if verdict.finding is Finding.EVENTS_LOST else 0
        limit = ACCEPT_AFTER_DAYS_UNCONTROLLED if day.control is None else ACCEPT_AFTER_DAYS
        history.append(replace(day, excluded=day.excluded or 0 < run <= limit))
        verdicts.append(verdict)
    return tuple(verdicts)


def judge(today: Day, history: Sequence[Day], holidays: Collection[date] = ()) -> Verdict:
    """``history`` holds days before; others in it are passed over. Ten weeks are enough."""
    before = [d for d in history if d.day < today.day and not d.excluded]
    tests = _tests(today, before)
    usual_rate = _usual_rate(before)
    finding, reason = _find(today, tests, today.day in holidays)
    if finding is Finding.NORMAL and _rate_changed(today.sampling_rate_percent, usual_rate):
        finding = Finding.SAMPLING_CHANGED
        reason = (
            f"{today.sampling_rate_percent:.3g} % of records were kept, {usual_rate:.3g} % before; "
            f"adjusted for that the day is as expected"
        )
    return Verdict(today.day, finding, reason, _evidence(today, tests, usual_rate))


def _find(today: Day, tests: _Tests, holiday: bool) -> tuple[Finding, str]:
    if tests.by_value is None:
        return Finding.UNCERTAIN, "too little history of this weekday to compare with"
    if tests.by_control is not None:
        return _find_with_control(today, tests, tests.by_value, tests.by_control)
    expected = f"{tests.by_value.share:.0%} of what was expected"
    if tests.by_value.high:
        return Finding.TRAFFIC_CHANGED, expected
    if not tests.by_value.low:
        return _nothing_seen(tests.by_value)
    if holiday:
        return Finding.UNCERTAIN, f"{expected} on a holiday, and no control series to compare with"
    return _fallen(
        today, tests.by_value, f"{expected}; no control series to tell it from less traffic"
    )


def _find_with_control(
    today: Day, tests: _Tests, by_value: _Test, by_control: _Test
) -> tuple[Finding, str]:
    expected = f"{by_value.share:.0%} of what was expected"
    against = f"{by_control.share:.0%} of what the control series lets expect"
    control_rose = tests.of_control is not None and tests.of_control.high
    if by_control.low and control_rose and not by_value.low:
        return Finding.UNCERTAIN, f"{against}, as the control series rose and this one did not"
    if by_control.low:
        return _fallen(today, by_control, against)
    if by_control.high and not by_value.high:
        return Finding.UNCERTAIN, f"{against}: the control series fell and this one did not"
    if by_control.high:
        return Finding.TRAFFIC_CHANGED, f"{expected}, and {against}"
    if by_value.low or by_value.high:
        return Finding.TRAFFIC_CHANGED, f"{expected}, and the control series changed alike"
    return _nothing_seen(by_control)


def _fallen(today: Day, test: _Test, reason: str) -> tuple[Finding, str]:
    if test.smallest_loss > LOSS_SEEN_MAX:
        return Finding.UNCERTAIN, f"{reason}; there are too few records to tell"
    if not today.trusted:
        return Finding.UNCERTAIN, f"{reason}; weights cannot be trusted, so it may be sampling"
    return Finding.EVENTS_LOST, reason


def _nothing_seen(test: _Test) -> tuple[Finding, str]:
    if test.smallest_loss > LOSS_SEEN_MAX:
        loss = f"only a loss above {test.smallest_loss:.0%} would show"
        return Finding.UNCERTAIN, f"days differ too much to tell: {loss}"
    return Finding.NORMAL, f"{test.share:.0%} of what was expected"


def _tests(today: Day, before: Sequence[Day]) -> _Tests:
    """The control's own test tells whether a ratio moved because the control did."""
    by_value = _compare(today, _logs([(d, d.value) for d in (*before, today)]))
    controls = [(d, d.control) for d in (*before, today) if d.control is not None]
    if today.control is None or by_value is None:
        return _Tests(by_value, None, None)
    values = [(d, d.value) for d in (*before, today) if d.control is not None]
    ratios = [
        replace(value, log_value=value.log_value - control.log_value)
        for value, control in zip(_logs(values), _logs(controls), strict=False)
    ]
    of_control = [replace(point, variance=0) for point in _logs(controls)]
    return _Tests(by_value, _compare(today, ratios), _compare(today, of_control))


def _logs(figures: Sequence[tuple[Day, float]]) -> list[Point]:
    """None of a series that is mostly zero: it has no level to fall from."""
    floor = FLOOR * median([value for _, value in figures]) if figures else 0.0
    if floor <= 0:
        return []
    return [Point(d.day, math.log(max(value, floor)), d.relative_variance) for d, value in figures]


def _compare(today: Day, points: Sequence[Point]) -> _Test | None:
    """The last point against those before it.

    Sampling error is that of the expected figure: a fall must not excuse itself.
    """
    expected = expect(points[:-1], today.day) if points else None
    if expected is None:
        return None
    distance = min(points[-1].log_value - expected.log_value, LOG_SHARE_MAX)
    spread = expected.spread_with(points[-1].variance * min(math.exp(distance), 1.0))
    return _Test(math.exp(distance), distance / spread, 1 - math.exp(-SCORE_MAX * spread))


def _usual_rate(before: Sequence[Day]) -> float | None:
    latest = sorted(before, key=lambda d: d.day)[-LEVEL_DAYS:]
    rates = [d.sampling_rate_percent for d in latest if d.sampling_rate_percent is not None]
    return median(rates) if rates else None


def _rate_changed(rate: float | None, usual: float | None) -> bool:
    if rate is None or usual is None:
        return False
    return max(rate, usual) > RATE_CHANGE_MIN * min(rate, usual)


def _evidence(today: Day, tests: _Tests, usual_rate: float | None) -> Evidence:
    found: dict[str, float | str | None] = {
        "value": today.value,
        "sampling_rate_percent": today.sampling_rate_percent,
        "usual_sampling_rate_percent": usual_rate,
        "control": today.control,
        "score_max": SCORE_MAX,
    }
    by_name = {
        "by_value": tests.by_value,
        "by_control": tests.by_control,
        "of_control": tests.of_control,
    }
    for name, test in by_name.items():
        if test is not None:
            found[f"share_{name}"] = test.share
            found[f"score_{name}"] = test.score
            found[f"smallest_loss_{name}"] = test.smallest_loss
    return found
