"""The state machine of runs, and the decision about the next step for a date. All functions are
pure.

The runs of a date are numbered without gaps. An instance inserts run n + 1 only after it has read
that run n has ended. A final state never changes, and a row can be inserted only once. Therefore a
date never has two open runs.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from enum import Enum

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
NOTIFYING_MAX = timedelta(minutes=5)
"""Longer than a function may run. So whoever was about to notify has done so or has died."""
DATASET = "{dataset}"


class RunAction(Enum):
    NOTHING = "nothing"
    START = "start"
    SUBMIT_AGAIN = "submit again"
    CHECK = "check"


@dataclass(frozen=True, slots=True)
class RunStep:
    """The next step for a date. ``attempt`` is used if a run is to start."""

    action: RunAction
    attempt: int = 0


def next_step(day: DateRuns, open_runs: int, now: datetime, policy: RunPolicy) -> RunStep:
    """Decide the next step for a date.

    1. An open run is checked. One whose submission got no reply is submitted again, with the same
       token, when its lease expires.
    2. No run starts without a demand, or if a run with all demanded data has succeeded.
    3. After a failed run the date waits. Then it is tried again for the same data, up to
       ``policy.attempts`` times. A demand for more data starts a new series of attempts.
    4. At most ``policy.parallel`` runs are open at a time.
    """
    latest, demand = day.latest, day.demand
    if latest and not latest.state.ended:
        return RunStep(_of_open(latest, now))
    if demand is None:
        return RunStep(RunAction.NOTHING)
    attempt = 1
    if latest and latest.data_until >= demand.data_until:
        attempt = latest.attempt + 1
        if latest.state is RunState.SUCCEEDED or attempt > policy.attempts:
            return RunStep(RunAction.NOTHING)
    if latest and _lasts(latest.retry_at, latest, now):
        return RunStep(RunAction.NOTHING)
    if open_runs >= policy.parallel:
        return RunStep(RunAction.NOTHING)
    return RunStep(RunAction.START, attempt)


def _of_open(run: Run, now: datetime) -> RunAction:
    if run.state is not RunState.SUBMITTING:
        return RunAction.CHECK
    submits = _lasts(run.lease_until, run, now)
    return RunAction.NOTHING if submits else RunAction.SUBMIT_AGAIN


def _lasts(end: datetime | None, run: Run, now: datetime) -> bool:
    """Whether a wait that began with the last change of the run lasts."""
    return end is not None and is_held(end - now, end - run.changed_at)


def started(
    dataset: str,
    demand: Demand,
    latest: Run | None,
    attempt: int,
    token: str,
    now: datetime,
    policy: RunPolicy,
) -> Run:
    """A new run. The caller inserts it before submitting it."""
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
    """The run with a new lease. The caller stores it before submitting it again."""
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
    """The run after a submission without a reply.

    The same token is submitted again later, because the service may have accepted the job.
    """
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
        error=_shortened(error) or "no reason was given",
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
    """The run after its status was checked; the same run if nothing has changed.

    A warning usually recurs every night, so operators are notified only if it is not among
    ``warned_before``.
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
    """The run after a stop. It stays open until the service reports its end, so no other run starts
    before.
    """
    error = f"it ran for longer than {policy.timeout} and was stopped"
    return replace(run, state=RunState.STOPPING, error=error, changed_at=now, untold=True)


def unseen(run: Run, error: str, now: datetime, policy: RunPolicy) -> Run:
    """The run after a failed check of its status. Operators are notified once the run is
    overdue."""
    overdue = run.submitted_at is not None and now - run.submitted_at >= policy.timeout
    if run.error or not overdue:
        return run
    return replace(run, error=_shortened(error), untold=True)


def to_notify(run: Run, now: datetime) -> Run:
    """The run, reserved for its writer to notify operators of it, if they are to be notified.

    Several functions check the same runs at the same time, such as those whose timers fire at the
    start of the host.
    """
    return replace(run, notifying_until=now + NOTIFYING_MAX if run.untold else None)


def was_left_untold(run: Run, now: datetime) -> bool:
    """Whether the instance that was to notify operators has failed to do so."""
    until = run.notifying_until
    return run.untold and (until is None or not is_held(until - now, NOTIFYING_MAX))


def told(run: Run) -> Run:
    return replace(run, untold=False, notifying_until=None)


def _lost(run: Run, now: datetime, policy: RunPolicy) -> Run:
    """The run if the service no longer knows it.

    It may still be running, so no other run starts before its time limit is reached.
    """
    lost = failed(run, "the Spark service no longer knows the run", now, policy)
    ends = (run.submitted_at or run.created_at) + policy.timeout
    return replace(lost, state=RunState.LOST, retry_at=max(lost.retry_at or now, ends))


def _doubled(delay: timedelta, times: int) -> timedelta:
    return delay * (1 << min(times, DOUBLINGS_MAX))


def _shortened(text: str) -> str:
    """The end of a long text, where the error usually is."""
    return text if len(text) <= ERROR_LENGTH_MAX else f"…{text[1 - ERROR_LENGTH_MAX :]}"


def job(run: Run, inputs: Sequence[str], output: str, arguments: Sequence[str]) -> Job:
    """The job of a run.

    In ``inputs`` and ``output``, ``{dataset}`` is replaced by the name of the data set.
    """
    options = [*(("--input", each) for each in inputs), ("--output", output)]
    places = [part.replace(DATASET, run.dataset) for option in options for part in option]
    return Job(run.token, (*places, "--date", str(run.date), *arguments))


def new_token(day: date, number: int) -> str:
    """A unique token that contains the date and the number of the run."""
    return f"event-trends-{day}-{number}-{uuid.uuid4().hex[:12]}"
