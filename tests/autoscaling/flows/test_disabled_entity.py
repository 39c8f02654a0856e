"""An entity from which nothing can be received: what is decided and learned meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from local.azure_apis.entities import EntityCounts
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn
from local.twins.autoscaling import MemoryCapacityControl, MemoryStateStore
from shared import settings
from shared.autoscaling import (
    Guards,
    Limits,
    Missing,
    Observation,
    QueueAge,
    Recommendation,
    Resource,
    ServiceBusQueue,
    Threshold,
    Throughput,
    any_of,
    every,
    fallback,
    scale_in_only_if,
)
from shared.autoscaling.deciding import clocks
from shared.autoscaling.deciding.counterfactual import explained
from shared.autoscaling.deciding.decide import REVOKED, Decision, LogEntry, decide
from shared.autoscaling.flows import metric_collector, scaling_logic
from shared.autoscaling.learning.backlogs import unfallen
from shared.autoscaling.learning.subscription_share import ShareHistory, with_readings
from shared.autoscaling.learning.throughput import rate_estimate
from shared.autoscaling.messages import decode_samples
from shared.autoscaling.operating.conditions import conditions
from shared.autoscaling.policy import PolicyFunction
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.services.clients import AzureReader
from shared.autoscaling.sources import HubMetric, Source
from shared.autoscaling.state import ActionStatus, Override, ScalingState
from shared.autoscaling.transition import advance
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue, Window
from shared.values.samples import encode_metrics
from tests.builders import NOW, ago, desired, not_asked, resource, sample, state

ORDERS, RETURNS = ServiceBusQueue("orders"), ServiceBusQueue("returns")
WHAT = "queue orders is ReceiveDisabled"
HOLDING, NO_SCALE_IN = f"{WHAT}, so nothing can be received: holding", f"{WHAT}: no scale-in"


def out(_: Observation) -> Recommendation:
    return Recommendation(6, "more")


def inward(_: Observation) -> Recommendation:
    return Recommendation(1, "fewer")


def kept(ages: Sequence[float], value: float = 500, status: str = "ReceiveDisabled") -> Window:
    return Window(tuple(replace(sample(value, age), status=status) for age in ages))


def closed(**histories: Window) -> ScalingState:
    """Four instances, and a queue that has been disabled for two minutes."""
    found = {"orders": kept((120, 90, 60, 30, 0)), **histories}
    held = state(capacity=4)
    return replace(held, histories={**held.histories, **found})


def decided(policy: PolicyFunction, held: ScalingState, **changes: Any) -> Decision:
    fields: dict[str, Any] = {"metrics": {"orders": ORDERS}, "limits": Limits(1, 20), **changes}
    return decide(resource(policy=policy, **fields), held, NOW)


THRESHOLD, OTHER = Threshold("orders", 100, 10), Threshold("returns", 100, 10)
BUSY, IDLE = kept((60, 45, 30, 15, 0), 500, ""), kept((60, 45, 30, 15, 0), 0, "")
BOTH: Mapping[str, Source] = {"orders": ORDERS, "returns": RETURNS}
KNOWN = Throughput(60, 3)


@pytest.mark.parametrize(
    "policy",
    [out, inward, THRESHOLD, QueueAge("orders", THRESHOLD), fallback(THRESHOLD, out)],
    ids=["out", "in", "threshold", "queue age", "fallback"],
)
@pytest.mark.parametrize("value", [0, 500])
def test_nothing_changes_while_nothing_can_be_received(
    policy: PolicyFunction, value: float
) -> None:
    held = closed(orders=kept((120, 90, 60, 30, 0), value))
    found = decided(policy, held, throughput=KNOWN)
    assert (found.current, found.desired, found.applies) == (4, 4, False)
    assert HOLDING in found.reason


@pytest.mark.parametrize(
    ("policy", "text"),
    [(THRESHOLD, ""), (out, "would have scaled out to 6 without entity_disabled")],
)
def test_no_level_of_a_disabled_queue_would_have_changed_the_decision(
    policy: PolicyFunction, text: str
) -> None:
    declared = resource(policy=policy, metrics={"orders": ORDERS}, limits=Limits(1, 20))
    decision = decide(declared, closed(), NOW)
    assert explained(declared, closed(), decision).counterfactual == text


@pytest.mark.parametrize(
    ("status", "what"),
    [
        ("topic Disabled", "topic orders is Disabled"),
        ("Restoring", "n orders/billing is Restoring"),
    ],
)
def test_the_reason_names_the_entity_that_is_disabled(status: str, what: str) -> None:
    held = replace(closed(), histories={**closed().histories, "backlog": kept((0,), 5, status)})
    found = decide(resource(policy=inward), held, NOW)
    assert (found.desired, found.limited_by[0]) == (4, "entity_disabled")
    assert what in found.reason


@pytest.mark.parametrize(
    ("policy", "returns", "wanted", "reason"),
    [
        (any_of(THRESHOLD, OTHER), BUSY, 5, NO_SCALE_IN),
        (any_of(THRESHOLD, OTHER), IDLE, 4, NO_SCALE_IN),
        (OTHER, IDLE, 3, ""),  # it does not read the disabled queue
        (scale_in_only_if(inward, every("orders")), IDLE, 4, NO_SCALE_IN),
        (inward, IDLE, 4, NO_SCALE_IN),  # it may read any metric
        (out, IDLE, 6, NO_SCALE_IN),
    ],
)
def test_other_queues_still_scale_out_and_prevent_no_scale_in_of_theirs(
    policy: PolicyFunction, returns: Window, wanted: int, reason: str
) -> None:
    """What the disabled queue holds causes no scale-out, and its workers are not taken away."""
    found = decided(policy, closed(returns=returns), metrics=BOTH, cooldown=resource().cooldown)
    assert found.desired == wanted
    assert reason in found.reason
    assert (WHAT in found.reason) is bool(reason)


def test_all_counts_of_a_disabled_queue_stand_still() -> None:
    metrics = {
        "orders": ORDERS,
        "dead": ServiceBusQueue("orders", "dead_letter"),
        "done": HubMetric(),
    }
    throughput = Throughput(completed_metric="done")
    held = closed(dead=kept((0,), 5), done=kept((0,), 5, ""))
    found = decided(out, held, metrics=metrics, throughput=throughput)
    assert found.desired == 4
    assert found.reason.count(WHAT) == 1


@pytest.mark.parametrize(
    ("missing", "age", "wanted", "text"),
    [
        (Missing(180), 180, 4, HOLDING),
        (Missing(180, 9), 180, 4, HOLDING),
        (Missing(180, 9), 181, 9, "orders has had no sample for 181 s: falling back to 9"),
        (Missing(180, "hold"), 181, 4, "orders has had no sample for 181 s: holding"),
    ],
)
def test_a_status_that_is_old_is_not_known_and_the_metric_is_missing(
    missing: Missing, age: float, wanted: int, text: str
) -> None:
    held = closed(orders=kept((age + 30, age)))
    found = decided(THRESHOLD, held, guards=Guards(missing))
    assert found.desired == wanted
    assert text in found.reason


@pytest.mark.parametrize(("target", "revoked"), [(8, True), (2, True), (4, False)])
def test_a_pending_action_is_revoked(target: int, revoked: bool) -> None:
    pending = desired(target=target, previous=4, status=ActionStatus.PENDING)
    found = decided(THRESHOLD, replace(closed(), desired=pending))
    assert found.applies is revoked
    assert (REVOKED in found.limited_by) is revoked


@pytest.mark.parametrize(
    ("override", "limits", "wanted"),
    [
        (Override(exact=7), Limits(1, 20), 7),
        (Override(floor=6), Limits(1, 20), 6),
        (None, Limits(5, 20), 5),
        (None, Limits(1, 3), 3),
    ],
)
def test_overrides_and_limits_still_apply(
    override: Override | None, limits: Limits, wanted: int
) -> None:
    held = replace(closed(), override=override)
    assert decided(THRESHOLD, held, limits=limits).desired == wanted


def test_the_condition_is_told_once_and_ends_with_the_first_count_of_an_active_entity() -> None:
    metrics = {"orders": ORDERS, "dead": ServiceBusQueue("orders", "dead_letter")}
    declared, held = resource(policy=THRESHOLD, metrics=metrics), closed(dead=kept((0,), 5))
    told = conditions(declared, Snapshot("plan-1", held, NOW, {}), 30)
    assert [each.subject for each in told if "ReceiveDisabled" in each.what] == ["plan-1/entity"]
    both = {name: Window((*held.histories[name].samples[:-1], sample(5))) for name in metrics}
    active = replace(held, histories={**held.histories, **both})
    told = conditions(declared, Snapshot("plan-1", active, NOW, {}), 30)
    assert [each for each in told if each.subject == "plan-1/entity"] == []


# --- from the service to the decision ---


class Counts:
    value = 500

    def counts(self, entity_path: str) -> EntityCounts:  # noqa: ARG002
        return EntityCounts(active=self.value)


class Line:
    """A namespace, the collector, the queue, and the decisions on its samples."""

    def __init__(self, bus: ServiceBusAdminStandIn) -> None:
        self.now, self.bus = NOW, bus
        bus.clock = lambda: self.now
        self.resource = resource(metrics={"orders": ORDERS}, policy=THRESHOLD, limits=Limits(1, 20))
        self.store = MemoryStateStore(lambda: self.now)
        control = MemoryCapacityControl(lambda: self.now, {"plan-1": 4})
        found = settings.load({"ServiceBusConnection": bus.connection_string})
        self.reader = AzureReader(
            found.storage, found.service_bus, control, not_asked, not_asked, lambda: self.now
        )

    async def tick(self, times: int = 1) -> LogEntry:
        """Read the queue each 15 s. The result is the newest decision."""
        for _ in range(times):
            self.now += timedelta(seconds=15)
            found = await metric_collector.collect([self.resource], self.reader, 5)
            assert found.failures == ()
            for body in encode_metrics(found.metrics):
                resources = {self.resource.name: self.resource}
                await scaling_logic.process_samples(decode_samples(body), resources, self.store)
        return (await self.store.log("plan-1", 1))[0]


async def test_the_status_of_the_service_holds_the_capacity_until_it_is_active_again() -> None:
    counts = Counts()
    async with ServiceBusAdminStandIn(counts) as bus:
        bus.declare_queue("orders")
        line = Line(bus)
        bus.set_status("orders", "ReceiveDisabled")
        held = await line.tick(8)
        assert (held.desired, held.applies) == (4, False)
        assert HOLDING in held.reason
        bus.set_status("orders", "SendDisabled")
        waiting = await line.tick(4)
        assert "4 of 5 required samples" in waiting.reason, "earlier counts say nothing"
        assert WHAT not in waiting.reason
        assert (await line.tick()).desired == 5
        requests = [request for request in bus.requests if request.path.strip("/") == "orders"]
        assert len(requests) == 13, "one request a reading"
        await line.reader.close()


def test_a_sample_that_is_dated_by_another_clock_keeps_its_status() -> None:
    notes = Window(tuple(MetricValue(ago(age), ago(age + 300).timestamp()) for age in (60, 30, 0)))
    held = closed().with_history(clocks.NOTES, notes)
    dated = clocks.dated(held, Metric("plan-1", "orders", kept((300,)).samples[0]), NOW)
    assert (dated.value.time, dated.value.status) == (NOW, "ReceiveDisabled")


# --- what is learned ---


def course(
    declared: Resource, backlog: Mapping[int, tuple[float, str]], minutes: int
) -> ScalingState:
    """The state after a sample each 15 s. ``backlog`` maps a minute to the growth per minute and
    the status from then on."""
    held, value, growth, status = ScalingState(), 500.0, 0.0, ""
    for tick in range(minutes * 4 + 1):
        now = NOW - timedelta(minutes=minutes) + timedelta(seconds=15 * tick)
        growth, status = backlog.get(tick // 4, (growth, status))
        value = max(value + growth / 4, 1.0)
        read = {CAPACITY_METRIC: MetricValue(now, 3.0), "orders": MetricValue(now, value, status)}
        if tick % 4 == 0 and "done" in declared.metrics:
            read["done"] = MetricValue(now, 0.0 if status else 60.0)
        metrics = [Metric("plan-1", name, each) for name, each in read.items()]
        held = advance(declared, held, metrics, now).state
    return held


def learning(**changes: Any) -> Resource:
    def hold(seen: Observation) -> Recommendation:
        return Recommendation(seen.capacity, "held")

    fields: dict[str, Any] = {"metrics": {"orders": ORDERS}, **changes}
    return resource(policy=QueueAge("orders", hold), limits=Limits(1, 20), **fields)


def test_a_disabled_queue_is_neither_unfallen_nor_learned_from() -> None:
    declared = learning()
    before = course(declared, {0: (20, "")}, 9)
    after = course(declared, {0: (20, ""), 10: (90, "Disabled")}, 60)
    assert before.learned.trend.busy > 5
    assert after.learned.trend.busy == before.learned.trend.busy
    assert unfallen(declared, after) == []
    open_again = course(declared, {0: (20, ""), 10: (90, "Disabled"), 55: (20, "")}, 60)
    assert unfallen(declared, open_again) == [], "the wait begins when it is active again"
    still = course(declared, {0: (20, ""), 10: (90, "Disabled"), 30: (20, "")}, 60)
    assert [round(each.minutes) for each in unfallen(declared, still)] == [30]


def test_minutes_in_which_nothing_could_be_received_do_not_count_as_slow_work() -> None:
    metrics = {"orders": ORDERS, "done": HubMetric()}
    done = Throughput(None, 3, completed_metric="done")
    declared = learning(metrics=metrics, throughput=done)
    held = course(declared, {0: (20, ""), 20: (90, "Disabled"), 26: (20, "")}, 45)
    estimate = rate_estimate(Throughput(), held.learned)
    assert estimate is not None
    assert estimate.likely == pytest.approx(20, rel=0.01)


def test_what_arrived_meanwhile_is_not_taken_for_work_that_was_finished() -> None:
    """Three instances that were idle for 20 minutes did not finish what would keep them busy."""
    declared = learning(throughput=Throughput(60, 3))
    held = course(declared, {0: (-5, ""), 10: (30, "Disabled"), 30: (-150, "")}, 32)
    assert decide(declared, held, NOW).desired == 3


def test_the_share_of_a_subscription_is_learned_anew_after_it_was_disabled() -> None:
    history = ShareHistory(backlog=(sample(5, 60), sample(9, 45)), capacity=(sample(3, 60),))
    during = with_readings(history, MetricValue(ago(30), 20, "Disabled"), sample(3, 30))
    assert during.backlog == ()
    assert with_readings(during, sample(30), sample(3)).backlog == (sample(30),)
