"""Completed messages that Azure Monitor counts teach the rate without a line in the worker."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bench.returning import RATE, replay_state
from local.azure_apis.arm import ArmStandIn
from local.twins.autoscaling import MemoryCapacityControl, MemoryReader
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
from shared.autoscaling.azure_monitor.client import AzurePlatformMetrics
from shared.autoscaling.deciding.validation import problems
from shared.autoscaling.flows.common import declared_samples
from shared.autoscaling.flows.message_counts import INCOMING, SUBSCRIPTIONS, MessageCounts
from shared.autoscaling.flows.metric_collector import collect
from shared.autoscaling.learning.counts import (
    ABANDONED,
    COMPLETED,
    namespace_ids,
    with_counts,
)
from shared.autoscaling.learning.subscription_share import BusyMinute, share_of
from shared.autoscaling.learning.throughput import counted_rate
from shared.autoscaling.sources import Source
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from tests.builders import NOW, SOURCE, as_message, resource

MINUTE = timedelta(minutes=1)
BUS = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/group-1/providers"
    "/Microsoft.ServiceBus/namespaces/bus-1"
)
NAMESPACES = {"ServiceBusConnection": BUS}
CPU = AzureMonitorMetric(
    BUS.replace("Microsoft.ServiceBus/namespaces/bus-1", "Microsoft.Web/serverfarms/plan-1"),
    "CpuPercentage",
)
POLICY = QueueAge("backlog", until_known=Threshold("backlog", 100, 10))


def workers(source: Source = SOURCE, **changes: Any) -> Resource:
    return resource(**{"metrics": {"backlog": source}, "policy": POLICY, **changes})


@pytest.mark.parametrize(
    ("source", "entity"),
    [
        (ServiceBusQueue("jobs"), "jobs"),
        (ServiceBusSubscription("orders", "billing"), "orders"),
        (ServiceBusQueue("o'clock"), "o''clock"),
    ],
)
def test_the_count_of_a_queue_or_topic_is_added(source: Source, entity: str) -> None:
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
        workers(throughput=Throughput(rate_per_instance_minute=30, trust_rate=True)),
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
    assert with_counts(workers(), {}) == workers()


def test_a_rate_that_is_set_is_compared_with_the_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    declared = workers(throughput=Throughput(rate_per_instance_minute=30))
    counted, counts = with_counts(declared, NAMESPACES), MessageCounts()
    assert counted.throughput == replace(declared.throughput, completed_metric=COMPLETED)
    learned = counts.sources(with_counts(workers(), NAMESPACES))
    without_share = {name: each for name, each in learned.items() if name != INCOMING}
    assert counts.sources(counted) == without_share != learned
    with caplog.at_level(logging.INFO, "shared"):
        counts.adjusted(declared, [])  # no namespace: nothing that the rate needs is missing
        counts.adjusted(counted, [], {COMPLETED: "ReadDenied: bus-1"})
    (line,) = caplog.messages
    assert line.endswith(
        "completed messages cannot be read: ReadDenied: bus-1. After an hour, the rate that is set "
        "is compared with the backlog alone"
    )


OFFICE = BUS.replace("bus-1", "office")
CAPITALS = BUS.replace("bus-1", "Office")
HOSTS = {
    "ServiceBusConnection": "Bus-1.servicebus.windows.net",
    "OfficeBus": "office.servicebus.windows.net",
}


@pytest.mark.parametrize(
    ("hosts", "ids", "expected"),
    [
        (HOSTS, [OFFICE, BUS], {"ServiceBusConnection": BUS, "OfficeBus": OFFICE}),
        (HOSTS, [OFFICE], {"OfficeBus": OFFICE}),
        (HOSTS, [CAPITALS, BUS], {"ServiceBusConnection": BUS, "OfficeBus": CAPITALS}),
        (HOSTS, [], {}),
        ({"ServiceBusConnection": "alias.servicebus.windows.net"}, [BUS], NAMESPACES),
        ({"ServiceBusConnection": "alias.servicebus.windows.net"}, [BUS, OFFICE], {}),
        ({"OfficeBus": "alias.servicebus.windows.net"}, [BUS], {}),
    ],
    ids=[
        "two",
        "only one",
        "capitals",
        "none",
        "an alias",
        "which of two is unclear",
        "not the connection",
    ],
)
def test_each_connection_has_the_namespace_of_its_name(
    hosts: dict[str, str], ids: list[str], expected: dict[str, str]
) -> None:
    assert namespace_ids(hosts, ids) == expected


@pytest.mark.parametrize("delay_minutes", [0, 4])
def test_the_rate_is_learned_from_counts_that_are_minutes_late(delay_minutes: int) -> None:
    counted = with_counts(workers(ServiceBusQueue("jobs")), NAMESPACES)
    estimate = counted_rate(replay_state(counted, delay_minutes).learned.work)
    assert estimate is not None
    assert estimate.likely == pytest.approx(RATE, rel=0.05)


# --- several subscriptions --------------------------------------------------------------------

SHARE, MU = 0.3, 20.0


def collected(
    subscriptions: int, minutes: int = 240, rate: float | None = None
) -> tuple[list[Metric], MessageCounts]:
    """What remains of the readings of a topic, whose counts are two minutes late."""
    counted = with_counts(workers(throughput=Throughput(rate)), NAMESPACES)
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


@pytest.mark.parametrize("subscriptions", [1, 3])
def test_a_learned_share_of_a_topic_is_compared_with_no_rate_that_is_set(
    subscriptions: int,
) -> None:
    """The error of the share is the same in each minute, so more minutes do not make it smaller."""
    kept, _ = collected(subscriptions, rate=MU)
    assert bool(named(kept, COMPLETED)) is (subscriptions == 1)
    assert len(named(kept, "backlog")) == 240


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


# --- what is logged ---------------------------------------------------------------------------


def test_one_line_says_why_messages_are_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    counts = MessageCounts()
    with caplog.at_level(logging.INFO, "shared"):
        for _ in range(3):
            assert counts.adjusted(workers(), []) == []
            counts.adjusted(workers(StorageQueue("jobs")), [])
    (line,) = caplog.messages
    assert "because ServiceBusNamespaceIds has no namespace of ServiceBusConnection" in line
    assert "is estimated from the backlog" in line
    assert "assign the app the role Monitoring Reader on it" in line


DENIED = "ReadDenied: bus-1: 403: AuthorizationFailed"
THROTTLED = "ReadFailed: Azure Monitor throttles bus-1: the next query is at 12:0"


def test_counts_that_cannot_be_read_are_reported_once_for_each_cause_until_they_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counts, counted = MessageCounts(), with_counts(workers(ServiceBusQueue("jobs")), NAMESPACES)
    done = Metric("plan-1", COMPLETED, MetricValue(NOW, 60))

    def lines_of(*reasons: str) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.INFO, "shared"):
            for reason in reasons:
                counts.adjusted(counted, [], dict.fromkeys((COMPLETED, ABANDONED), reason))
        return caplog.messages

    (first,) = lines_of(DENIED, DENIED)
    assert first.startswith(
        f"[counts_unavailable] plan-1: completed messages cannot be read: {DENIED}. Meanwhile the "
        "rate per instance stays as it was counted, or is estimated from the backlog"
    )
    assert len(lines_of(THROTTLED + "1", THROTTLED + "2", DENIED)) == 1
    counts.adjusted(counted, [done])
    assert len(lines_of(DENIED, DENIED)) == 1


async def test_a_missing_role_is_logged_once_in_the_days_that_it_is_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted = with_counts(workers(ServiceBusQueue("jobs")), NAMESPACES)
    plain = resource(name="other", metrics={"cpu": CPU})
    now = NOW
    async with ArmStandIn([], clock=lambda: now) as arm:
        arm.metrics.add(BUS, "CompleteMessage", "AbandonMessage").readable = False
        arm.metrics.add(CPU.resource_id, "CpuPercentage").readable = False
        platform = AzurePlatformMetrics(arm.base_url, 5, lambda: now)
        control = MemoryCapacityControl(lambda: now, {})
        reader = MemoryReader(lambda: now, {}, control, platform)
        counts = MessageCounts()
        with caplog.at_level(logging.INFO, "shared"):
            for _ in range(60):
                await collect([counted, plain], reader, 5, counts)
                now += timedelta(minutes=20)
        await platform.close()
    about = [line for line in caplog.messages if "Monitoring Reader" in line]
    assert [line.partition(":")[0] for line in about] == [
        "[counts_unavailable] plan-1",
        "[source_failed] other",
    ]


# --- workers that fail ------------------------------------------------------------------------


def at_minute(name: str, minute: int, value: float) -> Metric:
    return Metric("plan-1", name, MetricValue(NOW + minute * MINUTE, value))


def test_workers_that_abandon_more_than_they_complete_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counts, counted = MessageCounts(), with_counts(workers(ServiceBusQueue("jobs")), NAMESPACES)
    completed = [60, 55, 3, 0, 61]
    abandoned = [0, 55, 400, 500, 2]
    kept = list[Metric]()
    with caplog.at_level(logging.INFO, "shared"):
        for minute, (done, given_up) in enumerate(zip(completed, abandoned, strict=True)):
            readings = [
                at_minute(ABANDONED, minute, given_up),
                at_minute(COMPLETED, minute, done),
            ]
            kept += counts.adjusted(counted, readings)
    assert named(kept, COMPLETED) == completed
    assert named(kept, ABANDONED) == abandoned
    (line,) = caplog.messages
    assert "[counts_abandoned] plan-1: the workers abandoned more deliveries than they" in line


def test_without_counts_of_abandoned_deliveries_all_finished_messages_count() -> None:
    counts, counted = MessageCounts(), with_counts(workers(ServiceBusQueue("jobs")), NAMESPACES)
    assert named(counts.adjusted(counted, [at_minute(COMPLETED, 0, 3)]), COMPLETED) == [3]


@pytest.mark.parametrize("sent", [False, True])
async def test_only_the_app_itself_sends_counts_of_abandoned_deliveries(sent: bool) -> None:
    counted = with_counts(workers(ServiceBusQueue("jobs")), NAMESPACES)
    kept, refused = declared_samples(as_message(at_minute(ABANDONED, 0, 3)), counted, sent=sent)
    assert (len(kept), len(refused)) == ((0, 1) if sent else (1, 0))


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
