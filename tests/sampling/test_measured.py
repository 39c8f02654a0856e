"""Detecting lost values of a measurement at an unchanged count, and verdicts on both figures."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import numpy as np
import pytest

from bench.made_up_series import Measured
from shared.sampling.comparison import Day
from shared.sampling.estimates import Sums
from shared.sampling.measured import combined, judge_measured
from shared.sampling.series import BlobDate, DaySums, Series, Shape
from shared.sampling.trend_rows import Trend, trend_row
from shared.sampling.trends import TrendInputs, trends_of
from shared.sampling.verdict import Verdict, VerdictKind, judge_all
from shared.trends.nightly.trend_news import trend_conditions, trend_notices
from shared.trends.store.trends import trend_of
from shared.web import panels
from spark_jobs.publish.pictures import pictures
from tests.builders import trend_from_json

START = date(2017, 1, 2)
WEEK = (1.0, 1.05, 1.1, 1.05, 0.95, 0.45, 0.4)
WIGGLE = (0.02, -0.03, 0.01, 0.03, -0.02, -0.01, 0.025, -0.015, 0.0)
MEAN = (0.01, 0.0, -0.02, 0.015, -0.01, 0.02, -0.015, 0.005, 0.0, -0.005, 0.0)
TODAY = 56
LOST, CHANGED = VerdictKind.MEASUREMENT_LOST, VerdictKind.MEASUREMENT_CHANGED


def count(index: int, share: float = 1.0) -> float:
    return 10_000 * WEEK[index % 7] * math.exp(WIGGLE[index % len(WIGGLE)]) * share


def day(index: int, values: float = 1.0, share: float = 1.0) -> Day:
    """About 10,000 records with a mean of 2.5. ``values`` scales the sum, ``share`` the count."""
    items = count(index, share)
    mean = 2.5 * math.exp(MEAN[index % len(MEAN)])
    return Day(
        START + timedelta(days=index),
        value=items * mean * values,
        effective_records=items,
        control=items,
    )


def days(number: int = TODAY) -> list[Day]:
    return [day(index) for index in range(number)]


@pytest.mark.parametrize("left", [0.0, 0.3, 0.7])
def test_missing_values_at_an_unchanged_count_are_a_lost_measurement(left: float) -> None:
    verdict = judge_measured(day(TODAY, left), days())
    assert verdict.kind is LOST
    assert "of what the count suggests" in verdict.reason


@pytest.mark.parametrize(
    ("values", "share", "kind"),
    [
        (1.0, 1.0, VerdictKind.NORMAL),
        (1.0, 0.3, VerdictKind.NORMAL),  # events are lost: the sum fell with the count
        (1.0, 3.0, VerdictKind.NORMAL),
        (2.0, 1.0, CHANGED),
        (0.3, 0.3, LOST),
        (0.3, 1 / 0.3, VerdictKind.UNCERTAIN),  # there may be many small values in addition
        (1 / 0.3, 0.3, VerdictKind.UNCERTAIN),  # the large values may all still be there
    ],
)
def test_the_sum_is_judged_relative_to_the_count(
    values: float, share: float, kind: VerdictKind
) -> None:
    assert judge_measured(day(TODAY, values, share), days()).kind is kind


def test_a_permanent_decrease_of_a_measurement_is_normal_after_a_week() -> None:
    series = [*days(), *[day(index, 0.5) for index in range(TODAY, 77)]]
    kinds = [verdict.kind for verdict in judge_all(series, by=judge_measured)]
    assert set(kinds[TODAY : TODAY + 7]) == {LOST}
    assert set(kinds[TODAY + 8 :]) == {VerdictKind.NORMAL}


def test_unreported_sampling_is_not_a_loss_of_values() -> None:
    """It moves count and sum alike."""
    unknown = replace(day(TODAY, 1.0, 0.25), trusted=False)
    assert judge_measured(unknown, days()).kind is VerdictKind.NORMAL


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ([], "too little history"),
        ([replace(d, value=0.0) for d in days()], "there is no level to compare with"),
        ([replace(d, value=-d.value) for d in days()], "negative"),
    ],
)
def test_a_day_that_cannot_be_compared_is_uncertain(history: list[Day], reason: str) -> None:
    verdict = judge_measured(day(TODAY, 0.3), history)
    assert verdict.kind is VerdictKind.UNCERTAIN
    assert reason in verdict.reason


FIGURES = (0.0, -5.0, 5e-324, 1.0, 10.0, 1e12, 1e308)


@pytest.mark.parametrize("seed", range(10))
def test_every_day_of_any_series_gets_a_finite_verdict(seed: int) -> None:
    choose = random.Random(seed)
    series = [
        Day(
            START + timedelta(days=index),
            value=choose.choice(FIGURES),
            standard_error=choose.choice((0.0, 1.0, 1e308)),
            effective_records=choose.choice((0.0, 1.0, 1e6, math.inf)),
            control=choose.choice((0.0, 5e-324, 1.0, 1e308)),
        )
        for index in range(70)
    ]
    verdicts = judge_all(series, by=judge_measured)
    assert all(verdict.reason for verdict in verdicts)
    numbers = [v for verdict in verdicts for v in verdict.evidence.values()]
    assert all(math.isfinite(number) for number in numbers if isinstance(number, float))


# --- the combined verdict ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_count", "of_sum", "kind", "figure"),
    [
        (VerdictKind.NORMAL, VerdictKind.NORMAL, VerdictKind.NORMAL, "count and sum"),
        (VerdictKind.NORMAL, LOST, LOST, "sum"),
        (VerdictKind.SAMPLING_CHANGED, LOST, LOST, "sum"),
        (VerdictKind.UNCERTAIN, LOST, LOST, "sum"),
        (VerdictKind.TRAFFIC_CHANGED, LOST, LOST, "sum"),
        (VerdictKind.EVENTS_LOST, LOST, VerdictKind.EVENTS_LOST, "count and sum"),
        (VerdictKind.EVENTS_LOST, VerdictKind.NORMAL, VerdictKind.EVENTS_LOST, "count and sum"),
        (VerdictKind.EVENTS_LOST, VerdictKind.UNCERTAIN, VerdictKind.EVENTS_LOST, "count"),
        (VerdictKind.EVENTS_LOST, CHANGED, VerdictKind.EVENTS_LOST, "count"),
        (VerdictKind.NORMAL, CHANGED, CHANGED, "sum"),
        (VerdictKind.TRAFFIC_CHANGED, CHANGED, VerdictKind.TRAFFIC_CHANGED, "count"),
        (
            VerdictKind.TRAFFIC_CHANGED,
            VerdictKind.NORMAL,
            VerdictKind.TRAFFIC_CHANGED,
            "count and sum",
        ),
        (VerdictKind.NORMAL, VerdictKind.UNCERTAIN, VerdictKind.NORMAL, "count"),
        (VerdictKind.UNCERTAIN, VerdictKind.UNCERTAIN, VerdictKind.UNCERTAIN, "count and sum"),
        (VerdictKind.UNCERTAIN, VerdictKind.NORMAL, VerdictKind.UNCERTAIN, "count"),
        (VerdictKind.NORMAL, None, VerdictKind.NORMAL, "count"),
    ],
)
def test_a_combined_verdict_names_the_figure_that_it_is_about(
    of_count: VerdictKind, of_sum: VerdictKind | None, kind: VerdictKind, figure: str
) -> None:
    measured = Verdict(START, of_sum, "b", {"value": 1.0}) if of_sum else None
    verdict_of_both = combined(Verdict(START, of_count, "a", {"value": 2.0}), measured, "Amount")
    assert (verdict_of_both.kind, verdict_of_both.figure) == (kind, figure)
    assert verdict_of_both.reason == ("count: a; sum of Amount: b" if measured else "a")
    assert verdict_of_both.evidence == {"value": 2.0, **({"sum_value": 1.0} if measured else {})}


# --- from sums to trends, notifications, and the page ------------------------------------------

ORDERS, OTHERS = Series("event", "OrderPlaced"), Series("event", "PageViewed")


def trends(
    left: float,
    measurement: str = "Amount",
    unread: Sequence[int] = (),
    last: BlobDate | None = None,
    formats: Mapping[str, str] | None = None,
    **more: int,
) -> list[Trend]:
    """The trends of 57 days, where the last day has this share of its values. Page views have no
    amount."""
    known = [START + timedelta(days=index) for index in range(TODAY + 1) if index not in unread]
    sums: dict[tuple[str, Series], DaySums] = {}
    for index in range(TODAY + 1):
        at, items = str(START + timedelta(days=index)), round(count(index))
        amount = day(index, left if index == TODAY else 1.0).value
        valued = items if left or index < TODAY else 0
        same: dict[str, Any] = {"weight_sum": items, "weight_square_sum": items, "weight_max": 1}
        if index == TODAY:
            same |= more
        valued_sums = Sums(items, valued=valued, adjusted_sum=amount, raw_sum=amount, **same)
        sums[at, ORDERS] = DaySums(valued_sums)
        sums[at, OTHERS] = DaySums(Sums(items, **same))
    read = {str(each): BlobDate(records={str(each): 1}) for each in known}
    if last is not None:
        read[str(START + timedelta(days=TODAY))] = last
    inputs = TrendInputs(Shape(measurement), read, date(2017, 7, 1), unreadable=formats or {})
    return trends_of(sums, inputs)


def last_trend(rows: list[Trend], series: Series = ORDERS) -> Trend:
    last = str(START + timedelta(days=TODAY))
    (trend,) = [trend for trend in rows if trend.event == series.event and trend.date == last]
    return trend


@pytest.mark.parametrize("left", [0.3, 0.0])
def test_a_lost_measurement_is_stored_notified_and_shown_on_the_page(left: float) -> None:
    rows = trends(left)
    trend = last_trend(rows)
    assert (trend.verdict, trend.figure) == ("measurement lost", "sum")
    assert (trend.count_verdict, trend.sum_verdict) == ("normal", "measurement lost")
    assert "sum of Amount: " in trend.reason
    assert trend_of(trend_row(trend)) == trend
    (news,) = trend_notices(rows)
    assert news.headline == "OrderPlaced Amount: values of Amount of 2017-02-27 are missing"
    assert news.data["figure"] == "sum"
    shown = panels.trends([each for each in rows if each.event == "OrderPlaced"])
    assert (shown[0]["alarm"], shown[0]["figure"]) == (True, "sum")
    assert shown[0]["days"][0]["adjusted"] == pytest.approx(day(0).value)  # the chart shows sums
    (found,) = trend_conditions(rows)
    assert (found.what, found.meaning) == (news.headline, trend.reason)
    assert found.todo == "Check that the sender is still sending Amount."
    page = next(text for name, text in pictures(rows).items() if name.endswith("html"))
    assert b"measurement lost" in page


def test_an_event_without_the_measurement_is_judged_by_its_count_alone() -> None:
    rows = trends(0.3)
    others = last_trend(rows, OTHERS)
    assert (others.verdict, others.figure, others.sum_verdict) == ("normal", "count", "")
    assert "sum" not in others.reason
    counted = last_trend(trends(0.3, measurement=""))
    assert (counted.verdict, counted.figure, counted.sum_verdict) == ("normal", "count", "")


def test_both_figures_of_an_incomplete_date_are_uncertain() -> None:
    trend = last_trend(trends(0.3, unread=[TODAY]))
    verdicts = (trend.verdict, trend.count_verdict, trend.sum_verdict)
    assert verdicts == ("uncertain", "uncertain", "uncertain")
    assert trend.reason.startswith("count and sum of Amount: not all files of this date")


def test_values_that_could_not_be_read_are_not_called_lost() -> None:
    half = round(count(TODAY)) // 2
    trend = last_trend(trends(0.5, last=BlobDate(bad_values=half)))
    assert (trend.count_verdict, trend.sum_verdict) == ("normal", "uncertain")
    assert "what is missing may be unreadable values" in trend.reason
    assert trend.warnings == (f"{half} values of this date's files could not be read",)
    assert last_trend(trends(0.5, last=BlobDate(bad_values=9))).verdict == "measurement lost"


def test_a_date_with_a_damaged_file_is_not_complete() -> None:
    trend = last_trend(trends(0.3, last=BlobDate(quarantined=2, damaged=1)))
    assert (trend.complete, trend.verdict) == (False, "uncertain")
    assert "1 files of this date are damaged" in trend.warnings


def test_dates_in_another_format_are_not_compared_with_the_present_ones() -> None:
    formats = {str(START + timedelta(days=index)): "blocks-2" for index in range(TODAY)}
    trend = last_trend(trends(0.3, formats=formats))
    assert (trend.count_verdict, trend.sum_verdict) == ("uncertain", "uncertain")
    assert "counted by another key" in trend.reason


def test_rows_without_the_two_separate_verdicts_can_still_be_read() -> None:
    new = Trend("2017-05-15", "a", "event", verdict="events lost")
    row = {
        name: value
        for name, value in trend_row(new).items()
        if name not in ("figure", "count_verdict", "sum_verdict")
    }
    assert trend_of(row) == new
    line = '{"date": "2017-05-15", "event": "a", "kind": "event", "warnings": []}'
    trend = trend_from_json(line)
    assert (trend.figure, trend.sum_verdict) == ("count", "")


# --- many series ----------------------------------------------------------------------------


def test_with_heavy_tails_false_alarms_are_rare_and_most_losses_are_detected() -> None:
    rng = np.random.default_rng(4)
    counts = Counter[str]()
    for _ in range(40):
        world = Measured(rng)
        usual = [world.day(index) for index in range(70)]
        for index in range(50, 70):
            counts["ordinary"] += 1
            counts["alarms"] += judge_measured(usual[index], usual[:index]).kind is LOST
        for index in (52, 61, 69):
            counts["losses"] += 1
            lost = world.day(index, values=0.7)
            counts["detected"] += judge_measured(lost, usual[:index]).kind is LOST
    assert counts["alarms"] / counts["ordinary"] <= 0.005
    assert counts["detected"] / counts["losses"] >= 0.9
