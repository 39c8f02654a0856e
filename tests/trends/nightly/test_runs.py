"""The state machine of runs: when a run starts, is retried, and is given up."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from enum import Enum

import pytest

from shared.trends.nightly import runs
from shared.trends.nightly.flows.demand import completed_dates, demands_for, recent_dates
from shared.trends.nightly.model import (
    DateRuns,
    Demand,
    InputUnreadable,
    JobPhase,
    JobStatus,
    Ledger,
    Run,
    RunPolicy,
    RunState,
)
from shared.trends.nightly.trend_news import run_notice, run_notices
from shared.values.news import News, Severity
from tests.builders import NOW

DAY = date(2026, 2, 28)
DATA = datetime(2026, 3, 1, 0, 10, tzinfo=UTC)
POLICY = RunPolicy()
DEMAND = Demand(DAY, DATA, "nightly run")
HOUR = timedelta(hours=1)


def run(**changes: object) -> Run:
    started = runs.started("events", DEMAND, None, "token", NOW, POLICY)
    return replace(started, **changes)  # type: ignore[arg-type]


def submitted() -> Run:
    return runs.accepted(run(), "7", "https://log", NOW)


def notices(*latest: Run, since: datetime = NOW - HOUR) -> list[News]:
    days = {each.date: DateRuns(each.date, latest=each) for each in latest}
    return list(run_notices(Ledger("events", NOW, days), POLICY, since))


class Next(Enum):
    NOTHING = "nothing"
    START = "start"
    SUBMIT_AGAIN = "submit again"


def step(demand: Demand | None, latest: Run | None, now: datetime = NOW, others: int = 0) -> Next:
    """What the run of the date that is to be submitted, if any, means."""
    day = DateRuns(DAY, demand, latest)
    found = runs.next_run("events", day, others, lambda *_: "token", now, POLICY)
    if found is None:
        return Next.NOTHING
    return Next.SUBMIT_AGAIN if latest and found.number == latest.number else Next.START


def test_a_run_starts_only_if_its_date_is_demanded() -> None:
    assert step(DEMAND, None) is Next.START
    assert step(None, None) is Next.NOTHING


def test_a_run_waits_for_the_open_runs_of_its_data_set() -> None:
    assert step(DEMAND, None, others=1) is Next.NOTHING


def test_a_date_is_recomputed_only_if_more_data_are_demanded_than_its_last_run_had() -> None:
    succeeded = run(state=RunState.SUCCEEDED)
    assert step(DEMAND, succeeded) is Next.NOTHING
    assert step(replace(DEMAND, data_until=DATA + HOUR), succeeded) is Next.START


@pytest.mark.parametrize("state", [state for state in RunState if not state.ended])
def test_no_run_starts_beside_an_open_one_even_if_more_data_arrive(state: RunState) -> None:
    more = replace(DEMAND, data_until=DATA + HOUR)
    assert step(more, run(state=state), NOW + 100 * HOUR) in (
        Next.NOTHING,
        Next.SUBMIT_AGAIN,
    )


def test_a_run_without_a_reply_is_submitted_again_when_its_lease_expires() -> None:
    assert step(DEMAND, run(), NOW + POLICY.lease - timedelta(seconds=1)) is Next.NOTHING
    assert step(DEMAND, run(), NOW + POLICY.lease) is Next.SUBMIT_AGAIN
    again = runs.submitted_again(run(), NOW + POLICY.lease, POLICY)
    assert (again.token, again.number, again.submits) == ("token", 1, 2)
    assert step(DEMAND, again, NOW + POLICY.lease) is Next.NOTHING


def test_no_wait_lasts_until_a_clock_that_was_set_back_has_caught_up() -> None:
    failed = runs.failed(submitted(), "the cluster is gone", NOW, POLICY)
    for back, is_over in ((timedelta(0), False), (timedelta(minutes=1), False), (HOUR, True)):
        now = NOW - back
        again, start = (Next.SUBMIT_AGAIN, Next.START) if is_over else [Next.NOTHING] * 2
        assert (step(DEMAND, run(), now), step(DEMAND, failed, now)) == (again, start)


def test_submissions_without_a_reply_back_off_up_to_an_hour_and_are_reported_once() -> None:
    current, now, delays, reported, ids = run(), NOW, [], [], set()
    for _ in range(9):
        waiting = runs.unanswered(current, "503", now, POLICY)
        assert waiting.lease_until is not None
        delays.append((waiting.lease_until - now) / timedelta(minutes=1))
        reported.append(bool(notices(waiting)))
        ids |= {(news.news_id, news.time) for news in notices(waiting)}
        now = waiting.lease_until
        current = runs.submitted_again(waiting, now, POLICY)
        assert not notices(current), "it may be answered"
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert reported == [False, False, *[True] * 7]
    assert ids == {("token/submitting", NOW)}


def test_a_run_proceeds_from_submitted_to_running_to_succeeded() -> None:
    waiting = runs.observed(submitted(), JobStatus(JobPhase.PENDING), NOW, POLICY)
    running = runs.observed(waiting, JobStatus(JobPhase.RUNNING, "https://b"), NOW + HOUR, POLICY)
    done = runs.observed(running, JobStatus(JobPhase.SUCCEEDED), NOW + 2 * HOUR, POLICY)
    assert waiting == submitted()
    assert (running.state, running.log_url) == (RunState.RUNNING, "https://b")
    assert (done.state, done.log_url, done.changed_at) == (
        RunState.SUCCEEDED,
        "https://b",
        NOW + 2 * HOUR,
    )


def test_failed_runs_are_retried_after_growing_waits_and_then_given_up() -> None:
    latest, now, waits = submitted(), NOW, []
    while True:
        latest = runs.observed(latest, JobStatus(JobPhase.FAILED, error="no memory"), now, POLICY)
        assert latest.state is RunState.FAILED
        assert notices(latest)
        if latest.retry_at is None:
            break
        waits.append((latest.retry_at - now) / timedelta(minutes=1))
        assert step(DEMAND, latest, latest.retry_at - timedelta(seconds=1)) is Next.NOTHING
        now = latest.retry_at
        again = step(DEMAND, latest, now)
        assert again is Next.START
        latest = runs.started("events", DEMAND, latest, "t", now, POLICY)
    assert waits == [10, 20]
    assert (latest.number, latest.attempt) == (3, 3)
    assert step(DEMAND, latest, now + 1000 * HOUR) is Next.NOTHING
    assert run_notice(latest, POLICY).text == "attempt 3 of 3 failed, given up: no memory"
    assert run_notice(latest, POLICY).severity is Severity.ERROR


def test_more_data_start_a_new_series_of_attempts_for_a_date_that_was_given_up() -> None:
    given_up = runs.failed(run(attempt=3), "no memory", NOW, POLICY)
    more = replace(DEMAND, data_until=DATA + HOUR)
    again = step(more, given_up)
    assert again is Next.START
    assert runs.started("events", more, given_up, "t", NOW, POLICY).attempt == 1


def test_an_overdue_run_is_stopped_and_stays_open_until_its_end_is_confirmed() -> None:
    late = NOW + POLICY.timeout
    stopping = runs.observed(submitted(), JobStatus(JobPhase.RUNNING), late, POLICY)
    assert stopping.state is RunState.STOPPING
    assert notices(stopping)
    assert "no other run starts until it has ended" in run_notice(stopping, POLICY).text
    still = runs.observed(stopping, JobStatus(JobPhase.RUNNING), late + HOUR, POLICY)
    assert still == stopping
    assert step(DEMAND, still, late + HOUR) is Next.NOTHING
    ended = runs.observed(still, JobStatus(JobPhase.FAILED, error="killed"), late + HOUR, POLICY)
    assert ended.state is RunState.FAILED
    assert "longer than 4:00:00" in ended.error
    assert ended.retry_at is not None


def test_a_run_that_succeeds_while_it_is_being_stopped_counts_as_succeeded() -> None:
    stopping = runs.observed(submitted(), JobStatus(JobPhase.RUNNING), NOW + POLICY.timeout, POLICY)
    done = runs.observed(stopping, JobStatus(JobPhase.SUCCEEDED), NOW + 5 * HOUR, POLICY)
    assert (done.state, done.error, notices(done)) == (RunState.SUCCEEDED, "", [])


def test_no_run_follows_a_lost_one_before_its_time_limit_even_with_more_data() -> None:
    lost = runs.observed(submitted(), JobStatus(JobPhase.GONE), NOW + HOUR, POLICY)
    more = replace(DEMAND, data_until=DATA + HOUR)
    assert lost.state is RunState.LOST
    for demand in (DEMAND, more):
        assert step(demand, lost, NOW + POLICY.timeout - timedelta(seconds=1)) is Next.NOTHING
        assert step(demand, lost, NOW + POLICY.timeout) is Next.START


def test_a_lost_run_of_the_last_attempt_also_delays_a_run_for_more_data() -> None:
    lost = runs.observed(
        replace(submitted(), attempt=3), JobStatus(JobPhase.GONE), NOW + HOUR, POLICY
    )
    assert step(replace(DEMAND, data_until=DATA + HOUR), lost, NOW + 2 * HOUR) is Next.NOTHING
    assert step(DEMAND, lost, NOW + 100 * HOUR) is Next.NOTHING
    assert "given up" in run_notice(lost, POLICY).text


def test_an_overdue_run_that_cannot_be_checked_is_reported_once_and_can_still_succeed() -> None:
    assert runs.unseen(submitted(), "503", NOW + HOUR, POLICY) == submitted()
    late = runs.unseen(submitted(), "503", NOW + 5 * HOUR, POLICY)
    assert (late.changed_at, len(notices(late))) == (NOW + 5 * HOUR, 1)
    assert "overdue" in run_notice(late, POLICY).text
    assert runs.unseen(late, "503", NOW + 6 * HOUR, POLICY) == late
    done = runs.observed(late, JobStatus(JobPhase.SUCCEEDED), NOW + 6 * HOUR, POLICY)
    assert (done.state, done.error) == (RunState.SUCCEEDED, "")


def test_only_the_news_of_runs_that_changed_since_then_are_read() -> None:
    failed = runs.failed(submitted(), "no memory", NOW, POLICY)
    assert [len(notices(failed, since=NOW + late * HOUR)) for late in (-1, 0, 1)] == [1, 1, 0]


def test_a_long_error_is_cut_at_its_start() -> None:
    error = runs.failed(run(), "x" * 5000 + "the cause", NOW, POLICY).error
    assert len(error) == runs.ERROR_LENGTH_MAX
    assert error.endswith("the cause")


def test_the_nightly_run_covers_yesterday_and_the_late_days() -> None:
    now = datetime(2026, 3, 1, 0, 30, tzinfo=UTC)
    assert recent_dates(now, 2) == (date(2026, 2, 28), date(2026, 2, 27), date(2026, 2, 26))
    assert recent_dates(now.astimezone(tz=None), 0) == (date(2026, 2, 28),)


@pytest.mark.parametrize(
    ("start", "hours", "dates"),
    [
        ("2026-02-28T00:00", 24, ["2026-02-28"]),
        ("2026-02-26T22:00", 4, ["2026-02-26", "2026-02-27"]),
        ("2026-03-01T08:00", 2, []),  # the date is not over: NOW is at noon
        ("2026-02-28T22:00", 4, ["2026-02-28"]),
    ],
)
def test_a_period_covers_those_of_its_dates_that_are_over(
    start: str, hours: int, dates: list[str]
) -> None:
    begin = datetime.fromisoformat(f"{start}+00:00")
    assert [str(day) for day in completed_dates(begin, begin + hours * HOUR, NOW)] == dates


def test_only_dates_with_data_are_demanded_unless_the_data_cannot_be_listed() -> None:
    other = DAY - timedelta(days=1)
    assert demands_for((DAY, other), {DAY: DATA}, "r") == (Demand(DAY, DATA, "r"),)
    (unlisted,) = demands_for((DAY,), InputUnreadable("no right"), "r")
    assert unlisted.data_until == datetime(2026, 3, 1, tzinfo=UTC)


def test_the_same_warning_of_successful_runs_is_reported_once() -> None:
    """A date that cannot be read again causes the same warning every night."""
    status = JobStatus(JobPhase.SUCCEEDED, warning="2 dates of files")
    first = runs.observed(submitted(), status, NOW, POLICY)
    (news,) = notices(first)
    assert news.severity is Severity.WARNING
    assert news.text == "succeeded, but could not read again: 2 dates of files"
    next_day = replace(submitted(), date=DAY + timedelta(days=1), token="next")
    again = runs.observed(next_day, status, NOW + HOUR, POLICY)
    assert notices(first, again) == [news]
    assert notices(first, again, since=NOW + HOUR) == []
    more = runs.observed(next_day, replace(status, warning="3 dates"), NOW + HOUR, POLICY)
    assert len(notices(first, more)) == 2


def test_a_warning_of_the_last_attempt_is_not_an_error() -> None:
    status = JobStatus(JobPhase.SUCCEEDED, warning="2 dates of files")
    last = runs.observed(replace(submitted(), attempt=POLICY.attempts), status, NOW, POLICY)
    assert run_notice(last, POLICY).severity is Severity.WARNING
