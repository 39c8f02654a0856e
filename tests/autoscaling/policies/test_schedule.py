"""Schedule and SeasonalFloor: the policies that know the time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.autoscaling import (
    WEEKEND,
    WORKDAYS,
    BacklogTarget,
    Limits,
    Observation,
    Profile,
    Recommendation,
    Schedule,
    ScheduleEntry,
    SeasonalFloor,
    TargetTracking,
    Threshold,
    Throughput,
)
from shared.autoscaling.policies.schedule import instant
from shared.values.measurements import WeekProfile
from tests.autoscaling.policies.test_single_metrics import seeing
from tests.builders import NOW

ZURICH = ZoneInfo("Europe/Zurich")
DAY, NIGHT = Profile("day", 4), Profile("night", 1, 2)
REST = Profile("rest")


def at(text: str, zone: ZoneInfo = ZURICH, fold: int = 0) -> datetime:
    """A wall time in Zurich as an instant."""
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).astimezone(UTC)


def wants(capacity: int, **more: Any) -> Any:
    return lambda _: Recommendation(capacity, f"wants {capacity}", **more)


OFFICE = ScheduleEntry(DAY, WORKDAYS, time(8), time(18))
OVERNIGHT = ScheduleEntry(NIGHT, ("Fri",), time(22), time(6))
FEAST = ScheduleEntry(
    Profile("feast"), dates=(date(2026, 3, 4), (date(2026, 12, 24), date(2026, 12, 26)))
)
WEEK = Schedule((FEAST, OFFICE, OVERNIGHT), REST, time_zone="Europe/Zurich")


@pytest.mark.parametrize(
    ("now", "profile", "until"),
    [
        ("2026-03-02T07:59:59", "rest", "2026-03-02T08:00"),  # a Monday
        ("2026-03-02T08:00", "day", "2026-03-02T18:00"),
        ("2026-03-02T17:59:59", "day", "2026-03-02T18:00"),
        ("2026-03-02T18:00", "rest", "2026-03-03T08:00"),
        ("2026-03-06T23:00", "night", "2026-03-07T06:00"),  # Friday, over midnight
        ("2026-03-07T05:59", "night", "2026-03-07T06:00"),
        ("2026-03-07T06:00", "rest", "2026-03-09T08:00"),
        ("2026-03-07T23:00", "rest", "2026-03-09T08:00"),  # Saturday night is none
        ("2026-03-03T19:00", "rest", "2026-03-04T00:00"),
        ("2026-03-04T12:00", "feast", "2026-03-05T00:00"),  # before the office hours
        ("2026-12-24T00:00", "feast", "2026-12-27T00:00"),
        ("2026-12-26T23:59", "feast", "2026-12-27T00:00"),
    ],
)
def test_the_first_rule_that_holds_names_the_profile(now: str, profile: str, until: str) -> None:
    assert WEEK.active(at(now)).name == profile
    assert WEEK.until(at(now)) == at(until)


def test_without_rules_the_default_holds() -> None:
    schedule = Schedule((), REST)
    assert schedule.until(at("2026-03-02T12:00")) is None
    wish = schedule(seeing([], 3))
    assert (wish.capacity, wish.evidence["profile"]) == (3, "rest")
    assert "profile rest applies for more than a week" in wish.reason


@pytest.mark.parametrize(
    ("now", "holds"),
    [
        ("2026-03-29T00:29:00+00:00", False),  # 01:29, clocks go forward at 01:00 UTC
        ("2026-03-29T00:59:59+00:00", False),  # 01:59:59; 02:30 is in the gap: from its end
        ("2026-03-29T01:00:00+00:00", True),  # 03:00
        ("2026-03-29T01:29:59+00:00", True),  # 03:29:59
        ("2026-03-29T01:30:00+00:00", False),  # 03:30
        ("2026-10-25T00:29:59+00:00", False),  # 02:29:59, clocks go back at 01:00 UTC
        ("2026-10-25T00:30:00+00:00", True),  # 02:30 for the first time
        ("2026-10-25T01:15:00+00:00", True),  # 02:15 for the second time: no hole
        ("2026-10-25T02:29:59+00:00", True),  # 03:29:59
        ("2026-10-25T02:30:00+00:00", False),
    ],
)
def test_profiles_go_by_the_wall_clock_when_it_is_changed(now: str, holds: bool) -> None:
    rule = ScheduleEntry(DAY, start=time(2, 30), end=time(3, 30))
    assert rule.holds(datetime.fromisoformat(now), "Europe/Zurich") is holds


@pytest.mark.parametrize("night", ["2026-03-28T12:00", "2026-10-24T12:00"])
@pytest.mark.parametrize("turn", [time(1, 59), time(2), time(2, 30), time(2, 59), time(3)])
def test_rules_that_meet_leave_no_hole_and_do_not_overlap(night: str, turn: time) -> None:
    before = ScheduleEntry(NIGHT, start=time(12), end=turn)
    after = ScheduleEntry(DAY, start=turn, end=time(12))
    for quarter in range(4 * 24):
        now = at(night) + timedelta(minutes=15 * quarter)
        assert before.holds(now, "Europe/Zurich") is not after.holds(now, "Europe/Zurich"), now


@given(
    days=st.integers(0, 400),
    clock=st.times(),
    zone=st.sampled_from(
        ["UTC", "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
    ),
)
def test_an_instant_is_the_first_at_which_the_wall_shows_the_time(
    days: int, clock: time, zone: str
) -> None:
    day = date(2026, 1, 1) + timedelta(days)
    clock = clock.replace(microsecond=0, fold=0)
    wall, found = datetime.combine(day, clock), instant(day, clock, zone)

    def shown(when: datetime) -> datetime:
        return when.astimezone(ZoneInfo(zone)).replace(tzinfo=None)

    assert shown(found) >= wall
    assert shown(found - timedelta(seconds=1)) < wall


def test_a_rule_may_have_a_time_zone_of_its_own() -> None:
    tokyo = ScheduleEntry(DAY, start=time(9), end=time(17), time_zone="Asia/Tokyo")
    schedule = Schedule((tokyo,), REST, time_zone="Europe/Zurich")
    assert schedule.active(datetime(2026, 3, 2, 0, 0, tzinfo=UTC)) == DAY
    assert schedule.active(datetime(2026, 3, 2, 8, 0, tzinfo=UTC)) == REST


@pytest.mark.parametrize("paced", [True, False])
@pytest.mark.parametrize(
    ("profile", "wish", "wanted", "said"),
    [
        (Profile("p", 4), 2, 4, "minimum of 4 instead of 2"),
        (Profile("p", 1, 3), 9, 3, "maximum of 3 instead of 9"),
        (Profile("p", 2, 8), 5, 5, "wants 5"),
        (Profile("p", 2, 8), 2, 2, "wants 2"),
        (Profile("p", 2, 8), 8, 8, "wants 8"),
        (Profile("p", 2, 8, wants(6)), 5, 6, "wants 6"),
    ],
)
def test_the_profiles_limits_hold_for_the_policys_wish_and_pace_it(
    profile: Profile, wish: int, wanted: int, said: str, paced: bool
) -> None:
    """A capacity that the profile sets obeys cooldown and flap projection."""
    got = Schedule((), profile, wants(wish, paced=paced))(seeing([], 5))
    assert got.capacity == wanted
    assert said in got.reason
    assert got.candidates[0].capacity in (wish, 6)
    assert got.paced is (paced and wish == wanted)


def test_the_policy_sees_the_profiles_limits() -> None:
    seen: list[Limits] = []

    def look(observation: Observation) -> Recommendation:
        seen.append(observation.limits)
        return Recommendation(observation.capacity, "looking")

    Schedule((), Profile("p", 2, 50), look)(seeing([], 5, limits=Limits(1, 30)))
    Schedule((), Profile("p", 50), look)(seeing([], 5, limits=Limits(1, 30)))
    assert seen == [Limits(2, 30), Limits(30, 30)]


def test_the_wish_says_which_profile_and_until_when() -> None:
    schedule = replace(WEEK, policy=wants(5))
    wish = schedule(seeing([], 5, now=at("2026-03-06T23:00")))
    assert wish.reason.startswith(
        "profile night applies until Sat 06:00 Europe/Zurich, with its maximum of 2"
    )


def test_a_schedule_speaks_for_its_members() -> None:
    busy = Profile("busy", policy=TargetTracking("cpu", 50))
    schedule = Schedule((ScheduleEntry(busy, WEEKEND),), REST, Threshold("backlog", 100, 10))
    assert schedule.metric_names == ("cpu", "backlog")
    assert schedule.utilisation_names == ("cpu",)
    assert schedule.problems() == []


XMAS = date(2026, 12, 24)


@pytest.mark.parametrize(
    "dates", [(), (XMAS,), [XMAS], ((XMAS, XMAS),), (XMAS, (XMAS, XMAS)), (XMAS, XMAS, XMAS)]
)
def test_dates_that_have_one_meaning_are_allowed(dates: Any) -> None:
    schedule = Schedule((ScheduleEntry(REST, dates=dates),), REST)
    assert schedule.problems() == []
    assert schedule.active(at("2026-12-24T12:00")) == REST


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        (Schedule((), Profile("", 1)), "default.name = '': must be a name"),
        (
            Schedule((), Profile("p", 0)),
            "default.minimum = 0: must be a whole number of at least 1",
        ),
        (Schedule((), Profile("p", 3, 2)), "default.maximum = 2: must be at least minimum = 3"),
        (
            Schedule((), Profile("p", policy=Threshold("b", 1, 2))),
            "default.policy: lower = 2: must be below upper = 1",
        ),
        (
            Schedule((ScheduleEntry(Profile("p", 0)),), REST),
            "rules[0].profile.minimum = 0: must be a whole number of at least 1",
        ),
        (Schedule((), None), "default = None: must be Profile(name)"),  # type: ignore[arg-type]
        (Schedule((None,), REST), "rules[0] = None: must be ScheduleEntry(profile)"),  # type: ignore[arg-type]
        (
            Schedule((ScheduleEntry(REST, ("Mo",)),), REST),
            "rules[0].weekdays: 'Mo' must be one of Mon, Tue, Wed, Thu, Fri, Sat, Sun",
        ),
        (
            Schedule((ScheduleEntry(REST, start="8:00"),), REST),  # type: ignore[arg-type]
            "rules[0].start = '8:00': must be a time of day without time zone",
        ),
        (
            Schedule((ScheduleEntry(REST, dates=("2026-12-24",)),), REST),  # type: ignore[arg-type]
            "rules[0].dates: '2026-12-24' must be a date, or a tuple of first and last date",
        ),
        (
            Schedule((ScheduleEntry(REST, dates=((date(2026, 2, 1), date(2026, 1, 1)),)),), REST),
            "rules[0].dates: (datetime.date(2026, 2, 1), datetime.date(2026, 1, 1)) must be a "
            "date, or a tuple of first and last date",
        ),
        (
            Schedule((ScheduleEntry(REST, dates=XMAS),), REST),  # type: ignore[arg-type]
            f"rules[0].dates = {XMAS!r}: must be a tuple: dates=(day,) for one day, or "
            "dates=((first, last),) for a period",
        ),
        *[
            (
                Schedule((ScheduleEntry(REST, dates=two),), REST),  # type: ignore[arg-type]
                f"rules[0].dates = {two!r}: a period or two days? Write dates=((first, last),) for "
                "a period, or dates=((first, first), (last, last)) for two days",
            )
            for two in ((XMAS, date(2027, 1, 2)), [XMAS, date(2027, 1, 2)], (XMAS, XMAS))
        ],
        *[
            (
                Schedule((ScheduleEntry(REST, dates=(day,)),), REST),  # type: ignore[arg-type]
                f"rules[0].dates: {day!r} must be a date, or a tuple of first and last date",
            )
            for day in (datetime(2026, 12, 24, tzinfo=UTC), [XMAS, XMAS], (XMAS,), None)
        ],
        (
            Schedule((ScheduleEntry(REST, "Mon"),), REST),  # type: ignore[arg-type]
            "rules[0].weekdays = 'Mon': must be a tuple such as ('Mon',)",
        ),
        (
            Schedule((), Profile("rest ")),
            "default.name = 'rest ': must be a name without spaces at its ends",
        ),
        (
            Schedule((), REST, time_zone="Mars/Phobos"),
            "time_zone = 'Mars/Phobos': must be the name of a time zone such as Europe/Zurich",
        ),
        (
            Schedule((ScheduleEntry(REST, time_zone=5),), REST),  # type: ignore[arg-type]
            "rules[0].time_zone = 5: must be the name of a time zone such as Europe/Zurich",
        ),
        (Schedule((), REST, 5), "policy = 5: must be callable with an Observation"),  # type: ignore[arg-type]
    ],
)
def test_parameters_of_a_schedule_are_checked(schedule: Schedule, problem: str) -> None:
    assert schedule.problems() == [problem]


# --- SeasonalFloor: 10 items each and minute; NOW is a Sunday, 12:00 UTC ---


def week(loads: dict[int, float], zone: str = "UTC") -> WeekProfile:
    return WeekProfile(tuple(loads.get(hour, 0) for hour in range(168)), zone)


SUNDAY_NOON = 6 * 24 + 12


HOUR_END = NOW + timedelta(minutes=59, seconds=45)


@pytest.mark.parametrize(
    ("wish", "floor", "hour", "changes", "wanted"),
    [
        (2, {}, 12, {}, 6),
        (9, {}, 12, {}, 9),
        (2, {"headroom": 1.2}, 12, {}, 7),
        (2, {"rate_per_instance_minute": 5}, 12, {}, 11),
        (2, {}, 13, {}, 2),
        (2, {}, 13, {"throughput": Throughput(10, 60)}, 6),  # the start-up time
        (2, {}, 13, {"profile": week({SUNDAY_NOON + 1: 55}, "Europe/Zurich")}, 6),
        (2, {"lead_minutes": 59}, 13, {}, 2),
        (2, {"lead_minutes": 60}, 13, {}, 6),
        (2, {"lead_minutes": 60}, 12, {}, 6),  # still needed
        (2, {"lead_minutes": 130}, 13, {}, 6),
        (2, {"lead_minutes": 720}, 24, {}, 6),  # Monday comes next
        (2, {"lead_minutes": 0}, 12, {"now": HOUR_END}, 6),
        (2, {"lead_minutes": 0}, 13, {"now": HOUR_END}, 2),
        (2, {"lead_minutes": 0.5}, 12, {"now": HOUR_END}, 6),
        (2, {"lead_minutes": 0.5}, 13, {"now": HOUR_END}, 6),
        (2, {"lead_minutes": 60.5}, 14, {"now": HOUR_END}, 6),
        (2, {"lead_minutes": 60}, 14, {"now": HOUR_END}, 2),
    ],
)
def test_the_floor_is_what_the_load_of_every_hour_until_the_lead_time_needs(
    wish: int, floor: dict[str, float], hour: int, changes: dict[str, Any], wanted: int
) -> None:
    """55 arrivals a minute are expected in one hour."""
    expected = week({(SUNDAY_NOON - 12 + hour) % 168: 55})
    found = SeasonalFloor(wants(wish), **floor)(seeing([], 2, **{"profile": expected, **changes}))
    assert found.capacity == wanted, found.reason


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"profile": None}, "there is no weekly profile yet"),
        ({"throughput": Throughput()}, "the rate per instance is not known"),
        ({"profile": WeekProfile((1.0,))}, "1 hours instead of 168"),
        ({"profile": week({}, "Mars/Phobos")}, "unusable"),
        (
            {"profile": WeekProfile((), absent="two days old")},
            "there is no weekly profile: two days",
        ),
        (
            {"profile": WeekProfile((None,) * 168)},
            "no seasonal floor: the weekly profile has no data",
        ),
    ],
)
def test_without_a_forecast_the_wish_stands(changes: dict[str, Any], said: str) -> None:
    seen = seeing([], 4, **{"profile": week({SUNDAY_NOON: 999}), **changes})
    wish = SeasonalFloor(wants(3))(seen)
    assert wish.capacity == 3
    assert said in wish.reason


def test_the_floor_says_from_how_many_weeks_it_is_and_goes_by_the_hours_that_are_known() -> None:
    loads = tuple([55.0 if hour == SUNDAY_NOON + 1 else None for hour in range(168)])
    profile = WeekProfile(loads, weeks=(3,) * 168)
    wish = SeasonalFloor(wants(2), lead_minutes=60)(seeing([], 2, profile=profile))
    assert wish.capacity == 6
    assert "expects 55 arrivals/min (from 3 weeks)" in wish.reason
    assert "the floor is 6 instances, above the recommended 2: wants 2" in wish.reason
    assert wish.evidence["weeks"] == 3


@given(
    load=st.floats(0, 1e9),
    inner=st.integers(0, 50),
    headroom=st.floats(0.1, 10),
    rate=st.none() | st.floats(1e-3, 1e6),
    lead=st.none() | st.floats(0, 1440),
)
def test_the_floor_never_lowers(
    load: float, inner: int, headroom: float, rate: float | None, lead: float | None
) -> None:
    policy = SeasonalFloor(wants(inner), headroom, lead)
    profile = WeekProfile((load,) * 168)
    assert policy(seeing([], 4, profile=profile, throughput=Throughput(rate))).capacity >= inner


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (SeasonalFloor(None), "policy = None: must be callable with an Observation"),  # type: ignore[arg-type]
        (
            SeasonalFloor(BacklogTarget("b", share=0)),
            "policy: share = 0: must be above 0 and at most 1",
        ),
        (SeasonalFloor(wants(1), headroom=0), "headroom = 0: must be above 0"),
        (SeasonalFloor(wants(1), lead_minutes=-1), "lead_minutes = -1: must be 0 to 1440"),
        (SeasonalFloor(wants(1), lead_minutes=9999), "lead_minutes = 9999: must be 0 to 1440"),
    ],
)
def test_parameters_of_the_floor_are_checked(policy: SeasonalFloor, problem: str) -> None:
    assert policy.problems() == [problem]


@pytest.mark.parametrize("imported", ["Rule, WORKDAYS", "*"])
def test_an_entry_by_its_earlier_name_works_with_a_warning_that_names_the_new_one(
    imported: str,
) -> None:
    names: dict[str, Any] = {"profile": DAY, "start": time(8), "end": time(18)}
    exec(f"from shared.autoscaling import {imported}", names)
    with pytest.warns(DeprecationWarning, match="use ScheduleEntry") as warned:
        entry = eval("Rule(profile, WORKDAYS, start, end=end)", names)
    assert (entry, warned[0].filename) == (OFFICE, "<string>")
    assert Schedule((entry,), REST).problems() == []
