"""Resources with several kinds of sources, of which one is silent, and limits that meet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling import (
    AzureMonitorMetric,
    BacklogTarget,
    CapacityThresholds,
    Guards,
    HubMetric,
    IngestionBreaker,
    Limits,
    MetricRule,
    MetricRules,
    Profile,
    QueueAge,
    Resource,
    Schedule,
    SeasonalFloor,
    TargetTracking,
    Threshold,
    Throughput,
    ValuePerInstance,
)
from shared.autoscaling.deciding.decide import Decision, EntryKind
from shared.autoscaling.deciding.validation import problems
from shared.autoscaling.declaring import Missing
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.learning.counts import COMPLETED, with_counts
from shared.autoscaling.messages import Samples
from shared.autoscaling.policy import Recommendation
from shared.autoscaling.state import ScalingState
from shared.autoscaling.transition import advance
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from tests.autoscaling.operating.test_staleness import BUS
from tests.builders import NOW, SOURCE, resource, sample

FALL_BACK = Guards(missing=Missing(after_seconds=60, then=4))
MONITORED = AzureMonitorMetric(BUS, "IncomingMessages", "total")


def declared(other: object | None = None, **changes: Any) -> Resource:
    sources = {"backlog": SOURCE, **({"other": other} if other is not None else {})}
    return resource(**{"metrics": sources, "guards": FALL_BACK, **changes})


def counted(source: object, **names: str) -> Resource:
    return declared(source, throughput=Throughput(**names))  # type: ignore[arg-type]


BREAKER = Guards(missing=Missing(60, 4), breaker_metric="other")
BESIDE: dict[str, tuple[Resource, Sequence[str]]] = {
    "alone": (declared(), ()),
    "completed, from the hub": (counted(HubMetric(), completed_metric="other"), ["other"]),
    "completed, from Azure Monitor": (
        with_counts(declared(), {"ServiceBusConnection": BUS}),
        [COMPLETED],
    ),
    "incoming, from the hub": (counted(HubMetric(), incoming_metric="other"), ["other"]),
    "incoming, from Azure Monitor": (counted(MONITORED, incoming_metric="other"), ["other"]),
    "a metric of the rules, from the hub": (declared(HubMetric()), ["other"]),
    "a metric of the rules, from Azure Monitor": (declared(MONITORED), ["other"]),
    "the breaker": (declared(IngestionBreaker(), guards=BREAKER), ["other"]),
}
"""What arrives while the backlog does not: its samples, by name."""


@pytest.mark.parametrize(("apart", "first"), [(False, "capacity"), (True, "others")])
@pytest.mark.parametrize("beside", BESIDE)
async def test_a_missing_backlog_falls_back_whatever_else_arrives(
    beside: str, apart: bool, first: str
) -> None:
    """As many samples as in five minutes, in one message for all metrics or one for each."""
    rule, names = BESIDE[beside]
    now = NOW
    store = MemoryStateStore(lambda: now)
    actions, decisions = list[int](), 0
    for tick in range(20):
        now = NOW + timedelta(seconds=15 * tick)
        capacity = Metric("plan-1", CAPACITY_METRIC, MetricValue(now, 2))
        others = [Metric("plan-1", name, MetricValue(now, 0)) for name in names]
        samples = [capacity, *others] if first == "capacity" else [*others, capacity]
        for message in [[each] for each in samples] if apart else [samples]:
            sent = Samples("plan-1", tuple(message))
            action = await scaling_logic.process_samples(sent, {"plan-1": rule}, store)
            actions += [action.target] if action else []
        lines = await store.log("plan-1", 1000)
        decisions = sum(line.kind is EntryKind.DECISION for line in lines)
    assert actions[:1] == [4]
    assert decisions >= 20 - 60 / 15 - 2


# --- limits that meet -----------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [2, 3, 4])
@pytest.mark.parametrize("backlog", [0, 5000])
@pytest.mark.parametrize(
    "policy",
    [
        Threshold("backlog", 100, 10),
        QueueAge("backlog", Threshold("backlog", 100, 10)),
        BacklogTarget("backlog", 100),
        TargetTracking("backlog", 100),
        Schedule((), Profile("all day", 1, 9), Threshold("backlog", 100, 10)),
        Schedule((), Profile("all day", 3, 3), Threshold("backlog", 100, 10)),
        lambda seen: Recommendation(seen.capacity * 2, "twice"),
    ],
    ids=lambda policy: getattr(policy, "__name__", repr(policy)),
)
def test_where_the_limits_meet_the_plan_has_this_capacity(
    policy: Any, backlog: float, capacity: int
) -> None:
    rule = resource(policy=policy, limits=Limits(3, 3), throughput=Throughput(100, 3))
    assert problems([rule]) == []
    decision = decided(rule, backlog, capacity)
    assert decision.desired == 3


def decided(rule: Resource, backlog: float, capacity: int, ahead_seconds: float = 0) -> Decision:
    samples = [Metric("plan-1", CAPACITY_METRIC, sample(capacity, 600))]
    ages = [15 * n - ahead_seconds for n in range(39, -1, -1)]
    samples += [Metric("plan-1", "backlog", sample(backlog, age)) for age in ages]
    decision = advance(rule, ScalingState(), samples, NOW).decision
    assert decision is not None
    return decision


# --- clocks that differ ---------------------------------------------------------------------------

POLICIES: list[Any] = [
    Threshold("backlog", 100, 10),
    QueueAge("backlog", Threshold("backlog", 100, 10), step_seconds=1),
    BacklogTarget("backlog", 100),
    ValuePerInstance("backlog", 100),
    CapacityThresholds("backlog", ((1, 100, 10),)),
    MetricRules((MetricRule("backlog", ">", 100, "out"),)),
    SeasonalFloor(Threshold("backlog", 100, 10)),
]


@pytest.mark.parametrize("ahead_seconds", [0, 1, 12, 60])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_samples_of_a_clock_that_is_ahead_of_the_storage_account_are_decided_on(
    policy: Any, ahead_seconds: float
) -> None:
    """The clocks of two services differ. Samples up to a minute ahead are accepted."""
    rule = resource(policy=policy, throughput=Throughput(100, 3))
    on_time, ahead = (decided(rule, 5000, 2, seconds) for seconds in (0, ahead_seconds))
    assert ahead.candidates
    assert not any(each.failed for each in ahead.candidates)
    assert (ahead.desired, ahead.limited_by) == (on_time.desired, on_time.limited_by)
