"""Guards: what may change a policy's wish, in one visible order.

Each guard takes the capacity wanted so far and answers the capacity that it allows with the
reason, or None where it has nothing to say.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from shared.autoscaling.declaring import Guards, Missing, RateLimit
from shared.autoscaling.measurements import MetricValue, Window, span
from shared.autoscaling.policy import (
    Observation,
    PolicyFunction,
    Recommendation,
    Resource,
    ask,
    described,
)
from shared.autoscaling.state import ActionStatus, Desired, Override, ScalingState


@dataclass(frozen=True, slots=True)
class Limit:
    """A guard's answer: the capacity that it allows, and why."""

    capacity: int
    reason: str


@dataclass(slots=True)
class Context:
    """What guards look at; ``wish`` is what the policy wants."""

    resource: Resource
    state: ScalingState
    seen: Observation
    override: Override | None
    wish: Recommendation
    forced: bool = False
    """A fallback stands: guards that only calm a policy leave it alone."""

    @property
    def guards(self) -> Guards:
        return self.resource.guards

    @property
    def desired(self) -> Desired | None:
        return self.state.desired


Guard = Callable[[int, Context], Limit | None]
Samples = tuple[MetricValue, ...]


# --- 1. data ----------------------------------------------------------------------------------


def missing_data(wanted: int, context: Context) -> Limit | None:
    """Nobody scales in on what nobody has seen; hold, or a fixed capacity, where asked for.

    Of several missing metrics the highest fallback counts, before a hold, before no scale-in.
    """
    seen, guards, silent = context.seen, context.resource.guards, []
    counted = context.resource.throughput.counted_metric
    for name, history in seen.histories.items():
        rule = guards.missing_for(name)
        if name != counted and is_missing(history.samples, rule, seen.now):
            silent.append((_strictness(rule), name, rule))
    if not silent:
        return None
    _, name, rule = max(silent, key=lambda one: one[0])
    silent_seconds = seconds_without(seen.history(name).samples, seen.now)
    said = "was never read" if silent_seconds is None else f"is missing for {silent_seconds:.0f} s"
    return _missing(wanted, f"{name} {said}", silent_seconds is None, rule, context)


def is_missing(samples: Samples, rule: Missing, now: datetime) -> bool:
    """True where the metric has had no sample for longer than its rule allows, or never one."""
    return not samples or now - samples[-1].time > span(rule.after_seconds)


def seconds_without(samples: Samples, now: datetime) -> float | None:
    """How long the metric has had no sample; None where it never had one."""
    return (now - samples[-1].time).total_seconds() if samples else None


def waited_seconds(capacities: Samples, now: datetime) -> float:
    """How long the app has had the time to read a metric that it never read."""
    return (now - capacities[0].time).total_seconds() if capacities else 0.0


def _strictness(rule: Missing) -> int:
    if isinstance(rule.then, int):
        return rule.then
    return -1 if rule.then == "hold" else -2


def _missing(
    wanted: int, said: str, never_read: bool, rule: Missing, context: Context
) -> Limit | None:
    seen = context.seen
    if rule.then == "hold_in":
        return Limit(seen.capacity, f"{said}: no scale-in") if wanted < seen.capacity else None
    if rule.then == "hold":
        return Limit(seen.capacity, f"{said}: holding")
    # What was never read is missing only once the app has had the time to read it.
    if never_read and waited_seconds(seen.capacities.samples, seen.now) <= rule.after_seconds:
        return Limit(seen.capacity, f"{said} yet")
    context.forced = True
    return Limit(rule.then, f"{said}: falling back to {rule.then}")


def consumer_broken(wanted: int, context: Context) -> Limit | None:
    """A backlog that grows because the consumer is broken is not cured by more of it."""
    name, seen = context.guards.breaker_metric, context.seen
    if name is None or wanted <= seen.capacity:
        return None
    samples = seen.history(name).samples
    if is_missing(samples, context.guards.missing_for(name), seen.now):
        return None  # nobody knows whether it is open still
    if samples[-1].value <= 0:
        return None
    return Limit(seen.capacity, f"the consumer's circuit breaker is open ({name}): no scale-out")


# --- 2. calm ----------------------------------------------------------------------------------


def stabilisation(wanted: int, context: Context) -> Limit | None:
    """Scale in only to the highest, out only to the lowest wish of the window of its direction.

    As the Horizontal Pod Autoscaler does: a wish counts once it has lasted.
    """
    current, guards = context.seen.capacity, context.guards
    if context.forced:
        return None
    if wanted < current and guards.stabilisation_in_seconds:
        highest = int(max(_wishes(context, guards.stabilisation_in_seconds, wanted)))
        allowed, which = min(highest, current), "highest"
    elif wanted > current and guards.stabilisation_out_seconds:
        lowest = int(min(_wishes(context, guards.stabilisation_out_seconds, wanted)))
        allowed, which = max(lowest, current), "lowest"
    else:
        return None
    if allowed == wanted:
        return None
    return Limit(allowed, f"{allowed} is the {which} wish of the stabilisation window")


def _wishes(context: Context, seconds: float, wanted: int) -> list[float]:
    start = context.seen.now - span(seconds)
    kept = context.state.wishes.samples
    return [s.value for s in kept if s.time >= start] + [float(wanted)]


def flap_projection(wanted: int, context: Context) -> Limit | None:
    """Scale in to m only if the policy would not scale out again at m.

    Metrics that are a share per instance are projected to m: value·n/m, as Azure Monitor does.
    """
    seen = context.seen
    exempt = context.wish.paced or context.forced
    if wanted >= seen.capacity or exempt or not context.guards.flap_projection:
        return None
    policy, lowest = context.resource.policy, max(wanted, seen.limits.minimum)
    for capacity in range(lowest, seen.capacity):
        if ask(policy, _projected(seen, policy, capacity)).capacity <= capacity:
            return None if capacity == lowest else Limit(capacity, _flaps(lowest))
    return Limit(seen.capacity, _flaps(lowest)) if lowest < seen.capacity else None


def _flaps(wanted: int) -> str:
    return f"at {wanted} the rules would scale out again"


def _projected(seen: Observation, policy: PolicyFunction, capacity: int) -> Observation:
    factor = seen.capacity / capacity
    shares = described(policy).utilisation_names
    names = [name for name in shares if name in seen.metrics]
    metrics = {name: _scaled(seen.metrics[name], factor) for name in names}
    histories = {name: _scaled(seen.history(name), factor) for name in names}
    return replace(
        seen,
        capacity=capacity,
        metrics={**seen.metrics, **metrics},
        histories={**seen.histories, **histories},
    )


def _scaled(window: Window, factor: float) -> Window:
    return Window(tuple([replace(s, value=s.value * factor) for s in window.samples]))


def rate_limits(wanted: int, context: Context) -> Limit | None:
    """No faster than every limit of the direction allows."""
    seen, limit = context.seen, None
    for rule in context.guards.rate_limits:
        if (rule.direction == "out") is not (wanted > seen.capacity) or wanted == seen.capacity:
            continue
        allowed = _allowed(rule, seen)
        if (allowed < wanted) if rule.direction == "out" else (allowed > wanted):
            wanted = allowed
            size = f"{rule.percent:g} %" if rule.instances is None else f"{rule.instances}"
            said = f"at most {size} {rule.direction} in {rule.period_seconds:g} s"
            limit = Limit(allowed, said)
    return limit


def _allowed(rule: RateLimit, seen: Observation) -> int:
    base = _capacity_at(seen, seen.now - span(rule.period_seconds))
    share = (rule.percent or 0) / 100 * base
    if rule.direction == "out":
        most = base + (math.ceil(share) if rule.instances is None else rule.instances)
        return max(most, seen.capacity)
    least = base - (math.floor(share) if rule.instances is None else rule.instances)
    return min(least, seen.capacity)


def _capacity_at(seen: Observation, time: datetime) -> int:
    samples = seen.capacities.samples
    if not samples:
        return seen.capacity
    at = bisect_right(samples, time, key=lambda sample: sample.time)
    return int(samples[max(at - 1, 0)].value)


def cooldown(wanted: int, context: Context) -> Limit | None:
    """After a confirmed change wait; the wait depends on the direction of the next change."""
    seen, changed_at = context.seen, context.seen.changed_at
    if changed_at is None or wanted == seen.capacity or context.forced:
        return None
    out, wait = wanted > seen.capacity, context.resource.cooldown
    by_hand = context.desired is not None and context.desired.changed_by_hand
    if context.wish.paced and (out or not by_hand):  # no policy can have accounted for a person
        return None
    after_scale_in = context.desired is not None and context.desired.changed_out is False
    if out and after_scale_in and wait.scale_out_pierces:
        return None
    seconds = wait.scale_out_seconds if out else wait.scale_in_seconds
    until = changed_at + span(seconds)
    if seen.now > until:
        return None
    direction = "scale-out" if out else "scale-in"
    return Limit(seen.capacity, f"{direction} cooldown until {until:%H:%M:%S} UTC")


# --- 3. people and bounds ---------------------------------------------------------------------


def override(wanted: int, context: Context) -> Limit | None:
    """What a person set: exactly so many, no fewer than so many, or none fewer than now."""
    override, current = context.override, context.seen.capacity
    if override is None:
        return None
    reason = f" ({override.reason})" if override.reason else ""
    if override.exact is not None:
        return Limit(override.exact, f"exactly {override.exact} by override{reason}")
    if override.floor is not None and wanted < override.floor:
        return Limit(override.floor, f"at least {override.floor} by override{reason}")
    if override.freeze_scale_in and wanted < current:
        return Limit(current, f"scale-in is frozen by override{reason}")
    return None


def bounds(wanted: int, context: Context) -> Limit | None:
    """Minimum and maximum hold for every capacity, one set by hand and one in cooldown too."""
    limits = context.seen.limits
    if wanted > limits.maximum:
        return Limit(limits.maximum, f"maximum is {limits.maximum}")
    if wanted < limits.minimum:
        return Limit(limits.minimum, f"minimum is {limits.minimum}")
    return None


# --- 4. orders under way ----------------------------------------------------------------------


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
    desired = context.state.desired
    if desired is None or wanted != desired.target or not desired.pending:
        return None
    return Limit(context.seen.capacity, f"already requested as epoch {desired.epoch}")


REVOKING: tuple[Guard, ...] = (missing_data, consumer_broken, override, bounds)
"""Those that take back an order under way, too, where they would not allow it any more."""

GUARDS: tuple[Guard, ...] = (
    missing_data,
    consumer_broken,
    stabilisation,
    flap_projection,
    rate_limits,
    cooldown,
    override,
    bounds,
    failed_action,
    already_requested,
)

GUARDS_OF_A_STAY: tuple[Guard, ...] = (missing_data, override, bounds, already_requested)
"""Those of them that may have something to say to a wish for the capacity that there is."""
