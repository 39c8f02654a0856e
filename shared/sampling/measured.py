"""Whether what was measured fits what was counted: values can get lost while records still come.

A chart of a measurement is the sum of measurement times item count. It falls when events are lost,
which the count shows as well, and when values are, which it does not: senders leave them out, or
cut them. So the sum is held against its own count, as that is held against its control: a holiday
moves both, and so does whatever is wrong about weights.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from shared.sampling.baseline import MEMORY_DAYS
from shared.sampling.comparison import Day, Test, Tests, compare
from shared.sampling.verdict import (
    Evidence,
    Verdict,
    VerdictKind,
    evidence_of,
    fell_alone,
    nothing_seen,
    rose_alone,
    too_few_records,
    why_unknown,
)

COUNT, SUM, BOTH = "count", "sum", "count and sum"


@dataclass(frozen=True, slots=True)
class CombinedVerdict:
    """The finding of a day, and which figure it is about: the count, the sum, or both."""

    kind: VerdictKind
    figure: str
    reason: str
    evidence: Evidence


def judge_measured(
    today: Day,
    history: Sequence[Day],
    holidays: Collection[date] = (),  # noqa: ARG001  they move the count alike
    *,
    lasting: bool = False,
) -> Verdict:
    """``value`` of a day is the adjusted sum, ``control`` the adjusted count. See ``judge``."""
    since = today.day - timedelta(days=MEMORY_DAYS)
    before = [d for d in history if since <= d.day < today.day and not d.excluded]
    if any(d.value < 0 for d in (*before, today)):
        reason = "it is negative on some days, so a share of it means nothing"
        return Verdict(today.day, VerdictKind.UNCERTAIN, reason)
    tests = compare(today, before, lasting)
    finding, reason = _find(tests, before)
    return Verdict(today.day, finding, reason, evidence_of(today, tests, None))


def _find(tests: Tests, before: Sequence[Day]) -> tuple[VerdictKind, str]:
    by_value, ratio = tests.by_value, tests.by_control
    if by_value is None or ratio is None:
        return VerdictKind.UNCERTAIN, why_unknown(before)
    expected = f"{ratio.share:.0%} of what the count lets expect"
    if ratio.low and rose_alone(by_value, tests.of_control):
        return VerdictKind.UNCERTAIN, f"{expected}, as the count rose and the sum did not"
    if ratio.low or fell_alone(by_value, ratio, tests.of_control):
        return _fallen(ratio, expected)
    if ratio.high and by_value.high:
        return VerdictKind.MEASUREMENT_CHANGED, expected
    if ratio.high:
        return VerdictKind.UNCERTAIN, f"{expected}, as the count fell and the sum did not"
    kind, reason = nothing_seen(ratio)
    return kind, expected if kind is VerdictKind.NORMAL else reason


def _fallen(ratio: Test, expected: str) -> tuple[VerdictKind, str]:
    if too_few_records(ratio):
        return VerdictKind.UNCERTAIN, f"{expected}; there are too few records to tell"
    return VerdictKind.MEASUREMENT_LOST, f"{expected}: values are missing, or have become smaller"


def combined(count: Verdict, measured: Verdict | None, measurement: str) -> CombinedVerdict:
    """One finding of both verdicts; ``measured`` is None where nothing was ever measured.

    Lost events come first, then lost values, then whatever else moved.
    """
    if measured is None:
        return CombinedVerdict(count.kind, COUNT, count.reason, count.evidence)
    reason = (
        f"count and sum of {measurement}: {count.reason}"
        if count.reason == measured.reason
        else f"count: {count.reason}; sum of {measurement}: {measured.reason}"
    )
    finding, figure = _leading(count.kind, measured.kind)
    return CombinedVerdict(finding, figure, reason, {**count.evidence, **_named(measured.evidence)})


def _leading(count: VerdictKind, measured: VerdictKind) -> tuple[VerdictKind, str]:
    if count is VerdictKind.EVENTS_LOST:
        return count, BOTH if measured in (
            VerdictKind.NORMAL,
            VerdictKind.MEASUREMENT_LOST,
        ) else COUNT
    if measured is VerdictKind.MEASUREMENT_LOST:
        return measured, SUM
    if measured is VerdictKind.MEASUREMENT_CHANGED and count is not VerdictKind.TRAFFIC_CHANGED:
        return measured, SUM
    fits = measured is VerdictKind.NORMAL and count is not VerdictKind.UNCERTAIN
    return count, BOTH if fits or measured is count else COUNT


def _named(evidence: Evidence) -> Evidence:
    return {f"sum_{name}": value for name, value in evidence.items() if value is not None}
