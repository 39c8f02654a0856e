"""Guards: the rules that may change the capacity which a policy recommends, and their order.

Each takes the capacity that the guards before it allow, and returns the capacity that it allows,
with the reason, or None if it does not apply. ``GUARDS`` states the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from shared.autoscaling.declaring import Guards, Missing, RateLimit
from shared.autoscaling.learning.backlogs import Unfallen
from shared.autoscaling.policies.recommendations import capacity_at, full_instances, instances
from shared.autoscaling.policy import (
    Observation,
    PolicyFunction,
    Recommendation,
    Resource,
    ask,
    said,
)
from shared.autoscaling.state import ActionStatus, Desired, Override, ScalingState
from shared.values.measurements import NO_SAMPLES, OF_TOPIC, Samples, Window, span


@dataclass(frozen=True, slots=True)
class Limit:
    """The capacity that a guard allows, and the reason."""

    capacity: int
    reason: str


@dataclass(frozen=True, slots=True)
class Context:
    """The input of the guards: the resource, its state, and the policy's recommendation."""

    resource: Resource
    state: ScalingState
    seen: Observation
    override: Override | None
    recommendation: Recommendation
    unfallen: Sequence[Unfallen] = ()

    @property
    def guards(self) -> Guards:
        return self.resource.guards

    @property
    def desired(self) -> Desired | None:
        return self.state.desired


Guard = Callable[[int, Context], Limit | None]


# --- 1. data ----------------------------------------------------------------------------------


def missing_data(capacity: int, context: Context) -> Limit | None:
    """Apply the ``Missing`` rule of each metric without recent samples: first holds, then bans on
    scale-in, then fallback capacities, the highest one last, so that it wins. The metric that the
    rate is learned from is exempt. Samples of disabled entities are not missing."""
    seen, guards, silent = context.seen, context.resource.guards, []
    counted = context.resource.throughput.counted_metric
    for name, history in seen.histories.items():
        rule = guards.missing_for(name)
        samples = history.samples or context.state.histories.get(name, NO_SAMPLES).samples
        if name != counted and is_missing(samples, rule, seen.now):
            silent.append((_order(rule), name, rule, seconds_without(samples, seen.now)))
    limit = None
    for _, name, rule, seconds in sorted(silent, key=lambda metric: metric[0]):
        found = _missing(capacity, name, rule, seconds, seen)
        if found is not None and (limit is None or found.capacity != capacity):
            capacity, limit = found.capacity, found
    return limit


def is_missing(samples: Samples, rule: Missing, now: datetime) -> bool:
    """True if the metric has no sample at all, or if its newest sample is too old for the rule."""
    return not samples or now - samples[-1].time > span(rule.after_seconds)


def seconds_without(samples: Samples, now: datetime) -> float | None:
    """The age of the newest sample in seconds; None if there is no sample."""
    return (now - samples[-1].time).total_seconds() if samples else None


def waited_seconds(capacities: Samples, now: datetime) -> float:
    """The seconds since the first capacity sample. The app has had this long to read a metric."""
    return (now - capacities[0].time).total_seconds() if capacities else 0.0


def _order(rule: Missing) -> int:
    if isinstance(rule.then, int):
        return rule.then
    return -2 if rule.then == "hold" else -1


def _missing(
    capacity: int, name: str, rule: Missing, silent_seconds: float | None, seen: Observation
) -> Limit | None:
    problem = f"{name} has had no sample for {silent_seconds or 0:.0f} s"
    if silent_seconds is None:
        problem = f"{name} has no samples yet"
    if rule.then == "hold":
        return Limit(seen.capacity, f"{problem}: holding")
    if isinstance(rule.then, int):
        waited = waited_seconds(seen.capacities.samples, seen.now)
        # A metric without any sample is missing only once the app has had time to read one.
        if silent_seconds is None and waited <= rule.after_seconds:
            after = f"falls back to {rule.then} if none arrives within {rule.after_seconds:g} s"
            holding = Limit(seen.capacity, f"{problem}: holding; {after}")
            return holding if capacity <= seen.capacity else None
        if rule.then > _standing(capacity, seen):
            return Limit(rule.then, f"{problem}: falling back to {rule.then}")
    no_scale_in = Limit(seen.capacity, f"{problem}: no scale-in")
    return no_scale_in if capacity < seen.capacity else None


def _standing(capacity: int, seen: Observation) -> int:
    """The instances that there will be without scale-in: those that are recommended or run, or if
    no more are recommended, those of the pending action."""
    if capacity > seen.capacity or seen.pending is None:
        return max(capacity, seen.capacity)
    return max(seen.pending.target, seen.capacity)


def standstill(resource: Resource, state: ScalingState, now: datetime) -> tuple[str, bool]:
    """Which Service Bus entities that the policy reads are disabled, and whether it reads nothing
    else."""
    if not any(each.samples and each.samples[-1].status for each in state.histories.values()):
        return "", False  # most often
    read = said(resource.policy, "metric_names") or tuple(resource.metrics)
    found = {name: what for name in read if (what := _disabled(resource, state, name, now))}
    if not found:
        return "", False
    aside = (resource.throughput.counted_metric, resource.guards.breaker_metric)
    is_all = all(name in found for name in read if name not in aside)
    return ", ".join(dict.fromkeys(found.values())), is_all


def _disabled(resource: Resource, state: ScalingState, name: str, now: datetime) -> str:
    """The entity in which the metric counts, with its status, if nothing can be received from it
    now; else empty."""
    samples = state.histories.get(name, NO_SAMPLES).samples
    status = samples[-1].status if samples else ""
    if not status or is_missing(samples, resource.guards.missing_for(name), now):
        return ""
    kind, *path = resource.source(name).place or ("metric", name)
    if status.startswith(OF_TOPIC):
        kind, path, status = "topic", path[:1], status.removeprefix(OF_TOPIC)
    return f"{kind} {'/'.join(path)} is {status}"


def entity_disabled(capacity: int, context: Context) -> Limit | None:
    """Hold while nothing can be received from any entity that the policy reads: more instances
    would not help, and its backlog shows nothing. If the policy also reads others, only prevent
    scale-in."""
    current = context.seen.capacity
    what, is_all = standstill(context.resource, context.state, context.seen.now)
    if what and is_all:
        return Limit(current, f"{what}, so nothing can be received: holding")
    return Limit(max(capacity, current), f"{what}: no scale-in") if what else None


def consumer_broken(capacity: int, context: Context) -> Limit | None:
    """No scale-out while the consumer's circuit breaker is open: more instances would not help."""
    name, seen = context.guards.breaker_metric, context.seen
    if name is None or capacity <= seen.capacity:
        return None
    samples = seen.history(name).samples
    if is_missing(samples, context.guards.missing_for(name), seen.now):
        return None  # it is unknown whether the breaker is still open
    if samples[-1].value <= 0:
        return None
    return Limit(seen.capacity, f"the consumer's circuit breaker is open ({name}): no scale-out")


def nothing_finished(capacity: int, context: Context) -> Limit | None:
    """No scale-out for a while if, by the counts, none of the instances finishes anything, or those
    that were added last finish nothing more. With ``step_back``, those are removed, unless the data
    to decide this is missing."""
    current, seconds = context.seen.capacity, context.guards.nothing_finished_seconds
    for each in context.unfallen if capacity > current else ():
        until = each.stall.since + each.limit + span(seconds)
        if each.none_finished and context.seen.now < until:
            return Limit(current, f"{each.text}: no scale-out until {until:%H:%M:%S} UTC")
    found = context.seen.estimate and context.seen.estimate.unhelpful
    if not found or not found.lasts(seconds, context.seen.now):
        return None
    most = max(current, found.enough)
    if context.guards.step_back and not any(
        guard(found.enough, context) for guard in (missing_data, entity_disabled)
    ):
        most = found.enough
    what = f"back to {most}" if most < current else f"no scale-out above {most}"
    return Limit(most, f"{found}: {what}") if capacity > most else None


# --- 2. rate of change ------------------------------------------------------------------------


def stabilisation(capacity: int, context: Context) -> Limit | None:
    """Let a recommendation take effect only once it has lasted: a scale-in goes no lower than the
    highest recommendation of ``stabilisation_in_seconds``, and a scale-out no higher than the
    lowest one of ``stabilisation_out_seconds``, as in the Horizontal Pod Autoscaler of
    Kubernetes."""
    current, guards = context.seen.capacity, context.guards
    if capacity < current and guards.stabilisation_in_seconds:
        seconds, which = guards.stabilisation_in_seconds, "highest"
        decisive = int(max(_recommended(context, seconds, capacity)))
        allowed = min(decisive, current)
    elif capacity > current and guards.stabilisation_out_seconds:
        seconds, which = guards.stabilisation_out_seconds, "lowest"
        decisive = int(min(_recommended(context, seconds, capacity)))
        allowed = max(decisive, current)
    else:
        return None
    if allowed == capacity:
        return None
    reason = f"the {which} recommendation of the last {seconds:g} s is {decisive} (stabilization)"
    return Limit(allowed, reason)


def _recommended(context: Context, seconds: float, capacity: int) -> list[float]:
    start = context.seen.now - span(seconds)
    kept = context.state.recommendations.samples
    return [s.value for s in kept if s.time >= start] + [float(capacity)]


def flap_projection(capacity: int, context: Context) -> Limit | None:
    """Scale in to m instances only if the policy would not scale out again at m. Each utilization
    metric is converted from n to m instances as value·n/m. Azure Monitor does the same."""
    seen = context.seen
    paced = context.recommendation.paced
    if capacity >= seen.capacity or paced or not context.guards.flap_projection:
        return None
    policy, lowest = context.resource.policy, max(capacity, context.resource.limits.minimum)
    for lower in range(lowest, seen.capacity):
        if ask(policy, _projected(seen, policy, lower)).capacity <= lower:
            return None if lower == lowest else Limit(lower, _flaps(lowest))
    return Limit(seen.capacity, _flaps(lowest)) if lowest < seen.capacity else None


def _flaps(capacity: int) -> str:
    return f"at a capacity of {capacity}, the policy would scale out again"


def _projected(seen: Observation, policy: PolicyFunction, capacity: int) -> Observation:
    factor = seen.capacity / capacity
    shares = said(policy, "utilisation_names") or ()
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


def rate_limits(capacity: int, context: Context) -> Limit | None:
    """Apply all rate limits of the direction in which the capacity changes."""
    seen, limit = context.seen, None
    for rule in context.guards.rate_limits:
        if (rule.direction == "out") is not (capacity > seen.capacity) or capacity == seen.capacity:
            continue
        allowed = _allowed(rule, seen)
        if (allowed < capacity) if rule.direction == "out" else (allowed > capacity):
            capacity = allowed
            size = f"{rule.percent:g} %" if rule.instances is None else f"{rule.instances}"
            reason = f"rate limit: scale {rule.direction} by at most {size} in "
            limit = Limit(allowed, f"{reason}{rule.period_seconds:g} s")
    return limit


def _allowed(rule: RateLimit, seen: Observation) -> int:
    base = capacity_at(seen, seen.now - span(rule.period_seconds))
    share = (rule.percent or 0) * base / 100
    if rule.direction == "out":
        most = base + (instances(share) if rule.instances is None else rule.instances)
        return max(most, seen.capacity)
    fewer = max(full_instances(share), 1 if share else 0)
    least = base - (fewer if rule.instances is None else rule.instances)
    return min(least, seen.capacity)


def cooldown(capacity: int, context: Context) -> Limit | None:
    """Wait after a confirmed change. A paced policy is exempt, because it takes pending and recent
    changes into account. But its scale-in waits after a manual change, of which it does not know,
    and so does a fallback capacity above its recommendation."""
    seen, changed_at = context.seen, context.seen.changed_at
    if changed_at is None or capacity == seen.capacity:
        return None
    out, wait = capacity > seen.capacity, context.resource.cooldown
    by_hand = context.desired is not None and context.desired.changed_by_hand
    recommended = context.recommendation
    if recommended.paced and (capacity <= recommended.capacity if out else not by_hand):
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


def filling(capacity: int, context: Context) -> Limit | None:
    """Hold while a change is under way, if only the instances that it has already brought lead to
    another capacity in its direction. A policy that adds to the present capacity would add to each
    of them."""
    seen, pending, recommended = context.seen, context.seen.pending, context.recommendation
    if pending is None or recommended.paced or capacity == seen.capacity:
        return None
    left = pending.target - seen.capacity
    moved, more = seen.capacity - pending.previous, recommended.capacity - seen.capacity
    if moved * left <= 0 or more * left <= 0:
        return None
    before = ask(context.resource.policy, replace(seen, capacity=pending.previous))
    if before.capacity == recommended.capacity:
        return None
    way = f"from {pending.previous} to {pending.target}"
    return Limit(seen.capacity, f"the change {way} instances is at {seen.capacity}: holding")


SPARED_CHANGES = 4
HOUR_SECONDS = 3600


def recent_changes(desired: Desired | None, now: datetime) -> tuple[int, ...]:
    """The times of the app's changes within the last hour, in seconds since 1970."""
    end = now.timestamp()
    times = desired.changes if desired else ()
    return tuple([each for each in times if end - HOUR_SECONDS < each <= end])


def few_changes_left(
    resource: Resource, desired: Desired | None, now: datetime, spared: int = SPARED_CHANGES
) -> str:
    """Why scale-in, or with none ``spared`` each change, waits for the limit of Azure; empty if it
    does not."""
    times, allowed = recent_changes(desired, now), resource.guards.scale_changes_per_hour
    most = allowed - spared
    if len(times) < most:
        return ""
    until = datetime.fromtimestamp(times[-most] + HOUR_SECONDS, UTC)
    return (
        f"{len(times)} changes within the last hour, of which Azure allows {allowed}: "
        f"no {'scale-in' if spared else 'change'} until {until:%H:%M:%S} UTC"
    )


def scale_changes(capacity: int, context: Context) -> Limit | None:
    """No scale-in while few changes are left of those that Azure allows within an hour, because a
    scale-out may need them; and no change while none is left, because Azure would refuse it."""
    current = context.seen.capacity
    if capacity == current:
        return None
    spared = SPARED_CHANGES if capacity < current else 0
    why = few_changes_left(context.resource, context.desired, context.seen.now, spared)
    return Limit(current, why) if why else None


# --- 3. overrides and bounds ------------------------------------------------------------------


def override(capacity: int, context: Context) -> Limit | None:
    """Apply the operator's override: an exact capacity, a floor, or a ban on scale-in."""
    override, current = context.override, context.seen.capacity
    if override is None:
        return None
    reason = f" ({override.reason})" if override.reason else ""
    if override.exact is not None:
        return Limit(override.exact, f"an override sets exactly {override.exact}{reason}")
    if override.floor is not None and capacity < override.floor:
        return Limit(override.floor, f"an override sets at least {override.floor}{reason}")
    if override.freeze_scale_in and capacity < current:
        return Limit(current, f"an override prevents scale-in{reason}")
    return None


def bounds(capacity: int, context: Context) -> Limit | None:
    """Keep the capacity within the limits of the resource. No override or fallback exceeds them."""
    limits = context.resource.limits
    if capacity > limits.maximum:
        return Limit(limits.maximum, f"the maximum is {limits.maximum}")
    if capacity < limits.minimum:
        return Limit(limits.minimum, f"the minimum is {limits.minimum}")
    return None


# --- 4. actions under way ---------------------------------------------------------------------


def failed_action(capacity: int, context: Context) -> Limit | None:
    """Hold for a while after an action that failed or was confirmed in part, so that it is not
    requested with every sample."""
    desired, seen = context.desired, context.seen
    if desired is None or desired.pending or desired.retry_at is None:
        return None
    failed = desired.status is ActionStatus.FAILED
    ended = "failed" if failed else f"reached {desired.target} of {desired.requested}"
    if capacity == seen.capacity or seen.now >= desired.retry_at:
        return None
    return Limit(
        seen.capacity,
        f"the last action {ended} ({desired.last_error}): holding until "
        f"{desired.retry_at:%H:%M:%S} UTC",
    )


def already_requested(capacity: int, context: Context) -> Limit | None:
    """Do not request the pending capacity again. If the pending action is lost, the reconciler
    sends it again."""
    desired = context.state.desired
    if desired is None or capacity != desired.target or not desired.pending:
        return None
    return Limit(context.seen.capacity, f"already requested as epoch {desired.epoch}")


REVOKING: tuple[Guard, ...] = (missing_data, entity_disabled, consumer_broken, override, bounds)
"""The guards that also revoke a pending action if they no longer allow its capacity."""

GUARDS: tuple[Guard, ...] = (
    missing_data,
    entity_disabled,
    consumer_broken,
    stabilisation,
    flap_projection,
    nothing_finished,
    rate_limits,
    cooldown,
    filling,
    scale_changes,
    override,
    bounds,
    failed_action,
    already_requested,
)
