"""Judges the sum of a measurement against the count, because values can be lost while records are
not.

The sum of a measurement falls when events are lost, which the count also shows. It also falls when
senders omit or truncate values, which the count does not show. Therefore the count serves as the
control series of the sum: a holiday or wrong weights move both.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date

from shared.sampling.comparison import Day, Tests, at_same_age, compare, unread_explains
from shared.sampling.verdict import (
    UNUSUAL,
    Evidence,
    Judgement,
    Verdict,
    VerdictKind,
    evidence_of,
    fallen,
    fell_alone,
    nothing_seen,
    rose_alone,
    why_unknown,
)

COUNT, SUM, BOTH = "count", "sum", "count and sum"


def judge_measured(
    today: Day,
    history: Sequence[Day],
    holidays: Collection[date] = (),  # noqa: ARG001  a holiday moves the count, too
    *,
    lasting: bool = False,
) -> Verdict:
    """Like ``judge``, with the adjusted sum as ``value`` and the adjusted count as ``control``."""
    same = at_same_age(today, history)
    today, before = same.today, same.before
    if any(d.value < 0 for d in (*before, today)):
        reason = "the sum is negative on some days, so its ratio to the count has no meaning"
        return Verdict(today.day, VerdictKind.UNCERTAIN, reason)
    tests = compare(today, before, lasting)
    kind, reason = _judge(tests, before)
    if kind in UNUSUAL and unread_explains(today, before, tests.by_control):
        kind, reason = VerdictKind.UNCERTAIN, f"{reason}; what is missing may be unreadable values"
    return Verdict(today.day, kind, reason, evidence_of(today, tests, None))


def _judge(tests: Tests, before: Sequence[Day]) -> Judgement:
    by_value, ratio = tests.by_value, tests.by_control
    if by_value is None or ratio is None:
        return VerdictKind.UNCERTAIN, why_unknown(before)
    expected = f"{ratio.share:.0%} of what the count suggests"
    if ratio.low and rose_alone(by_value, tests.of_control):
        return VerdictKind.UNCERTAIN, f"{expected}, because the count rose and the sum did not"
    if ratio.low or fell_alone(by_value, ratio, tests.of_control):
        smaller = f"{expected}: values are missing or have become smaller"
        return fallen(ratio, expected, (VerdictKind.MEASUREMENT_LOST, smaller))
    if ratio.high and by_value.high:
        return VerdictKind.MEASUREMENT_CHANGED, expected
    if ratio.high:
        return VerdictKind.UNCERTAIN, f"{expected}, because the count fell and the sum did not"
    kind, reason = nothing_seen(ratio)
    return kind, expected if kind is VerdictKind.NORMAL else reason


def combined(count: Verdict, measured: Verdict | None, measurement: str) -> Verdict:
    """Combine both verdicts. ``measured`` is None if the event never had the measurement.

    Lost events take precedence over lost values, and both take precedence over any other change.
    """
    if measured is None:
        return count
    reason = (
        f"count and sum of {measurement}: {count.reason}"
        if count.reason == measured.reason
        else f"count: {count.reason}; sum of {measurement}: {measured.reason}"
    )
    kind, figure = _leading(count.kind, measured.kind)
    evidence = {**count.evidence, **_named(measured.evidence)}
    return Verdict(count.day, kind, reason, evidence, figure)


def _leading(count: VerdictKind, measured: VerdictKind) -> Judgement:
    if count is VerdictKind.EVENTS_LOST:
        fits = measured in (VerdictKind.NORMAL, VerdictKind.MEASUREMENT_LOST)
        return count, BOTH if fits else COUNT
    if measured is VerdictKind.MEASUREMENT_LOST:
        return measured, SUM
    if measured is VerdictKind.MEASUREMENT_CHANGED and count is not VerdictKind.TRAFFIC_CHANGED:
        return measured, SUM
    fits = measured is VerdictKind.NORMAL and count is not VerdictKind.UNCERTAIN
    return count, BOTH if fits or measured is count else COUNT


def _named(evidence: Evidence) -> Evidence:
    return {f"sum_{name}": value for name, value in evidence.items() if value is not None}
