"""Guards: what may change a rule's wish, in one visible order.

Each guard takes the capacity wanted so far and answers the capacity that it allows with the
reason, or None where it has nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from shared.autoscaling.model import ActionStatus, Cooldown, Desired, Limits, Observation


@dataclass(frozen=True, slots=True)
class Limit:
    """A guard's word: the capacity that it allows, and why."""

    capacity: int
    reason: str


@dataclass(frozen=True, slots=True)
class Context:
    seen: Observation
    limits: Limits
    cooldown: Cooldown
    desired: Desired | None


Guard = Callable[[int, Context], Limit | None]


def cooldown(wanted: int, context: Context) -> Limit | None:
    """After a confirmed change wait; the wait depends on the direction of the next change."""
    seen, changed_at = context.seen, context.seen.changed_at
    if changed_at is None or wanted == seen.capacity:
        return None
    out = wanted > seen.capacity
    seconds = context.cooldown.scale_out_seconds if out else context.cooldown.scale_in_seconds
    until = changed_at + timedelta(seconds=seconds)
    if seen.now > until:
        return None
    direction = "scale-out" if out else "scale-in"
    return Limit(seen.capacity, f"{direction} cooldown until {until:%H:%M:%S} UTC")


def bounds(wanted: int, context: Context) -> Limit | None:
    """Minimum and maximum hold for every capacity, one set by hand and one in cooldown too."""
    limits = context.limits
    if wanted > limits.maximum:
        return Limit(limits.maximum, f"maximum is {limits.maximum}")
    if wanted < limits.minimum:
        return Limit(limits.minimum, f"minimum is {limits.minimum}")
    return None


def failed_action(wanted: int, context: Context) -> Limit | None:
    """After a refused action wait a little, lest the refusal is asked for with every sample."""
    desired, seen = context.desired, context.seen
    if desired is None or desired.status is not ActionStatus.FAILED or desired.retry_at is None:
        return None
    if wanted == seen.capacity or seen.now >= desired.retry_at:
        return None
    return Limit(
        seen.capacity,
        f"last action failed ({desired.last_error}); next try after "
        f"{desired.retry_at:%H:%M:%S} UTC",
    )


def already_requested(wanted: int, context: Context) -> Limit | None:
    """One order is enough; it is absolute, and the reconciler repeats it where it got lost."""
    desired = context.desired
    if desired is None or not desired.pending or wanted != desired.target:
        return None
    return Limit(context.seen.capacity, f"already requested as epoch {desired.epoch}")


GUARDS: tuple[Guard, ...] = (cooldown, bounds, failed_action, already_requested)
