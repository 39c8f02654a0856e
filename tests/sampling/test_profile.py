"""The week's profile is the usual load, in local hours, and says where it had to guess."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.autoscaling.measurements import WeekProfile
from shared.sampling.profile import HOURS, HourCount, HourMethod, NoProfile, UsualWeek, week_profile

MONDAY = datetime(2017, 5, 1, tzinfo=UTC)
Load = Callable[[datetime], float | None]


def counts(load: Load, weeks: float = 8, until: datetime = MONDAY) -> list[HourCount]:
    """``load`` tells the items per minute at a time."""
    hours = int(weeks * HOURS)
    starts = [until - timedelta(hours=hour) for hour in range(1, hours + 1)]
    found = []
    for start in starts:
        parts = [load(start + timedelta(minutes=15 * quarter)) for quarter in range(4)]
        known = [part for part in parts if part is not None]
        items = sum(known) * 15 if len(known) == 4 else None
        found.append(HourCount(start, items, 1000))
    return found


def profile(load: Load, **kwargs: object) -> UsualWeek:
    found = week_profile(counts(load), MONDAY, **kwargs)  # type: ignore[arg-type]
    assert isinstance(found, UsualWeek)
    return found


def known(found: UsualWeek) -> list[float]:
    return [value for value in found.items_per_minute if value is not None]


def by_local_hour(time: datetime) -> float:
    return 10.0 + time.weekday() * 24 + time.hour


EXACT = tuple([10.0 + hour for hour in range(HOURS)])


def test_it_fits_the_profile_of_the_scaling_rules() -> None:
    found = profile(by_local_hour)
    floor = WeekProfile(found.items_per_minute, found.time_zone)
    assert len(floor.items_per_minute) == HOURS
    assert floor.items_per_minute == EXACT
    assert floor.time_zone == "UTC"
    assert not found.uncertain


@pytest.mark.parametrize(
    "time_zone",
    ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Asia/Kathmandu"],
)
def test_hours_are_local_also_across_a_clock_change(time_zone: str) -> None:
    """Berlin and New York changed their clocks within the eight weeks before 1 May 2017."""
    zone = ZoneInfo(time_zone)
    found = profile(lambda time: by_local_hour(time.astimezone(zone)), time_zone=time_zone)
    offset_has_parts = time_zone.startswith("Asia")
    tolerance = 1.0 if offset_has_parts else 0.0  # an hour in UTC tells not which half had more
    inner = [hour for hour in range(HOURS) if 1 <= hour % 24 <= 22]
    for hour in inner:
        assert found.items_per_minute[hour] == pytest.approx(EXACT[hour], abs=tolerance)


def test_one_odd_week_changes_nothing() -> None:
    odd = MONDAY - timedelta(weeks=3)

    def load(time: datetime) -> float:
        return 500.0 if odd <= time < odd + timedelta(weeks=1) else by_local_hour(time)

    assert profile(load).items_per_minute == EXACT


def test_an_hour_without_items_is_zero_and_an_unknown_one_is_none() -> None:
    quiet = profile(lambda time: 0.0 if time.hour == 3 else 60.0)
    assert quiet.items_per_minute[3] == 0
    gap = profile(lambda time: None if time.hour == 3 and time.weekday() == 0 else 60.0)
    assert gap.items_per_minute[3] is None
    assert gap.uncertain == {3: HourMethod.UNKNOWN}
    assert (gap.weeks[3], gap.weeks[4]) == (0, 8)


@pytest.mark.parametrize(
    ("unknown", "hour", "value", "how"),
    [
        (lambda t: t.weekday() == 1, 24 + 9, 9, HourMethod.LIKE_DAYS),
        (lambda t: t.weekday() >= 5, 5 * 24 + 9, 9, HourMethod.ANY_DAY),
        (lambda t: t.hour == 9, 9, 9, HourMethod.BETWEEN),
        (lambda t: t.hour in (8, 9), 9, 9, HourMethod.BETWEEN),
    ],
)
def test_hours_that_only_one_week_knows_are_filled_and_told(
    unknown: Callable[[datetime], bool], hour: int, value: float, how: HourMethod
) -> None:
    second_week = MONDAY - timedelta(weeks=7)
    found = profile(
        lambda time: None if unknown(time) and time >= second_week else float(time.hour)
    )
    assert found.weeks[hour] == 1
    assert found.items_per_minute[hour] == pytest.approx(value)
    assert found.methods[hour] is how


def test_an_hour_that_differs_from_week_to_week_is_told() -> None:
    def load(time: datetime) -> float:
        week = (MONDAY - time).days // 7
        return 100.0 * (1 + 3 * (week % 2)) if time.hour == 5 else 100.0

    assert set(profile(load).uncertain.values()) == {HourMethod.UNEVEN}


def test_little_and_sampled_is_not_taken_for_nothing() -> None:
    """One in ten of 300 an hour would do for a median; one in ten of 5 is mostly nothing at all."""
    rng = np.random.default_rng(3)
    sparse = []
    for hour in range(1, 8 * HOURS + 1):
        kept = int(rng.poisson(0.5))
        sparse.append(HourCount(MONDAY - timedelta(hours=hour), 10.0 * kept, kept))
    found = week_profile(sparse, MONDAY)
    assert isinstance(found, UsualWeek)
    assert set(found.methods) == {HourMethod.MEAN}
    assert sum(known(found)) / HOURS == pytest.approx(5 / 60, rel=0.1)


@pytest.mark.parametrize("weeks", [0, 1, 1.4])
def test_too_little_history_is_no_profile(weeks: float) -> None:
    found = week_profile(counts(by_local_hour, weeks), MONDAY)
    assert isinstance(found, NoProfile)
    assert "of the week's 168 hours are known from 2 weeks or more" in found.reason


def test_only_the_weeks_asked_for_count() -> None:
    old = counts(lambda _: 999.0, 8, MONDAY - timedelta(weeks=4))
    after = counts(lambda _: 999.0, 1, MONDAY + timedelta(weeks=1))
    found = week_profile([*old, *after, *counts(by_local_hour, 4)], MONDAY, weeks=4)
    assert isinstance(found, UsualWeek)
    assert found.items_per_minute == EXACT


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(ZoneInfoNotFoundError):
        week_profile([], MONDAY, "Middle/Earth")


@given(
    st.lists(st.none() | st.floats(0, 1e9), min_size=1, max_size=40),
    st.sampled_from(["UTC", "Asia/Kathmandu", "Europe/London"]),
)
def test_a_profile_is_whole_and_finite_or_none(loads: list[float | None], zone: str) -> None:
    given_counts = [
        HourCount(MONDAY - timedelta(hours=hour + 1), loads[hour % len(loads)], 20)
        for hour in range(3 * HOURS)
    ]
    found = week_profile(given_counts, MONDAY, zone)
    if isinstance(found, UsualWeek):
        assert len(found.items_per_minute) == len(found.methods) == len(found.weeks) == HOURS
        assert all(math.isfinite(value) and value >= 0 for value in known(found))
        unsupported = [hour for hour in range(HOURS) if not found.weeks[hour]]
        assert [h for h in range(HOURS) if found.items_per_minute[h] is None] == unsupported
