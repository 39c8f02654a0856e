"""The usual week of an event counts hours from the first one in which the event occurred."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from shared.autoscaling.store.rows import profile_of
from shared.sampling.estimates import Sums
from shared.sampling.profile import HOURS, UsualWeek, profile_row, usual_week
from shared.sampling.series import DaySums, HourSums, Series, Totals, hours_until

ORDERS, OTHERS = Series("event", "OrderPlaced"), Series("event", "PageViewed")
FIRST, LAST = date(2017, 3, 6), date(2017, 4, 30)  # eight weeks, Monday to Sunday
Load = Callable[[datetime], float]


def dates(first: date, last: date) -> list[str]:
    return [str(first + timedelta(days=n)) for n in range((last - first).days + 1)]


COMPLETE = dates(FIRST, LAST)


def totals(
    loads: dict[Series, Load], days: Collection[str] = COMPLETE, time_zone: str = "UTC"
) -> Totals:
    """``loads`` give the items of the hour that begins at a time; an hour without any has no row,
    as in the results of an engine."""
    zone = ZoneInfo(time_zone)
    sums: dict[tuple[str, Series], Sums] = {}
    hours: dict[tuple[str, Series], list[HourSums]] = {}
    start = datetime.combine(FIRST - timedelta(days=1), datetime.min.time(), UTC)
    for series, load in loads.items():
        for number in range(24 * (len(COMPLETE) + 2)):
            hour = start + timedelta(hours=number)
            day, items = str(hour.astimezone(zone).date()), load(hour)
            if day not in days or not items:
                continue
            records = int(items)
            key = day, series
            sums[key] = sums.get(key, Sums()).merge(Sums(records, weight_sum=items))
            hours.setdefault(key, []).append(HourSums(hours_until(hour), records, items))
    return {key: DaySums(sums[key], hours[key]) for key in sums}


def since(first: datetime, items: float = 60) -> Load:
    return lambda hour: items if hour >= first else 0


def profile(found: UsualWeek) -> UsualWeek:
    assert not found.absent
    return found


def test_an_event_with_two_days_of_records_has_no_usual_week_and_the_reason_says_so() -> None:
    first = datetime(2017, 4, 29, tzinfo=UTC)
    found = usual_week(
        totals({ORDERS: since(first), OTHERS: lambda _: 60}), "OrderPlaced", COMPLETE, "UTC"
    )
    assert "OrderPlaced" in found.absent
    assert "2017-04-29" in found.absent
    assert "0 of the week's 168 hours" in found.absent


def test_dates_before_an_events_first_hour_are_not_zeros() -> None:
    """The first record is in the middle of a Wednesday, 18 days before the end."""
    first = datetime(2017, 4, 12, 12, tzinfo=UTC)
    found = profile(
        usual_week(
            totals({ORDERS: since(first), OTHERS: lambda _: 60}), "OrderPlaced", COMPLETE, "UTC"
        )
    )
    assert set(found.items_per_minute) == {1.0}
    assert found.weeks[2 * 24 + 11] == 2  # Wednesday morning: not the first one
    assert found.weeks[2 * 24 + 12] == 3
    assert found.weeks[0] == 2


def test_hours_without_the_event_are_zeros_after_its_first_hour() -> None:
    def by_day(hour: datetime) -> float:
        return 60 if 8 <= hour.hour < 20 else 0

    found = profile(usual_week(totals({ORDERS: by_day}), "OrderPlaced", COMPLETE, "UTC"))
    assert found.items_per_minute[3] == 0
    assert found.items_per_minute[24 + 3] == 0
    assert found.items_per_minute[24 + 9] == 1
    assert None not in found.items_per_minute


def test_a_date_without_any_telemetry_is_unknown_and_not_zero() -> None:
    """The export was interrupted on Mondays, and dates without files count as read."""
    gone = {"2017-03-13", "2017-03-20", "2017-03-27", "2017-04-03", "2017-04-10"}
    seen = [day for day in COMPLETE if day not in gone]
    found = profile(
        usual_week(totals({ORDERS: lambda _: 60}, seen), "OrderPlaced", COMPLETE, "UTC")
    )
    assert found.items_per_minute[9] == 1
    assert found.weeks[9] == 3
    assert found.weeks[24 + 9] == 8


def test_a_date_on_which_only_other_events_occurred_is_zero() -> None:
    loads: dict[Series, Load] = {
        ORDERS: lambda hour: 0 if hour.weekday() == 0 and hour.day > 10 else 60,
        OTHERS: lambda _: 60,
    }
    found = profile(usual_week(totals(loads), "OrderPlaced", COMPLETE, "UTC"))
    assert found.items_per_minute[9] == 0
    assert found.weeks[9] == 8


@pytest.mark.parametrize(
    "time_zone", ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Auckland"]
)
def test_days_begin_at_local_midnight_even_when_the_clocks_change(time_zone: str) -> None:
    """The load is a function of the local weekday. Wednesdays and Thursdays are not complete. The
    clocks of Berlin, New York and Auckland change within these weeks."""
    zone = ZoneInfo(time_zone)
    complete = [day for day in COMPLETE if date.fromisoformat(day).weekday() not in (2, 3)]

    def load(hour: datetime) -> float:
        return 60.0 * (1 + hour.astimezone(zone).weekday())

    found = profile(
        usual_week(totals({ORDERS: load}, time_zone=time_zone), "OrderPlaced", complete, time_zone)
    )
    offset_has_parts = time_zone == "Asia/Kolkata"
    for hour in range(HOURS):
        weekday, hour_of_day = divmod(hour, 24)
        if weekday in (2, 3):
            expected = None
        elif offset_has_parts and hour_of_day in (0, 23):
            continue  # an hour of UTC holds the end of one day and the beginning of the next
        else:
            expected = 1.0 + weekday
        assert found.items_per_minute[hour] == expected, (weekday, hour_of_day)
    if not offset_has_parts:
        assert (found.weeks[0], found.weeks[6 * 24 + 23]) == (8, 8)
    skipped = {"Europe/Berlin": 6 * 24 + 2, "America/New_York": 6 * 24 + 2}.get(time_zone)
    saturday_and_sunday = set(range(5 * 24 + 1, 6 * 24 + 23)) - {skipped}
    assert {found.weeks[hour] for hour in saturday_and_sunday} == {8}
    assert skipped is None or found.weeks[skipped] == 7


def test_without_records_or_complete_dates_there_is_no_usual_week() -> None:
    nothing = usual_week({}, "OrderPlaced", COMPLETE, "UTC")
    assert "no records of OrderPlaced" in nothing.absent
    incomplete = usual_week(totals({ORDERS: lambda _: 60}), "OrderPlaced", [], "UTC")
    assert "complete" in incomplete.absent


def test_scaling_rules_read_the_profile_with_its_gaps_or_the_reason_for_its_absence() -> None:
    seen = [day for day in COMPLETE if date.fromisoformat(day).weekday() != 6]
    found = profile(
        usual_week(totals({ORDERS: lambda _: 60}, seen), "OrderPlaced", COMPLETE, "UTC")
    )
    read = profile_of(profile_row("workers", found))
    assert read.items_per_minute == found.items_per_minute
    assert read.weeks == found.weeks
    assert not read.absent
    absent = UsualWeek((), "UTC", (), "the event is two days old")
    assert profile_of(profile_row("workers", absent)).absent == "the event is two days old"
