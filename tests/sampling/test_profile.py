"""The usual week: local hours, missing and filled-in hours, and robustness."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfoNotFoundError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.sampling.profile import HOURS, WEEKS, Loads, UsualWeek, week_profile
from shared.sampling.series import hours_until

MONDAY = datetime(2017, 5, 1, tzinfo=UTC)
END = hours_until(MONDAY)
Load = Callable[[datetime], float | None]


def loads(load: Load, weeks: int = WEEKS, until: int = END) -> Loads:
    """The hourly loads before ``until``; ``load`` returns the items per minute at a time."""
    hourly = {}
    for hour in range(until - weeks * HOURS, until):
        start = MONDAY + timedelta(hours=hour - END)
        parts = [load(start + timedelta(minutes=15 * quarter)) for quarter in range(4)]
        known = [part for part in parts if part is not None]
        if len(known) == 4:
            hourly[hour] = sum(known) * 15, 1000
    return hourly


def profile(load: Load) -> UsualWeek:
    week = week_profile(loads(load), MONDAY)
    assert not week.absent
    return week


def known(week: UsualWeek) -> list[float]:
    return [value for value in week.items_per_minute if value is not None]


def by_local_hour(time: datetime) -> float:
    return 10.0 + time.weekday() * 24 + time.hour


EXACT = tuple([10.0 + hour for hour in range(HOURS)])


def test_one_unusual_week_does_not_change_the_profile() -> None:
    odd = MONDAY - timedelta(weeks=3)

    def load(time: datetime) -> float:
        return 500.0 if odd <= time < odd + timedelta(weeks=1) else by_local_hour(time)

    assert profile(load).items_per_minute == EXACT


def test_an_hour_without_items_is_zero_and_an_unknown_one_is_none() -> None:
    quiet = profile(lambda time: 0.0 if time.hour == 3 else 60.0)
    assert quiet.items_per_minute[3] == 0
    gap = profile(lambda time: None if time.hour == 3 and time.weekday() == 0 else 60.0)
    assert gap.items_per_minute[3] is None
    assert gap.items_per_minute.count(None) == 1
    assert (gap.weeks[3], gap.weeks[4]) == (0, 8)


@pytest.mark.parametrize(
    ("unknown", "hour", "value"),
    [
        (lambda t: t.weekday() == 1, 24 + 9, 9),
        (lambda t: t.weekday() >= 5, 5 * 24 + 9, 9),
        (lambda t: t.hour == 9, 9, 9),
        (lambda t: t.hour in (8, 9), 9, 9),
    ],
)
def test_an_hour_known_in_only_one_week_is_filled_in(
    unknown: Callable[[datetime], bool], hour: int, value: float
) -> None:
    second_week = MONDAY - timedelta(weeks=7)
    week = profile(lambda time: None if unknown(time) and time >= second_week else float(time.hour))
    assert week.weeks[hour] == 1
    assert week.items_per_minute[hour] == pytest.approx(value)


def test_a_low_sampled_load_is_averaged_so_that_it_does_not_become_zero() -> None:
    """With one in ten of 5 events an hour kept, most hours have no record, and the median is 0."""
    rng = np.random.default_rng(3)
    sparse = {}
    for hour in range(END - WEEKS * HOURS, END):
        kept = int(rng.poisson(0.5))
        sparse[hour] = 10.0 * kept, kept
    week = week_profile(sparse, MONDAY)
    assert not week.absent
    assert sum(known(week)) / HOURS == pytest.approx(5 / 60, rel=0.1)


def test_only_the_last_eight_weeks_are_used() -> None:
    old = loads(lambda _: 999.0, 9, END - WEEKS * HOURS)
    after = loads(lambda _: 999.0, 1, END + HOURS)
    week = week_profile({**old, **after, **loads(by_local_hour)}, MONDAY)
    assert not week.absent
    assert week.items_per_minute == EXACT


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(ZoneInfoNotFoundError):
        week_profile({}, MONDAY, "Middle/Earth")


@given(
    st.lists(st.none() | st.floats(0, 1e9), min_size=1, max_size=40),
    st.sampled_from(["UTC", "Asia/Kathmandu", "Europe/London"]),
)
def test_a_profile_is_complete_and_finite_and_only_unknown_hours_are_none(
    repeated: list[float | None], zone: str
) -> None:
    items = {END - 1 - hour: repeated[hour % len(repeated)] for hour in range(3 * HOURS)}
    given_loads = {hour: (each, 20) for hour, each in items.items() if each is not None}
    week = week_profile(given_loads, MONDAY, zone)
    if not week.absent:
        assert len(week.items_per_minute) == len(week.weeks) == HOURS
        assert all(math.isfinite(value) and value >= 0 for value in known(week))
        unsupported = [hour for hour in range(HOURS) if not week.weeks[hour]]
        assert [h for h in range(HOURS) if week.items_per_minute[h] is None] == unsupported
