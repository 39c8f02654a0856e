"""The state machine of runs, and the decision which run of a date is next. All is pure.

The runs of a date are numbered without gaps, run n + 1 is inserted only after run n was read as
ended, and a final state never changes. Therefore a date never has two open runs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta

from shared.trends.nightly.model import (
    DateRuns,
    Demand,
    Job,
    JobPhase,
    JobStatus,
    Run,
    RunPolicy,
    RunState,
)
from shared.values.leases import is_held

ERROR_LENGTH_MAX = 2000
SUBMIT_DELAY_MAX = timedelta(hours=1)
DOUBLINGS_MAX = 20
DATASET = "{dataset}"


def next_run(
    dataset: str,
    day: DateRuns,
    open_runs: int,
    new_token: Callable[[date, int], str],
    now: datetime,
    policy: RunPolicy,
) -> Run | None:
    """The run of a date that is to be stored and submitted, if any.

    An open run is submitted again, with the same token, when its lease expires without a reply.
    After a failed run the date waits, and is tried again for the same data, up to
    ``policy.attempts`` times. A demand for more data starts a new series of attempts.
    """
    latest, demand = day.latest, day.demand
    if latest and not latest.state.ended:
        may_answer = _lasts(latest.lease_until, latest, now)
        is_silent = latest.state is RunState.SUBMITTING and not may_answer
        return submitted_again(latest, now, policy) if is_silent else None
    if demand is None or open_runs >= policy.parallel:
        return None
    run = started(dataset, demand, latest, "", now, policy)
    has_succeeded = latest is not None and latest.state is RunState.SUCCEEDED
    if run.attempt > policy.attempts or (run.attempt > 1 and has_succeeded):
        return None
    if latest and _lasts(latest.retry_at, latest, now):
        return None
    return replace(run, token=new_token(run.date, run.number))


def _lasts(end: datetime | None, run: Run, now: datetime) -> bool:
    """Whether a wait that began with the last change of the run lasts."""
    return end is not None and is_held(end - now, end - run.changed_at)


def started(
    dataset: str, demand: Demand, latest: Run | None, token: str, now: datetime, policy: RunPolicy
) -> Run:
    """A new run. The caller inserts it before submitting it. Its ``attempt`` counts the runs for
    the same data."""
    is_same = latest is not None and latest.data_until >= demand.data_until
    return Run(
        dataset=dataset,
        date=demand.date,
        number=latest.number + 1 if latest else 1,
        attempt=latest.attempt + 1 if latest and is_same else 1,
        token=token,
        data_until=demand.data_until,
        state=RunState.SUBMITTING,
        created_at=now,
        changed_at=now,
        lease_until=now + policy.lease,
    )


def submitted_again(run: Run, now: datetime, policy: RunPolicy) -> Run:
    submits, until = run.submits + 1, now + policy.lease
    return replace(run, submits=submits, lease_until=until, changed_at=now, error="")


def accepted(run: Run, handle: str, log_url: str, now: datetime) -> Run:
    return replace(
        run,
        state=RunState.SUBMITTED,
        handle=handle,
        log_url=log_url,
        submitted_at=now,
        changed_at=now,
        lease_until=None,
        error="",
    )


def unanswered(run: Run, error: str, now: datetime, policy: RunPolicy) -> Run:
    """The run after a submission without a reply. The service may have accepted the job."""
    delay = min(_doubled(policy.submit_delay, run.submits - 1), SUBMIT_DELAY_MAX)
    return replace(run, lease_until=now + delay, changed_at=now, error=_shortened(error))


def failed(run: Run, error: str, now: datetime, policy: RunPolicy) -> Run:
    again = run.attempt < policy.attempts
    return replace(
        run,
        state=RunState.FAILED,
        error=_shortened(error) or "no reason was given",
        changed_at=now,
        retry_at=now + _doubled(policy.retry_delay, run.attempt - 1) if again else None,
    )


def observed(run: Run, status: JobStatus, now: datetime, policy: RunPolicy) -> Run:
    """The run after a check; the same run if nothing has changed."""
    stopping = run.state is RunState.STOPPING
    run = replace(run, log_url=status.log_url or run.log_url, error=run.error if stopping else "")
    match status.phase:
        case JobPhase.SUCCEEDED:
            warning = _shortened(status.warning)
            return replace(run, state=RunState.SUCCEEDED, error="", warning=warning, changed_at=now)
        case JobPhase.FAILED:
            return failed(run, run.error if stopping else status.error, now, policy)
        case JobPhase.GONE:
            return failed(run, run.error, now, policy) if stopping else _lost(run, now, policy)
    if stopping:
        return run
    if run.submitted_at and now - run.submitted_at >= policy.timeout:
        return _stopped(run, now, policy)
    if status.phase is JobPhase.RUNNING and run.state is not RunState.RUNNING:
        return replace(run, state=RunState.RUNNING, changed_at=now)
    return run


def _stopped(run: Run, now: datetime, policy: RunPolicy) -> Run:
    """The run after a stop. It stays open until the service reports its end."""
    error = f"it ran for longer than {policy.timeout} and was stopped"
    return replace(run, state=RunState.STOPPING, error=error, changed_at=now)


def unseen(run: Run, error: str, now: datetime, policy: RunPolicy) -> Run:
    """The run after a failed check, whose error is noted once the run is overdue."""
    overdue = run.submitted_at is not None and now - run.submitted_at >= policy.timeout
    if run.error or not overdue:
        return run
    return replace(run, error=_shortened(error), changed_at=now)


def _lost(run: Run, now: datetime, policy: RunPolicy) -> Run:
    """The run if the service no longer knows it. It may still run until its time limit."""
    lost = failed(run, "the Spark service no longer knows the run", now, policy)
    ends = (run.submitted_at or run.created_at) + policy.timeout
    return replace(lost, state=RunState.LOST, retry_at=max(lost.retry_at or now, ends))


def _doubled(delay: timedelta, times: int) -> timedelta:
    return delay * (1 << min(times, DOUBLINGS_MAX))


def _shortened(text: str) -> str:
    """The end of a long text, where the error usually is."""
    return text if len(text) <= ERROR_LENGTH_MAX else f"…{text[1 - ERROR_LENGTH_MAX :]}"


def job(run: Run, inputs: Sequence[str], output: str, arguments: Sequence[str]) -> Job:
    """The job of a run. In all arguments, ``{dataset}`` is the name of the data set."""
    places = [part for each in inputs for part in ("--input", each)]
    options = (*places, "--output", output, "--date", str(run.date), *arguments)
    return Job(run.token, tuple(part.replace(DATASET, run.dataset) for part in options))


def new_token(day: date, number: int) -> str:
    return f"event-trends-{day}-{number}-{uuid.uuid4().hex[:12]}"
