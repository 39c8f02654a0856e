"""Schedules are read as by the Functions host, which uses NCrontab: the same for the app's settings
and for the local host."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from local.functions_host.schedule import parse_schedule
from shared import settings
from shared.settings.schedules import parse_cron

NOW = datetime(2026, 3, 29, 2, 58, 30, tzinfo=timezone(timedelta(hours=2)))  # a Sunday, 00:58 UTC

ACCEPTED = {
    "0 */5 * * * *": ("03-29 01:00:00", "03-29 01:05:00"),
    "5,50-52,8 * * * * *": ("03-29 00:58:50", "03-29 00:58:51"),
    "2/25 * * * * *": ("03-29 00:58:52", "03-29 00:59:02"),  # from 2 to 59
    "10-40/15 59 0 * * *": ("03-29 00:59:10", "03-29 00:59:25"),
    "0 0 22-6 * * *": ("03-29 06:00:00", "03-29 07:00:00"),  # a range has no direction
    "0 0 6-6/2 * * *": ("03-29 06:00:00", "03-30 06:00:00"),
    "*/0 59 0 * * *": ("03-29 00:59:00", "03-29 00:59:01"),  # a step of 0 is 1
    "0 0 9 * * Monday-Friday": ("03-30 09:00:00", "03-31 09:00:00"),
    "0 0 9 * * MON-fri": ("03-30 09:00:00", "03-31 09:00:00"),
    "0 0 9 * * FRI-MON": ("03-30 09:00:00", "03-31 09:00:00"),  # 5-1 is 1-5
    "0 0 9 * * W": ("04-01 09:00:00", "04-08 09:00:00"),  # the beginning of Wednesday
    "0 0 9 * * 0,6": ("03-29 09:00:00", "04-04 09:00:00"),
    "0 0 0 1 January,Jun *": ("06-01 00:00:00", "01-01 00:00:00"),
    "0 0 0 1 Sept-October *": ("09-01 00:00:00", "10-01 00:00:00"),
    "0 0 0 1 J *": ("01-01 00:00:00", "01-01 00:00:00"),
    "0 0 0 31 2,4-5 *": ("05-31 00:00:00", "05-31 00:00:00"),
    "0 0 0 29 2 *": ("02-29 00:00:00", "02-29 00:00:00"),
    "0 0 0 13 * FRI": ("11-13 00:00:00", "08-13 00:00:00"),  # both day fields must match
    "  0   0 12 * * *  ": ("03-29 12:00:00", "03-30 12:00:00"),
    "*/5 * * * *": ("03-29 01:00:00", "03-29 01:05:00"),  # five fields: no seconds
    "00 007 1 * * *": ("03-29 01:07:00", "03-30 01:07:00"),
    "00:01:00": ("03-29 00:59:30", "03-29 01:00:30"),  # an interval
}
REFUSED = {
    **dict.fromkeys(("0 0 3 ? * *", "0 0 3 * * ?", "0 0 3 L * *", "0 0 3 15W * *"), "not"),
    **dict.fromkeys(("0 0 3 * * 5L", "0 0 3 * * MON#2", "0 0 3 LW * *", "0 0 3 * * 7"), "not"),
    **dict.fromkeys(("60 * * * * *", "0 0 24 * * *", "0 0 0 0 * *", "0 0 0 1 13 *"), "not"),
    **dict.fromkeys(("70/5 * * * * *", "1- * * * * *", "-5 * * * * *", "1-2-3 * * * * *"), "not"),
    **dict.fromkeys(("1, * * * * *", ",1 * * * * *", "/5 * * * * *", "*-5 * * * * *"), "not"),
    **dict.fromkeys(("0 0 3 * * Mondays", "0 0 3 * Janx *", "MON * * * * *", "H * * * * *"), "not"),
    **dict.fromkeys(("\u0663 * * * * *", "0 0 3 * * \u0663", "0 0 1.5 * * *"), "not"),
    **dict.fromkeys(("*/x * * * * *", "*/ * * * * *", "*/1/2 * * * * *"), "step"),
    **dict.fromkeys(("0 0 0 31 2 *", "0 0 0 31 4,6 *", "0 0 0 30 Feb *"), "never"),
    **dict.fromkeys(("@daily", "* * *", "", "0 0 3 * * * 2026", "0\t0 3 * *"), "fields"),
}


@pytest.mark.parametrize("expression", ACCEPTED)
def test_an_expression_that_the_host_accepts_is_valid_and_runs_when_the_host_runs_it(
    expression: str,
) -> None:
    assert settings.load({"ReconcilerSchedule": expression})
    schedule = parse_schedule(expression)
    first = schedule.next_after(NOW)
    due = (first, schedule.next_after(first))
    assert tuple(f"{each.astimezone(UTC):%m-%d %H:%M:%S}" for each in due) == ACCEPTED[expression]


@pytest.mark.parametrize("expression", REFUSED)
def test_an_expression_that_the_host_refuses_or_that_never_runs_is_refused_by_both(
    expression: str,
) -> None:
    with pytest.raises(ValueError, match=REFUSED[expression]):
        parse_cron(expression)
    with pytest.raises(ValueError, match="schedule"):
        parse_schedule(expression)
    problems = settings.parse({"ReconcilerSchedule": expression})[1]
    assert len(problems) == bool(expression)  # empty means the default


@pytest.mark.parametrize("interval", ["00:00:30", "23:59:59", "1.00:00:00"])
def test_an_interval_of_the_host_is_a_schedule(interval: str) -> None:
    assert settings.load({"ReconcilerSchedule": interval}).reconciler_schedule == interval


@pytest.mark.parametrize(
    ("interval", "remedy"),
    [
        ("24:00:00", "Azure reads 24 hours as days. Write 1.00:00:00 for a day"),
        ("1.24:00:00", "Azure reads 24 hours as days"),
        ("168:00:00", "Azure reads 168 hours as days"),
        ("00:00:00", "6 cron fields"),
        ("00:60:00", "6 cron fields"),
        ("\u0660\u0660:00:30", "6 cron fields"),
        ("0 0 3\u00a0* * *", "6 cron fields"),
    ],
)
def test_an_interval_that_azure_reads_otherwise_is_refused_with_the_form_to_write(
    interval: str, remedy: str
) -> None:
    (problem,) = settings.parse({"ReconcilerSchedule": interval})[1]
    assert remedy in problem


def test_a_wrong_schedule_is_told_with_its_field_and_what_is_allowed() -> None:
    (problem,) = settings.parse({"ReconcilerSchedule": "0 0 3 * * 7"})[1]
    assert problem.endswith(
        "the day of the week '7' is not 0 to 6, a name such as Monday, a range, a list, or *"
    )
