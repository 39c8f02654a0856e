"""The state machine of runs, and what to do next about a date.

A date's runs are numbered without gaps. Number n + 1 is inserted only by who has seen n ended, an
end is final, and a row can be inserted once: so no two runs of a date are open at the same time.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from enum import Enum

from shared.nightly.model import (
    DateRuns,
    Demand,
    Job,
    JobPhase,
    JobStatus,
    Run,
    RunPolicy,
    RunState,
)

ERROR_LENGTH_MAX = 2000
SUBMIT_DELAY_MAX = timedelta(hours=1)
DOUBLINGS_MAX = 20
DATASET = "{dataset}"


class RunAction(Enum):
    NOTHING = "nothing"
    START = "start"
    SUBMIT_AGAIN = "submit again"
    CHECK = "check"


@dataclass(frozen=True, slots=True)
class RunStep:
    """What to do about a date, and why. ``attempt`` counts where a run is to start."""

    action: RunAction
    reason: str
    attempt: int = 0


def next_step(day: DateRuns, open_runs: int, now: datetime, policy: RunPolicy) -> RunStep:
    """What to do about a date.

    1. A run that is open is looked at; one whose submission nobody has answered is handed over
       again, with the same token, once its lease is over.
    2. Nothing is started that nobody asks for, or that a run with all the data has done.
    3. After a run that ended badly comes a wait, then another for the same data, up to
       ``policy.attempts``. More data begin to count anew.
    4. No more than ``policy.parallel`` runs at a time.
    """
    latest, demand = day.latest, day.demand
    if latest and not latest.state.ended:
        return _of_open(latest, now)
    if demand is None:
        return RunStep(RunAction.NOTHING, "nobody asks for it")
    attempt = 1
    if latest and latest.data_until >= demand.data_until:
        if latest.state is RunState.SUCCEEDED:
            return RunStep(
                RunAction.NOTHING, f"run {latest.number} had all data until {latest.data_until}"
            )
        attempt = latest.attempt + 1
        if attempt > policy.attempts:
            return RunStep(RunAction.NOTHING, f"given up after {latest.attempt} attempts")
    if latest and latest.retry_at and now < latest.retry_at:
        return RunStep(
            RunAction.NOTHING, f"run {latest.number} {latest.state}; again at {latest.retry_at}"
        )
    if open_runs >= policy.parallel:
        return RunStep(RunAction.NOTHING, f"{open_runs} other run(s) first")
    return RunStep(RunAction.START, demand.reason, attempt)


def _of_open(run: Run, now: datetime) -> RunStep:
    if run.state is not RunState.SUBMITTING:
        return RunStep(RunAction.CHECK, f"run {run.number} is {run.state}")
    if run.lease_until and now < run.lease_until:
        return RunStep(
            RunAction.NOTHING, f"run {run.number} is being submitted until {run.lease_until}"
        )
    return RunStep(
        RunAction.SUBMIT_AGAIN, f"nobody answered for the submission of run {run.number}"
    )


def started(
    dataset: str,
    demand: Demand,
    latest: Run | None,
    attempt: int,
    token: str,
    now: datetime,
    policy: RunPolicy,
) -> Run:
    """A new run, to be inserted before it is submitted."""
    return Run(
        dataset=dataset,
        date=demand.date,
        number=latest.number + 1 if latest else 1,
        attempt=attempt,
        token=token,
        data_until=demand.data_until,
        state=RunState.SUBMITTING,
        created_at=now,
        changed_at=now,
        lease_until=now + policy.lease,
    )


def submitted_again(run: Run, now: datetime, policy: RunPolicy) -> Run:
    """The run taken over, to be written before it is handed over again."""
    return replace(
        run, submits=run.submits + 1, lease_until=now + policy.lease, changed_at=now, untold=False
    )


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
    """Submitted without an answer: the same run again later, for it may have been taken."""
    delay = min(_doubled(policy.submit_delay, run.submits - 1), SUBMIT_DELAY_MAX)
    return replace(
        run,
        lease_until=now + delay,
        changed_at=now,
        error=_shortened(error),
        untold=run.submits == policy.submits_until_notified,
    )


def failed(run: Run, error: str, now: datetime, policy: RunPolicy) -> Run:
    again = run.attempt < policy.attempts
    return replace(
        run,
        state=RunState.FAILED,
        error=_shortened(error) or "it does not say why",
        changed_at=now,
        retry_at=now + _doubled(policy.retry_delay, run.attempt - 1) if again else None,
        untold=True,
    )


def observed(
    run: Run,
    status: JobStatus,
    now: datetime,
    policy: RunPolicy,
    warned_before: Collection[str] = (),
) -> Run:
    """The run in view of what its submitter says; itself where nothing has changed.

    A warning lasts for many nights: only one that no run of ``warned_before`` had is to be told.
    """
    stopping = run.state is RunState.STOPPING
    run = replace(run, log_url=status.log_url or run.log_url, error=run.error if stopping else "")
    match status.phase:
        case JobPhase.SUCCEEDED:
            return _succeeded(run, _shortened(status.warning), now, warned_before)
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


def _succeeded(run: Run, warning: str, now: datetime, warned_before: Collection[str]) -> Run:
    return replace(
        run,
        state=RunState.SUCCEEDED,
        error="",
        warning=warning,
        changed_at=now,
        untold=bool(warning) and warning not in warned_before,
    )


def _stopped(run: Run, now: datetime, policy: RunPolicy) -> Run:
    """Cancelled, but open until it is known to have ended: until then nothing else starts."""
    error = f"ran for longer than {policy.timeout} and was stopped"
    return replace(run, state=RunState.STOPPING, error=error, changed_at=now, untold=True)


def unseen(run: Run, error: str, now: datetime, policy: RunPolicy) -> Run:
    """The run whose submitter does not answer; told of once it should have ended long ago."""
    overdue = run.submitted_at is not None and now - run.submitted_at >= policy.timeout
    if run.error or not overdue:
        return run
    return replace(run, error=_shortened(error), untold=True)


def _lost(run: Run, now: datetime, policy: RunPolicy) -> Run:
    """It may still run somewhere, so nothing else starts before its time is over."""
    lost = failed(run, "its submitter knows it no more", now, policy)
    ends = (run.submitted_at or run.created_at) + policy.timeout
    return replace(lost, state=RunState.LOST, retry_at=max(lost.retry_at or now, ends))


def _doubled(delay: timedelta, times: int) -> timedelta:
    return delay * (1 << min(times, DOUBLINGS_MAX))


def _shortened(text: str) -> str:
    """The end of a text, where errors stand."""
    return text if len(text) <= ERROR_LENGTH_MAX else f"…{text[1 - ERROR_LENGTH_MAX :]}"


def job(run: Run, source: str, output: str, arguments: Sequence[str]) -> Job:
    """The run as arguments of the job.

    ``source`` and ``output`` may have ``{dataset}`` in them, for the data set's name.
    """
    return Job(
        run.token,
        (
            "--input",
            source.replace(DATASET, run.dataset),
            "--output",
            output.replace(DATASET, run.dataset),
            "--date",
            str(run.date),
            *arguments,
        ),
    )


def new_token(day: date, number: int) -> str:
    """A name that tells a person which run it is, and that was never used before."""
    return f"event-trends-{day}-{number}-{uuid.uuid4().hex[:12]}"
