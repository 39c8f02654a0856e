"""Verdicts on single days and series, and their quality on many synthetic series."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import numpy as np
import pytest

from bench.made_up_series import MadeUp
from shared.sampling.baseline import Point, expect
from shared.sampling.comparison import SCORE_MAX, Day
from shared.sampling.verdict import Verdict, VerdictKind, judge, judge_all

START = date(2017, 1, 2)
WEEK = (1.0, 1.05, 1.1, 1.05, 0.95, 0.45, 0.4)
WIGGLE = (0.02, -0.03, 0.01, 0.03, -0.02, -0.01, 0.025, -0.015, 0.0)


def day(
    index: int, share: float = 1.0, *, rate: float = 100.0, control: float | None = None
) -> Day:
    """A day of a steady series of about 10,000. The shares scale the value and the control."""
    usual = 10_000 * WEEK[index % 7] * math.exp(WIGGLE[index % len(WIGGLE)])
    value, k = usual * share, 100 / rate
    return Day(
        day=START + timedelta(days=index),
        value=value,
        standard_error=math.sqrt(value * (k - 1)),
        effective_records=value / k,
        sampling_rate_percent=rate,
        control=None if control is None else 3 * usual * control,
    )


def days(count: int = 56, **kwargs: float) -> list[Day]:
    return [day(index, **kwargs) for index in range(count)]


def test_a_change_of_the_sampling_rate_is_not_a_loss() -> None:
    """The rate falls from 100 to 30 %: raw records fall, and the adjusted count does not."""
    verdict = judge(day(56, rate=30), days())
    assert verdict.kind is VerdictKind.SAMPLING_CHANGED
    assert verdict.reason.startswith("30 % of records were kept, 100 % before")
    assert verdict.evidence["usual_sampling_rate_percent"] == 100


@pytest.mark.parametrize(
    ("share", "control", "kind"),
    [
        *[(share, 1.0, VerdictKind.EVENTS_LOST) for share in (0.6, 0.3, 0.0)],
        *[(share, share, VerdictKind.TRAFFIC_CHANGED) for share in (0.0, 0.3, 1.8, 3.0)],
        (3.0, 1.0, VerdictKind.TRAFFIC_CHANGED),
        (0.3, 3.0, VerdictKind.EVENTS_LOST),
        (0.9, 1.5, VerdictKind.EVENTS_LOST),  # neither is unusual alone, but their ratio is
        *[(1.0, control, VerdictKind.UNCERTAIN) for control in (0.0, 1.5, 3.0)],
    ],
)
def test_the_verdict_depends_on_which_of_event_and_control_moved(
    share: float, control: float, kind: VerdictKind
) -> None:
    verdict = judge(day(56, share, control=control), days(control=1))
    assert verdict.kind is kind
    if kind is VerdictKind.EVENTS_LOST:
        score = verdict.evidence["score_by_control"]
        assert isinstance(score, float)
        assert score < -SCORE_MAX


def test_without_a_control_a_fall_is_a_loss_unless_the_day_is_a_holiday() -> None:
    verdict = judge(day(56, 0.4), days())
    assert verdict.kind is VerdictKind.EVENTS_LOST
    assert "without a control series, this may also be less traffic" in verdict.reason
    holiday = judge(day(56, 0.4), days(), holidays={START + timedelta(days=56)})
    assert holiday.kind is VerdictKind.UNCERTAIN


@pytest.mark.parametrize(("share", "trusted_before"), [(0.4, True), (2.5, True), (2.5, False)])
def test_untrusted_weights_make_a_change_uncertain(share: float, trusted_before: bool) -> None:
    """A rise may be the end of sampling that was not reported."""
    before = [replace(d, trusted=trusted_before) for d in days(control=1)]
    verdict = judge(replace(day(56, share, control=1), trusted=not trusted_before), before)
    assert verdict.kind is VerdictKind.UNCERTAIN
    assert "weights" in verdict.reason


SILENT = "from 13:00 to 24:00 (UTC)"


@pytest.mark.parametrize(
    ("share", "control", "changes", "kind", "reason"),
    [
        (0.5, 0.5, {"control_exported": True}, VerdictKind.UNCERTAIN, "the same export"),
        (2.0, 2.0, {"control_exported": True}, VerdictKind.TRAFFIC_CHANGED, "similar share"),
        (0.5, 1.0, {"control_exported": True}, VerdictKind.EVENTS_LOST, "suggests"),
        (0.5, 0.5, {"control_exported": True, "silent": SILENT}, VerdictKind.EVENTS_LOST, SILENT),
        (0.5, 0.5, {"silent": SILENT}, VerdictKind.TRAFFIC_CHANGED, SILENT),
        (0.5, 1.0, {"silent": SILENT}, VerdictKind.EVENTS_LOST, SILENT),
        (0.5, None, {"silent": SILENT}, VerdictKind.EVENTS_LOST, SILENT),
        (0.95, None, {"silent": SILENT}, VerdictKind.EVENTS_LOST, SILENT),
        (0.5, None, {"silent": SILENT, "trusted": False}, VerdictKind.EVENTS_LOST, SILENT),
        (0.5, None, {"silent": SILENT, "unread": 0.5}, VerdictKind.UNCERTAIN, "not be read"),
        (1.0, None, {"capped": True}, VerdictKind.UNCERTAIN, "daily cap"),
        (0.3, 1.0, {"capped": True}, VerdictKind.EVENTS_LOST, "suggests"),
    ],
)
def test_neither_a_shared_control_nor_the_count_hides_that_collection_stopped(
    share: float, control: float | None, changes: dict[str, Any], kind: VerdictKind, reason: str
) -> None:
    before = days() if control is None else days(control=1)
    verdict = judge(replace(day(56, share, control=control), **changes), before)
    assert (verdict.kind, reason in verdict.reason) == (kind, True), verdict.reason


def test_hours_without_telemetry_on_a_holiday_are_no_loss() -> None:
    today = replace(day(56, 0.4), silent=SILENT)
    verdict = judge(today, days(), holidays={today.day})
    assert verdict.kind is VerdictKind.UNCERTAIN
    assert SILENT in verdict.reason


@pytest.mark.parametrize(
    ("rate_before", "rate", "share", "exact", "kind", "reason"),
    [
        (100.0, 0.676, 148.0, True, VerdictKind.UNCERTAIN, "only their weights changed"),
        (25.0, 100.0, 0.25, True, VerdictKind.UNCERTAIN, "only their weights changed"),
        (100.0, 50.0, 3.0, True, VerdictKind.TRAFFIC_CHANGED, "sampling, which changed"),
        (25.0, 100.0, 0.1, True, VerdictKind.EVENTS_LOST, "sampling, which changed"),
        (25.0, 24.0, 0.4, True, VerdictKind.EVENTS_LOST, "of what was expected"),
        (1.0, 1.0, 0.4, True, VerdictKind.EVENTS_LOST, "of what was expected"),
        (100.0, 100.0, 0.75, False, VerdictKind.EVENTS_LOST, "rate from 67 to 100 %"),
        (100.0, 100.0, 1.33, False, VerdictKind.TRAFFIC_CHANGED, "rate from 67 to 100 %"),
        (100.0, 50.0, 1.33, False, VerdictKind.UNCERTAIN, "rate from 40 to 67 %"),
        (50.0, 50.0, 0.8, False, VerdictKind.EVENTS_LOST, "rate from 40 to 67 %"),
    ],
)
def test_a_change_that_weights_may_explain_is_not_believed_without_a_word(
    rate_before: float, rate: float, share: float, exact: bool, kind: VerdictKind, reason: str
) -> None:
    before = [replace(d, exact=exact) for d in days(rate=rate_before)]
    verdict = judge(replace(day(56, share, rate=rate), exact=exact), before)
    assert (verdict.kind, reason in verdict.reason) == (kind, True), verdict.reason


def test_a_few_records_may_differ_by_chance_from_what_rounded_weights_explain() -> None:
    """A rate of 40 % is written as 2, and of 80 expected records 68 arrived."""
    *before, today = (
        replace(
            each,
            value=each.value / 50,
            standard_error=each.standard_error / math.sqrt(50),
            effective_records=each.effective_records / 50,
            exact=False,
        )
        for each in (*days(), day(56, 0.68, rate=50))
    )
    verdict = judge(today, before)
    assert verdict.kind is VerdictKind.UNCERTAIN
    assert "rate from 40 to 67 %" in verdict.reason


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_rounded_weights_do_not_explain_a_larger_loss(share: float) -> None:
    before = [replace(d, exact=False) for d in days()]
    verdict = judge(replace(day(56, share), exact=False), before)
    assert verdict.kind is VerdictKind.EVENTS_LOST
    assert "rate" not in verdict.reason


@pytest.mark.parametrize(
    ("share", "known", "kind"),
    [
        (0.7, True, VerdictKind.NORMAL),
        (0.3, True, VerdictKind.EVENTS_LOST),
        (0.7, False, VerdictKind.EVENTS_LOST),  # nothing is known of earlier days
    ],
)
def test_a_day_is_compared_with_earlier_days_at_the_same_age(
    share: float, known: bool, kind: VerdictKind
) -> None:
    """Usually, 30 % of the event arrives on the next day. The control arrives at once."""
    arrived = (0.7, 1.0, 1.0) if known else ()
    before = [
        replace(d, arrived=arrived if index > 52 else ()) for index, d in enumerate(days(control=1))
    ]
    today = replace(day(56, share, control=1), age=0, arrived=(1.0, 1.0, 1.0))
    verdict = judge(today, before)
    assert verdict.kind is kind
    assert ("30% of a day's records usually arrive later" in verdict.reason) is known
    assert judge(replace(today, age=1), before).kind is VerdictKind.EVENTS_LOST
    settled = judge(day(56, control=1), before)
    assert (settled.kind, "later" in settled.reason) == (VerdictKind.NORMAL, False)


@pytest.mark.parametrize(
    ("left", "unread", "usually_unread", "kind"),
    [
        (0.5, 0.5, 0.0, VerdictKind.UNCERTAIN),
        (0.5, 0.3, 0.0, VerdictKind.UNCERTAIN),
        (0.5, 0.1, 0.0, VerdictKind.EVENTS_LOST),
        (0.5, 0.5, 0.5, VerdictKind.EVENTS_LOST),
        (0.0, 1.0, 0.01, VerdictKind.UNCERTAIN),
        (1.0, 0.9, 0.0, VerdictKind.NORMAL),
        (2.0, 0.9, 0.0, VerdictKind.TRAFFIC_CHANGED),
    ],
)
@pytest.mark.parametrize("control", [None, 1.0])
def test_a_fall_that_lines_which_could_not_be_read_may_explain_is_not_a_loss(
    left: float, unread: float, usually_unread: float, kind: VerdictKind, control: float | None
) -> None:
    history = [replace(day(n, control=control), unread=usually_unread) for n in range(56)]
    verdict = judge(replace(day(56, left, control=control), unread=unread), history)
    assert verdict.kind is kind
    assert ("could not be read" in verdict.reason) == (kind is VerdictKind.UNCERTAIN)


def test_days_counted_by_different_keys_are_not_compared() -> None:
    """The earlier key took two thirds of the records for copies."""
    old = [replace(day(n, 1 / 3), key="blocks-2") for n in range(56)]
    verdict = judge(day(56), old)
    assert verdict.kind is VerdictKind.UNCERTAIN
    assert "counted by another key" in verdict.reason
    assert judge(old[55], [*old[:55], *days(50)]).kind is VerdictKind.NORMAL
    both = [*old[:28], *[day(n) for n in range(28, 56)]]
    assert judge(day(56), both).kind is VerdictKind.NORMAL
    assert judge(day(56, 0.3), both).kind is VerdictKind.EVENTS_LOST


@pytest.mark.parametrize("first", [date.min, date.max - timedelta(days=3)])
def test_the_first_and_the_last_day_of_the_calendar_get_a_verdict(first: date) -> None:
    series = [replace(day(n), day=first + timedelta(days=n)) for n in range(3)]
    assert {verdict.kind for verdict in judge_all(series)} == {VerdictKind.UNCERTAIN}


@pytest.mark.parametrize(
    "history",
    [[], days(13), [replace(d, value=0.0) for d in days()], days()[:9] + days()[49:53]],
    ids=["none", "too short", "all zero", "gaps"],
)
def test_without_enough_history_the_verdict_is_uncertain(history: list[Day]) -> None:
    assert judge(day(56), history).kind is VerdictKind.UNCERTAIN


def test_a_fall_of_very_few_records_is_uncertain() -> None:
    few = [replace(d, value=4.0, effective_records=4.0, standard_error=0.0) for d in days()]
    today = replace(day(56), value=0.0, effective_records=0.0)
    assert judge(today, few).kind is VerdictKind.UNCERTAIN


def test_a_complete_loss_of_many_records_is_detected_however_much_days_differ() -> None:
    wild = [replace(d, value=d.value * (1, 6)[index % 2]) for index, d in enumerate(days())]
    assert "days differ too much" in judge(day(56), wild).reason
    assert judge(day(56, 0.01), wild).kind is VerdictKind.EVENTS_LOST


def test_a_long_loss_remains_a_loss_and_the_days_after_it_are_normal() -> None:
    series = [*days(56, control=1), *[day(i, 0.5, control=1) for i in range(56, 77)]]
    series += [day(i, control=1) for i in range(77, 91)]
    kinds = [verdict.kind for verdict in judge_all(series)]
    assert set(kinds[35:56]) == {VerdictKind.NORMAL}
    assert set(kinds[56:77]) == {VerdictKind.EVENTS_LOST}
    assert set(kinds[77:]) == {VerdictKind.NORMAL}


TRAFFIC, MEASURED = VerdictKind.TRAFFIC_CHANGED, VerdictKind.MEASUREMENT_CHANGED
LOSS, USUAL = VerdictKind.EVENTS_LOST, VerdictKind.NORMAL


@pytest.mark.parametrize(
    ("kinds", "control", "left_out"),
    [
        ([TRAFFIC] * 7, None, range(7)),
        ([TRAFFIC] * 8, None, ()),
        ([TRAFFIC] * 5 + [MEASURED] * 5, None, range(10)),
        ([TRAFFIC] * 5 + [LOSS] * 5 + [TRAFFIC] * 5, None, range(15)),
        ([TRAFFIC] * 5 + [USUAL] + [TRAFFIC] * 5, None, [*range(5), *range(6, 11)]),
        ([TRAFFIC] * 3 + [MEASURED] * 8, None, range(3)),
        ([LOSS] * 28, 1.0, range(28)),
        ([LOSS] * 29, 1.0, ()),
        ([LOSS] * 8, None, ()),
    ],
)
def test_unusual_days_enter_the_baseline_after_a_run_of_one_kind(
    kinds: list[VerdictKind], control: float | None, left_out: Sequence[int]
) -> None:
    told, seen = iter([*kinds, USUAL]), list[Day]()

    def scripted(today: Day, history: Sequence[Day], holidays: object, *, lasting: bool) -> Verdict:
        seen[:] = history
        return Verdict(today.day, next(told), "scripted")

    judge_all([day(n, control=control) for n in range(len(kinds) + 1)], by=scripted)
    assert [n for n, each in enumerate(seen) if each.excluded] == [*left_out]


def test_a_slow_fall_of_traffic_without_a_control_is_not_a_loss() -> None:
    series = [*days(), *[day(56 + i, 0.99 ** (i + 1)) for i in range(28)]]
    assert VerdictKind.EVENTS_LOST not in {verdict.kind for verdict in judge_all(series)}


def test_a_slow_loss_relative_to_the_control_is_detected() -> None:
    series = [*days(control=1), *[day(56 + i, 0.98 ** (i + 1), control=1) for i in range(28)]]
    kinds = [verdict.kind for verdict in judge_all(series)]
    assert set(kinds[70:]) == {VerdictKind.EVENTS_LOST}


def test_an_event_that_stops_is_a_loss_until_its_baseline_is_zero() -> None:
    series = [*days(control=1), *[day(56 + i, 0.0, control=1) for i in range(60)]]
    verdicts = judge_all(series)
    assert {verdict.kind for verdict in verdicts[56:84]} == {VerdictKind.EVENTS_LOST}
    assert verdicts[-1].kind is VerdictKind.UNCERTAIN
    assert "there is no level to compare with" in verdicts[-1].reason


def test_two_weeks_of_history_are_enough_to_detect_a_loss_of_half() -> None:
    kinds = [verdict.kind for verdict in judge_all([*days(15), day(15, 0.5), *days(24)[16:]])]
    assert set(kinds[:14]) == {VerdictKind.UNCERTAIN}
    assert kinds[14:] == [VerdictKind.NORMAL, VerdictKind.EVENTS_LOST, *[VerdictKind.NORMAL] * 8]


def test_a_day_of_23_or_25_hours_is_not_a_loss() -> None:
    """Such days occur when daylight saving time begins and ends."""
    for hours in (23, 25):
        assert judge(day(62, hours / 24), days(62)).kind is not VerdictKind.EVENTS_LOST


def test_the_reason_of_a_loss_also_mentions_a_change_of_the_sampling_rate() -> None:
    reason = judge(day(56, 0.5, rate=30), days()).reason
    assert "of what was expected" in reason
    assert "30 % of records were kept, 100 % before" in reason


def test_a_lasting_change_of_the_sampling_rate_is_normal_after_some_days() -> None:
    series = [*days(56), *[day(i, rate=30) for i in range(56, 70)]]
    kinds = [verdict.kind for verdict in judge_all(series)]
    assert set(kinds[56:59]) == {VerdictKind.SAMPLING_CHANGED}
    assert set(kinds[63:]) == {VerdictKind.NORMAL}


def test_a_control_may_have_another_weekday_pattern_than_the_event() -> None:
    """The control is busier on weekends, so the ratio has a weekday pattern of its own."""
    series = [
        replace(d, control=1000.0 * (1 + (index % 7 > 4)))
        for index, d in enumerate([*days(60), day(60, 0.5), day(61)])
    ]
    kinds = [verdict.kind for verdict in judge_all(series)]
    assert kinds[59:] == [VerdictKind.NORMAL, VerdictKind.EVENTS_LOST, VerdictKind.NORMAL]


def test_later_days_and_excluded_days_do_not_influence_the_verdict() -> None:
    future = [day(index, 0.1) for index in range(57, 90)]
    lost = [replace(day(index, 0.1), excluded=True) for index in range(49, 56)]
    verdict = judge(day(56), [*future, *days(49), *lost])
    assert verdict.kind is VerdictKind.NORMAL


def test_one_bad_week_hardly_moves_the_baseline() -> None:
    points = [Point(d.day, math.log(d.value)) for d in days()]
    bad = [
        replace(p, log_value=p.log_value - 3) if 20 <= i < 27 else p for i, p in enumerate(points)
    ]
    today = START + timedelta(days=56)
    clean, disturbed = expect(points, today), expect(bad, today)
    assert clean is not None
    assert disturbed is not None
    assert disturbed.log_value == pytest.approx(clean.log_value, abs=0.03)
    assert disturbed.spread < 2 * clean.spread


def test_the_spread_widens_only_if_the_sampling_error_is_larger_than_usual() -> None:
    points = [Point(d.day, math.log(d.value), 0.01) for d in days()]
    expected = expect(points, START + timedelta(days=56))
    assert expected is not None
    assert expected.spread >= 0.1
    assert expected.spread_with(0.005) == expected.spread
    assert expected.spread_with(0.04) == pytest.approx(math.sqrt(expected.spread**2 + 0.03))


FIGURES = (0.0, -5.0, 5e-324, 1e-223, 1.0, 10.0, 1e4, 1e12, 1e308)


def hostile_day(choose: random.Random, index: int) -> Day:
    return Day(
        day=START + timedelta(days=index),
        value=choose.choice(FIGURES),
        standard_error=choose.choice((0.0, 1.0, 1e308)),
        effective_records=choose.choice((0.0, 1e-9, 1.0, 1e6, math.inf)),
        sampling_rate_percent=choose.choice((None, 0.1, 100.0)),
        control=choose.choice((None, *FIGURES)),
        trusted=choose.random() < 0.5,
        excluded=choose.random() < 0.1,
    )


@pytest.mark.parametrize("seed", range(20))
def test_every_day_of_any_series_gets_a_finite_verdict(seed: int) -> None:
    choose = random.Random(seed)
    series = [hostile_day(choose, choose.randrange(70)) for _ in range(70)]
    verdicts = judge_all(series)
    assert [verdict.day for verdict in verdicts] == sorted([d.day for d in series])
    assert all(verdict.reason for verdict in verdicts)
    numbers = [v for verdict in verdicts for v in verdict.evidence.values() if v is not None]
    assert all(math.isfinite(number) for number in numbers if isinstance(number, float))


# --- many series, of the kind that ``python -m bench verdict`` measures -------------------------

HAPPENED: dict[str, dict[str, float]] = {
    **{f"loss of {percent} %": {"lost": percent / 100} for percent in (15, 30, 50, 100)},
    "holiday": {"traffic": 0.5},
}
Found = dict[tuple[str, bool], Counter[VerdictKind]]


@pytest.fixture(scope="module")
def found() -> Found:
    """The verdicts on 60 series by what happened, with and without a control. Nothing happened on
    14 days of each series."""
    rng, verdicts = (
        np.random.default_rng(2),
        defaultdict[tuple[str, bool], Counter[VerdictKind]](Counter),
    )
    for _ in range(60):
        world = MadeUp(rng, 84)
        usual = [world.day(index) for index in range(world.days)]
        today = [("nothing", index, usual[index]) for index in range(56, 84, 2)]
        for index in (60, 70, 83):
            today += [(name, index, world.day(index, **how)) for name, how in HAPPENED.items()]
            world.k *= 3
            today.append(("rate", index, world.day(index)))
            world.k //= 3
        for name, index, judged in today:
            verdicts[name, True][judge(judged, usual[:index]).kind] += 1
            alone = [replace(each, control=None) for each in (*usual[:index], judged)]
            verdicts[name, False][judge(alone[-1], alone[:-1]).kind] += 1
    return verdicts


@pytest.mark.parametrize(
    ("happened", "control", "kind", "least", "most"),
    [
        ("nothing", True, USUAL, 0.98, 1),
        ("nothing", False, USUAL, 0.98, 1),
        ("nothing", True, LOSS, 0, 0.007),
        ("nothing", False, LOSS, 0, 0.007),
        ("loss of 15 %", True, LOSS, 0.5, 1),
        ("loss of 30 %", True, LOSS, 0.8, 1),
        ("loss of 50 %", True, LOSS, 0.95, 1),
        ("loss of 100 %", True, LOSS, 0.99, 1),
        ("loss of 15 %", False, LOSS, 0.12, 1),
        ("loss of 30 %", False, LOSS, 0.6, 1),
        ("loss of 50 %", False, LOSS, 0.9, 1),
        ("loss of 100 %", False, LOSS, 0.99, 1),
        ("holiday", True, TRAFFIC, 0.88, 1),
        ("holiday", True, LOSS, 0, 0.01),
        ("rate", True, VerdictKind.SAMPLING_CHANGED, 0.95, 1),
        ("rate", False, VerdictKind.SAMPLING_CHANGED, 0.95, 1),
    ],
)
def test_verdicts_on_many_series_are_as_good_as_required(
    found: Found, happened: str, control: bool, kind: VerdictKind, least: float, most: float
) -> None:
    counts = found[happened, control]
    assert least <= counts[kind] / counts.total() <= most
