"""The state machine of runs: what is started, when it is tried again, and when it is given up."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from shared.nightly import runs
from shared.nightly.demands import completed_dates, demands, recent_dates
from shared.nightly.model import DateRuns, Demand, JobPhase, JobStatus, Run, RunPolicy, RunState
from shared.nightly.notices import run_notice
from shared.nightly.runs import RunAction
from shared.notifications.news import Severity
from tests.builders import NOW

DAY = date(2026, 2, 28)
DATA = datetime(2026, 3, 1, 0, 10, tzinfo=UTC)
POLICY = RunPolicy()
DEMAND = Demand(DAY, DATA, "the night")
HOUR = timedelta(hours=1)


def run(**changes: object) -> Run:
    made = runs.started("events", DEMAND, None, 1, "token", NOW, POLICY)
    return replace(made, **changes)  # type: ignore[arg-type]


def submitted() -> Run:
    return runs.accepted(run(), "7", "https://log", NOW)


def step(
    demand: Demand | None, latest: Run | None, now: datetime = NOW, others: int = 0
) -> RunAction:
    return runs.next_step(DateRuns(DAY, demand, latest), others, now, POLICY).action


def test_what_is_asked_for_is_started_and_nothing_else() -> None:
    assert step(DEMAND, None) is RunAction.START
    assert step(None, None) is RunAction.NOTHING


def test_a_run_waits_for_the_others_of_its_data_set() -> None:
    assert step(DEMAND, None, others=1) is RunAction.NOTHING


def test_what_was_done_with_all_data_is_not_done_again_until_there_are_more() -> None:
    done = run(state=RunState.SUCCEEDED)
    assert step(DEMAND, done) is RunAction.NOTHING
    assert step(replace(DEMAND, data_until=DATA + HOUR), done) is RunAction.START


@pytest.mark.parametrize("state", [state for state in RunState if not state.ended])
def test_nothing_is_started_beside_an_open_run_however_much_data_came(state: RunState) -> None:
    more = replace(DEMAND, data_until=DATA + HOUR)
    assert step(more, run(state=state), NOW + 100 * HOUR) in (
        RunAction.CHECK,
        RunAction.SUBMIT_AGAIN,
    )


def test_a_submission_that_nobody_answered_for_is_taken_over_after_its_lease() -> None:
    assert step(DEMAND, run(), NOW + POLICY.lease - timedelta(seconds=1)) is RunAction.NOTHING
    assert step(DEMAND, run(), NOW + POLICY.lease) is RunAction.SUBMIT_AGAIN
    again = runs.submitted_again(run(), NOW + POLICY.lease, POLICY)
    assert (again.token, again.number, again.submits) == ("token", 1, 2)
    assert step(DEMAND, again, NOW + POLICY.lease) is RunAction.NOTHING


def test_submissions_without_an_answer_are_spaced_out_up_to_an_hour_and_told_of_once() -> None:
    current, now, delays, told = run(), NOW, [], []
    for _ in range(9):
        waiting = runs.unanswered(current, "503", now, POLICY)
        assert waiting.lease_until is not None
        delays.append((waiting.lease_until - now) / timedelta(minutes=1))
        told.append(waiting.untold)
        now = waiting.lease_until
        current = runs.submitted_again(waiting, now, POLICY)
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert told == [False, False, True, *[False] * 6]


def test_a_run_goes_from_submitted_over_running_to_succeeded() -> None:
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


def test_failures_are_tried_again_after_growing_waits_and_then_given_up() -> None:
    latest, now, waits = submitted(), NOW, []
    while True:
        latest = runs.observed(latest, JobStatus(JobPhase.FAILED, error="no memory"), now, POLICY)
        assert latest.state is RunState.FAILED
        assert latest.untold
        if latest.retry_at is None:
            break
        waits.append((latest.retry_at - now) / timedelta(minutes=1))
        assert step(DEMAND, latest, latest.retry_at - timedelta(seconds=1)) is RunAction.NOTHING
        now = latest.retry_at
        again = runs.next_step(DateRuns(DAY, DEMAND, latest), 0, now, POLICY)
        assert again.action is RunAction.START
        latest = runs.started("events", DEMAND, latest, again.attempt, "t", now, POLICY)
    assert waits == [10, 20]
    assert (latest.number, latest.attempt) == (3, 3)
    assert step(DEMAND, latest, now + 1000 * HOUR) is RunAction.NOTHING
    assert run_notice(latest, POLICY).text == "attempt 3 of 3 failed, given up: no memory"
    assert run_notice(latest, POLICY).severity is Severity.ERROR


def test_more_data_give_a_date_that_was_given_up_another_series_of_attempts() -> None:
    given_up = runs.failed(run(attempt=3), "no memory", NOW, POLICY)
    more = replace(DEMAND, data_until=DATA + HOUR)
    again = runs.next_step(DateRuns(DAY, more, given_up), 0, NOW, POLICY)
    assert (again.action, again.attempt) == (RunAction.START, 1)


def test_a_stuck_run_is_stopped_and_stays_open_until_it_is_known_to_have_ended() -> None:
    late = NOW + POLICY.timeout
    stopping = runs.observed(submitted(), JobStatus(JobPhase.RUNNING), late, POLICY)
    assert stopping.state is RunState.STOPPING
    assert stopping.untold
    assert "nothing else is started" in run_notice(stopping, POLICY).text
    still = runs.observed(stopping, JobStatus(JobPhase.RUNNING), late + HOUR, POLICY)
    assert still == stopping
    assert step(DEMAND, still, late + HOUR) is RunAction.CHECK
    ended = runs.observed(still, JobStatus(JobPhase.FAILED, error="killed"), late + HOUR, POLICY)
    assert ended.state is RunState.FAILED
    assert "longer than 4:00:00" in ended.error
    assert ended.retry_at is not None


def test_a_run_that_succeeds_while_it_is_being_stopped_has_succeeded() -> None:
    stopping = runs.observed(submitted(), JobStatus(JobPhase.RUNNING), NOW + POLICY.timeout, POLICY)
    done = runs.observed(stopping, JobStatus(JobPhase.SUCCEEDED), NOW + 5 * HOUR, POLICY)
    assert (done.state, done.error, done.untold) == (RunState.SUCCEEDED, "", False)


def test_nothing_follows_a_lost_run_before_it_must_have_ended_even_with_more_data() -> None:
    lost = runs.observed(submitted(), JobStatus(JobPhase.GONE), NOW + HOUR, POLICY)
    more = replace(DEMAND, data_until=DATA + HOUR)
    assert lost.state is RunState.LOST
    for demand in (DEMAND, more):
        assert step(demand, lost, NOW + POLICY.timeout - timedelta(seconds=1)) is RunAction.NOTHING
        assert step(demand, lost, NOW + POLICY.timeout) is RunAction.START


def test_a_lost_run_of_the_last_attempt_holds_more_data_back_as_well() -> None:
    lost = runs.observed(
        replace(submitted(), attempt=3), JobStatus(JobPhase.GONE), NOW + HOUR, POLICY
    )
    assert step(replace(DEMAND, data_until=DATA + HOUR), lost, NOW + 2 * HOUR) is RunAction.NOTHING
    assert step(DEMAND, lost, NOW + 100 * HOUR) is RunAction.NOTHING
    assert "given up" in run_notice(lost, POLICY).text


def test_an_overdue_run_that_nobody_can_see_is_told_of_once_and_mends_itself() -> None:
    assert runs.unseen(submitted(), "503", NOW + HOUR, POLICY) == submitted()
    late = runs.unseen(submitted(), "503", NOW + 5 * HOUR, POLICY)
    assert late.untold
    assert "overdue" in run_notice(late, POLICY).text
    assert runs.unseen(late, "503", NOW + 6 * HOUR, POLICY) == late
    done = runs.observed(late, JobStatus(JobPhase.SUCCEEDED), NOW + 6 * HOUR, POLICY)
    assert (done.state, done.error) == (RunState.SUCCEEDED, "")


def test_long_errors_keep_their_end() -> None:
    error = runs.failed(run(), "x" * 5000 + "the cause", NOW, POLICY).error
    assert len(error) == runs.ERROR_LENGTH_MAX
    assert error.endswith("the cause")


def test_the_night_is_yesterday_and_the_late_days() -> None:
    now = datetime(2026, 3, 1, 0, 30, tzinfo=UTC)
    assert recent_dates(now, 2) == (date(2026, 2, 28), date(2026, 2, 27), date(2026, 2, 26))
    assert recent_dates(now.astimezone(tz=None), 0) == (date(2026, 2, 28),)


@pytest.mark.parametrize(
    ("start", "hours", "dates"),
    [
        ("2026-02-28T00:00", 24, ["2026-02-28"]),
        ("2026-02-26T22:00", 4, ["2026-02-26", "2026-02-27"]),
        ("2026-03-01T08:00", 2, []),  # it still runs at noon
        ("2026-02-28T22:00", 4, ["2026-02-28"]),
    ],
)
def test_a_period_stands_for_its_dates_that_are_over(
    start: str, hours: int, dates: list[str]
) -> None:
    begin = datetime.fromisoformat(f"{start}+00:00")
    assert [str(day) for day in completed_dates(begin, begin + hours * HOUR, NOW)] == dates


def test_only_dates_with_data_are_asked_for_unless_nobody_can_see_them() -> None:
    other = DAY - timedelta(days=1)
    assert demands((DAY, other), {DAY: DATA}, "r") == (Demand(DAY, DATA, "r"),)
    (blind,) = demands((DAY,), None, "r")
    assert blind.data_until == datetime(2026, 3, 1, tzinfo=UTC)


def test_a_run_that_succeeds_with_a_warning_is_told_of_once() -> None:
    """What cannot be read again cannot be read the next night either."""
    status = JobStatus(JobPhase.SUCCEEDED, warning="2 dates of files")
    first = runs.observed(submitted(), status, NOW, POLICY, warned_before={""})
    assert (first.state, first.untold) == (RunState.SUCCEEDED, True)
    news = run_notice(first, POLICY)
    assert news.severity is Severity.WARNING
    assert news.text == "succeeded, but could not read again: 2 dates of files"
    again = runs.observed(submitted(), status, NOW, POLICY, warned_before={first.warning})
    assert (again.warning, again.untold) == (first.warning, False)
    more = replace(status, warning="3 dates of files")
    assert runs.observed(submitted(), more, NOW, POLICY, warned_before={first.warning}).untold


def test_a_warning_of_the_last_attempt_is_no_failure() -> None:
    status = JobStatus(JobPhase.SUCCEEDED, warning="2 dates of files")
    last = runs.observed(replace(submitted(), attempt=POLICY.attempts), status, NOW, POLICY)
    assert run_notice(last, POLICY).severity is Severity.WARNING
