"""Finished messages that Azure Monitor counts teach the throughput without a line in the worker."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from bench.returning import RATE, replay_state
from shared.autoscaling import (
    AzureMonitorMetric,
    HubMetric,
    QueueAge,
    Resource,
    ServiceBusQueue,
    ServiceBusSubscription,
    StorageQueue,
    Threshold,
    Throughput,
)
from shared.autoscaling.counts import COMPLETED, with_counts
from shared.autoscaling.deciding.validation import problems
from shared.autoscaling.declaring import MetricSource
from shared.autoscaling.flows.message_counts import INCOMING, SUBSCRIPTIONS, MessageCounts
from shared.autoscaling.learning import counted_rate
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.autoscaling.subscription_share import BusyMinute, share_of
from tests.builders import NOW, SOURCE, resource

MINUTE = timedelta(minutes=1)
BUS = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/group-1/providers"
    "/Microsoft.ServiceBus/namespaces/bus-1"
)
NAMESPACES = {"ServiceBusConnection": BUS}
POLICY = QueueAge("backlog", until_known=Threshold("backlog", 100, 10))


def workers(source: MetricSource = SOURCE, **changes: Any) -> Resource:
    return resource(**{"metrics": {"backlog": source}, "policy": POLICY, **changes})


@pytest.mark.parametrize(
    ("source", "entity"),
    [
        (ServiceBusQueue("jobs"), "jobs"),
        (ServiceBusSubscription("orders", "billing"), "orders"),
        (ServiceBusQueue("o'clock"), "o''clock"),
    ],
)
def test_the_count_of_a_queue_or_topic_is_added(source: MetricSource, entity: str) -> None:
    counted = with_counts(workers(source), NAMESPACES)
    expected = AzureMonitorMetric(
        BUS, "CompleteMessage", "total", filter=f"EntityName eq '{entity}'"
    )
    assert counted.metrics[COMPLETED] == expected
    assert counted.throughput.counted_metric == COMPLETED
    assert problems([counted]) == []
    assert with_counts(counted, NAMESPACES) == counted


@pytest.mark.parametrize(
    "declared",
    [
        workers(StorageQueue("jobs")),
        workers(throughput=Throughput(rate_per_instance_minute=30)),
        workers(
            metrics={"backlog": SOURCE, "done": HubMetric()},
            throughput=Throughput(completed_metric="done"),
        ),
        workers(ServiceBusQueue("jobs", "dead_letter")),
        workers(ServiceBusQueue("jobs", connection="OtherConnection")),
        workers(
            metrics={"backlog": SOURCE, "more": ServiceBusQueue("jobs")},
            policy=lambda _seen: None,  # may read any metric
        ),
    ],
)
def test_nothing_is_added_where_the_rules_leave_nothing_open(declared: Resource) -> None:
    assert with_counts(declared, NAMESPACES) is declared


def test_without_the_id_of_the_namespace_nothing_is_added() -> None:
    assert with_counts(workers(), {"ServiceBusConnection": ""}) == workers()


@pytest.mark.parametrize("delay_minutes", [0, 2, 4])
def test_the_rate_is_learned_from_counts_that_are_minutes_late(delay_minutes: int) -> None:
    counted = with_counts(workers(ServiceBusQueue("jobs")), NAMESPACES)
    estimate = counted_rate(replay_state(counted, delay_minutes).learned.work)
    assert estimate is not None
    assert estimate.likely == pytest.approx(RATE, rel=0.05)


# --- several subscriptions --------------------------------------------------------------------

SHARE, MU = 0.3, 20.0


def collected(subscriptions: int, minutes: int = 240) -> tuple[list[Metric], MessageCounts]:
    """What remains of the readings of a topic, whose counts are two minutes late."""
    counted = with_counts(workers(), NAMESPACES)
    counts, kept = MessageCounts(), list[Metric]()
    chance = random.Random(5)
    backlog, capacity, past = 5000.0, 3, list[tuple[float, float]]()
    for minute in range(minutes):
        if minute % 40 == 39:
            capacity = 2 + minute // 40 % 3
        incoming = chance.uniform(100, 400)
        done = MU * capacity * chance.uniform(0.97, 1.03)
        backlog += SHARE * incoming - done
        past.append((incoming, done))
        now = NOW + (minute + 1) * MINUTE
        readings = [(CAPACITY_METRIC, now, capacity), ("backlog", now, backlog)]
        if minute >= 2:
            late, at = past[minute - 2], now - 2 * MINUTE
            readings += [(INCOMING, at, late[0]), (COMPLETED, at, late[0])]
        readings.append((SUBSCRIPTIONS, now, subscriptions))
        metrics = [Metric("plan-1", name, MetricValue(time, v)) for name, time, v in readings]
        kept += counts.adjusted(counted, metrics)
    return kept, counts


def named(metrics: Iterable[Metric], name: str) -> list[float]:
    return [metric.value.value for metric in metrics if metric.name == name]


def test_the_counts_of_a_topic_with_one_subscription_are_those_of_the_subscription() -> None:
    kept, _ = collected(1, 20)
    assert len(named(kept, COMPLETED)) == 18
    assert {metric.name for metric in kept} == {CAPACITY_METRIC, "backlog", COMPLETED}


def test_with_several_subscriptions_the_share_of_one_is_learned_from_its_backlog(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "shared"):
        kept, _ = collected(3)
    values = named(kept, COMPLETED)
    assert 100 < len(values) < 238  # none until the share is known
    assert sum(values[-30:]) / 30 == pytest.approx(MU * 3, rel=0.05)
    (line,) = [text for text in caplog.messages if "counts_shared" in text]
    assert "the topic has 3 subscriptions" in line
    assert {metric.name for metric in kept} == {CAPACITY_METRIC, "backlog", COMPLETED}


def test_one_line_says_why_messages_are_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    counts = MessageCounts()
    with caplog.at_level(logging.INFO, "shared"):
        for _ in range(3):
            assert counts.adjusted(workers(), []) == []
            counts.adjusted(workers(StorageQueue("jobs")), [])
    (line,) = caplog.messages
    assert "set ServiceBusNamespaceId, and assign Monitoring Reader" in line


def minutes(count: int, noise: float, *, together: bool = False) -> list[BusyMinute]:
    chance, found = random.Random(7), list[BusyMinute]()
    for n in range(count):
        busy = float(1 + n % 4)
        incoming = 100 * busy if together else chance.uniform(50, 500)
        growth = SHARE * incoming - MU * busy + chance.gauss(0, noise)
        found.append(BusyMinute(incoming, busy, growth))
    return found


def test_the_share_is_the_one_that_explains_the_backlog() -> None:
    assert share_of(minutes(60, 5)) == pytest.approx(SHARE, rel=0.05)


@pytest.mark.parametrize(
    "few_or_unclear",
    [minutes(19, 0), minutes(60, 500), minutes(60, 0, together=True)],
    ids=["too few minutes", "too much noise", "arrivals and instances changed together"],
)
def test_a_share_that_is_not_sure_is_unknown(few_or_unclear: list[BusyMinute]) -> None:
    assert share_of(few_or_unclear) is None


def test_a_share_is_at_most_one() -> None:
    twice = [BusyMinute(m.incoming / 4, m.busy, m.growth) for m in minutes(60, 1)]
    assert share_of(twice) == 1.0
