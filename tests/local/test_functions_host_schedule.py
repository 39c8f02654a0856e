"""Timer schedules: the next occurrence, and when a run is past due."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from local.functions_host.schedule import parse_schedule

NOW = datetime(2026, 3, 29, 0, 58, 30, tzinfo=UTC)  # a Sunday


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("0 */1 * * * *", "2026-03-29T00:59:00"),
        ("*/15 * * * * *", "2026-03-29T00:58:45"),
        ("30 58 0 * * *", "2026-03-30T00:58:30"),  # strictly after now
        ("0 0 9-17 * * MON-FRI", "2026-03-30T09:00:00"),
        ("0 0 0 1,15 * *", "2026-04-01T00:00:00"),
        ("0 30 9 * Jan *", "2027-01-01T09:30:00"),
        ("0 0 0 13 * FRI", "2026-11-13T00:00:00"),  # both day fields must match
        ("*/5 * * * *", "2026-03-29T01:00:00"),  # five fields: no seconds
        ("00:01:00", "2026-03-29T00:59:30"),
    ],
)
def test_the_next_occurrence_of_a_schedule_is_computed(schedule: str, expected: str) -> None:
    due = parse_schedule(schedule).next_after(NOW)
    assert due == datetime.fromisoformat(expected).replace(tzinfo=UTC)
    assert due.utcoffset() == timedelta(0)


def test_the_next_occurrence_is_on_a_whole_second() -> None:
    just_before = NOW - timedelta(microseconds=1)
    every_second = parse_schedule("* * * * * *")
    assert every_second.next_after(just_before) == NOW
    assert every_second.next_after(NOW) == NOW + timedelta(seconds=1)


def test_schedules_are_in_utc_in_any_time_zone() -> None:
    berlin = NOW.astimezone(timezone(timedelta(hours=2)))
    assert parse_schedule("0 0 12 * * *").next_after(berlin) == datetime(
        2026, 3, 29, 12, tzinfo=UTC
    )


@pytest.mark.parametrize("schedule", ["", "* * *", "0 0 25 * * *", "x * * * * *", "00:00:00"])
def test_an_invalid_schedule_is_refused(schedule: str) -> None:
    with pytest.raises(ValueError, match="schedule"):
        parse_schedule(schedule)
