"""Queries of Azure Monitor are few, take each point once, and wait when they are told to."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.autoscaling import AzureMonitorMetric
from shared.autoscaling.azure_monitor.queries import (
    METRICS_MAX,
    RESOURCES_MAX,
    RETRY_AFTER_MAX,
    WAIT_FIRST,
    WAIT_MAX,
    MetricPoint,
    Taken,
    Throttling,
    combined,
    one_by_one,
    plan_queries,
    resource_key,
    take,
    throttled,
)
from shared.values.measurements import MetricValue
from tests.builders import NOW

MINUTE = timedelta(minutes=1)
SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/group-1/providers"
CPU = AzureMonitorMetric(f"{GROUP}/Microsoft.Web/serverfarms/plan-1", "CpuPercentage")


def cpu(number: int) -> AzureMonitorMetric:
    return AzureMonitorMetric(f"{GROUP}/Microsoft.Web/serverfarms/plan-{number}", "CpuPercentage")


def regions(*sources: AzureMonitorMetric, region: str = "westeurope") -> dict[str, str]:
    return {resource_key(source): region for source in sources}


def test_resources_without_a_known_region_are_asked_alone() -> None:
    queries = plan_queries([cpu(1), cpu(2)], {}, ())
    assert [(q.region, len(q.resource_ids)) for q in queries] == [("", 1), ("", 1)]


def test_a_batch_has_one_region_one_type_and_at_most_fifty_resources() -> None:
    plans = [cpu(n) for n in range(120)]
    bus = [AzureMonitorMetric(f"{GROUP}/Microsoft.ServiceBus/namespaces/b{n}", "X") for n in (1, 2)]
    here, there = regions(*plans[:100], *bus), regions(*plans[100:], region="eastus")
    queries = plan_queries([*plans, *bus], {**here, **there}, ())
    assert sorted((q.region, q.namespace, len(q.resource_ids)) for q in queries) == [
        ("eastus", "microsoft.web/serverfarms", 20),
        ("westeurope", "microsoft.servicebus/namespaces", 2),
        ("westeurope", "microsoft.web/serverfarms", RESOURCES_MAX),
        ("westeurope", "microsoft.web/serverfarms", RESOURCES_MAX),
    ]


def test_a_subscription_that_may_not_be_queried_is_asked_one_by_one() -> None:
    plans = [cpu(1), cpu(2)]
    assert [q.region for q in plan_queries(plans, regions(*plans), ())] == ["westeurope"]
    assert [q.region for q in plan_queries(plans, regions(*plans), {SUBSCRIPTION})] == ["", ""]


def test_metrics_of_a_resource_share_a_query_unless_their_filter_or_grain_differs() -> None:
    bus = f"{GROUP}/Microsoft.ServiceBus/namespaces/bus"
    same = [AzureMonitorMetric(bus, name, "total", filter="a") for name in ("In", "Out")]
    other = AzureMonitorMetric(bus, "In", "total", filter="b")
    coarse = AzureMonitorMetric(bus, "In", "total", "PT5M", filter="a")
    queries = plan_queries([*same, other, coarse], {}, ())
    assert sorted((q.metrics, q.filter, q.grain) for q in queries) == [
        (("In",), "a", "PT5M"),
        (("In",), "b", "PT1M"),
        (("In", "Out"), "a", "PT1M"),
    ]


def test_a_resource_is_the_same_in_any_spelling() -> None:
    shouted = AzureMonitorMetric(CPU.resource_id.upper() + "/", "MemoryPercentage")
    assert len(plan_queries([CPU, shouted], {}, ())) == 1


def test_a_query_has_at_most_twenty_metrics_and_loses_none() -> None:
    sources = [AzureMonitorMetric(CPU.resource_id, f"M{n}") for n in range(45)]
    queries = plan_queries(sources, {}, ())
    assert [len(q.metrics) for q in queries] == [METRICS_MAX, METRICS_MAX, 5]
    assert {s for q in queries for s in q.sources} == set(sources)


def test_a_batch_falls_apart_into_its_resources_and_they_into_their_metrics() -> None:
    plans = [cpu(1), cpu(2), AzureMonitorMetric(cpu(1).resource_id, "MemoryPercentage")]
    (batch,) = plan_queries(plans, regions(*plans), ())
    alone = one_by_one(batch)
    assert sorted(len(q.metrics) for q in alone) == [1, 2]
    assert len(one_by_one(batch, metrics_too=True)) == 3
    assert all(q.region == "" for q in alone)


@given(st.lists(st.integers(0, 25), max_size=40), st.randoms(use_true_random=False))
def test_each_published_point_is_taken_exactly_once_in_any_order_of_publishing(
    published_after: list[int], shuffler: random.Random
) -> None:
    """Point n is published so many minutes after its minute, up to the span of a query."""
    points = {NOW + n * MINUTE: lag for n, lag in enumerate(published_after)}
    taken, received = Taken(), list[MetricValue]()
    for minute in range(len(points) + 30):
        now = NOW + minute * MINUTE
        known = [MetricPoint(t, 1.0) for t, lag in points.items() if t + (lag + 1) * MINUTE <= now]
        in_span = [p for p in known if p.start >= now - timedelta(minutes=21)]
        shuffler.shuffle(in_span)
        samples, taken = take(in_span, taken, CPU, now)
        received += samples
    expected = {t + MINUTE for t, lag in points.items() if lag <= 20}
    assert len(received) == len({each.time for each in received})
    assert {each.time for each in received} == expected


def test_an_interval_is_taken_once_it_is_over() -> None:
    point = [MetricPoint(NOW, 1.0)]
    early, taken = take(point, Taken(), CPU, NOW + MINUTE - timedelta(seconds=1))
    assert early == ()
    assert take(point, taken, CPU, NOW + MINUTE)[0] == (MetricValue(NOW + MINUTE, 1.0),)


def test_what_was_taken_is_remembered_for_the_span_of_a_query_only() -> None:
    taken = Taken()
    for minute in range(500):
        now = NOW + minute * MINUTE
        _, taken = take([MetricPoint(now - MINUTE, 1.0)], taken, CPU, now)
    assert len(taken.starts) < 30


@pytest.mark.parametrize(
    ("aggregation", "value"),
    [("total", 10), ("count", 10), ("average", 5), ("maximum", 7), ("minimum", 3)],
)
def test_values_of_several_dimensions_become_one(aggregation: str, value: float) -> None:
    assert combined([3, 7], aggregation) == value


def test_each_refusal_in_a_row_doubles_the_wait_up_to_its_bound() -> None:
    state: Throttling | None = None
    waits = []
    for _ in range(7):
        state = throttled(state, NOW, None)
        waits.append(state.until - NOW)
    assert waits[:4] == [WAIT_FIRST, 2 * WAIT_FIRST, 4 * WAIT_FIRST, 8 * WAIT_FIRST]
    assert waits[4:] == [WAIT_MAX] * 3


def test_the_wait_that_the_service_asks_for_is_a_lower_bound_with_an_upper_one() -> None:
    assert throttled(None, NOW, timedelta(minutes=7)).until == NOW + timedelta(minutes=7)
    assert throttled(None, NOW, timedelta(seconds=1)).until == NOW + WAIT_FIRST
    assert throttled(None, NOW, timedelta(days=9)).until == NOW + RETRY_AFTER_MAX
