"""A state that was written before the clock of the servers was set back.

What it holds then lies in the future for as long as the clock was set back: a sample of before
would pass for the newest, a cooldown would not begin to run, and an order would not be repeated.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from shared.autoscaling.deciding.samples import FUTURE_TOLERANCE_SECONDS
from shared.autoscaling.desired import Desired
from shared.autoscaling.policies.history import until
from shared.autoscaling.policies.spans import span
from shared.autoscaling.state import History, ScalingState


def as_of(state: ScalingState, now: datetime) -> ScalingState:
    """The state without what lies further in the future than the clocks of two services differ.

    1. Samples and wishes of the future are dropped. 2. What was desired happened now at the
    latest, so that waits begin to run. 3. An order of the future is due to be sent again, for
    nobody can say how long ago that was done.
    """
    latest = now + span(FUTURE_TOLERANCE_SECONDS)
    for name, history in state.histories.items():
        if history.samples and history.samples[-1].time > latest:
            state = state.with_history(name, History(until(history.samples, latest)))
    wishes, desired = state.wishes.samples, state.desired
    if wishes and wishes[-1].time > now:
        state = replace(state, wishes=History(until(wishes, now)))
    if desired is not None and _is_ahead(desired, latest):
        state = state.with_desired(_happened(desired, now))
    return state


def _is_ahead(desired: Desired, latest: datetime) -> bool:
    times = (desired.requested_at, desired.sent_at, desired.changed_at)
    return any(time is not None and time > latest for time in times)


def _happened(desired: Desired, now: datetime) -> Desired:
    repeat_at = now if desired.pending else desired.retry_at and min(desired.retry_at, now)
    return replace(
        desired,
        requested_at=min(desired.requested_at, now),
        sent_at=desired.sent_at and min(desired.sent_at, now),
        changed_at=desired.changed_at and min(desired.changed_at, now),
        retry_at=repeat_at,
    )
