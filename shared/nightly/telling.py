"""What people are told of runs."""

from __future__ import annotations

from shared.nightly.model import Notice, Run, RunPolicy, RunState


def notice(run: Run, policy: RunPolicy) -> Notice:
    """What to tell of a run that ended badly, that is overdue, or that cannot be submitted."""
    lasting = run.state.ended and run.attempt >= policy.attempts
    return Notice(subject(run.dataset, str(run.date)), _text(run, policy), lasting, run.log_url)


def subject(dataset: str, day: str) -> str:
    return f"event trends of {dataset}, {day}"


def _text(run: Run, policy: RunPolicy) -> str:
    if run.state is RunState.SUBMITTING:
        return f"no answer to {run.submits} submissions, trying on: {run.error}"
    if run.state is RunState.STOPPING:
        return f"{run.error}; nothing else is started before it has ended"
    if not run.state.ended:
        return f"overdue, and where it runs nobody answers: {run.error}"
    again = run.attempt < policy.attempts and run.retry_at
    then = f"again at {run.retry_at:%Y-%m-%d %H:%M} UTC" if again else "given up"
    return f"attempt {run.attempt} of {policy.attempts} {run.state}, {then}: {run.error}"
