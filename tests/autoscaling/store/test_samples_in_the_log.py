"""Samples on their way: from one message of a tick to the log, the chart, and the backtest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backtest.history import Point, points_of, read_record
from local.azurite import Azurite
from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling import AzureMonitorMetric, Resource, StorageQueue, Throughput
from shared.autoscaling.deciding.decide import LogEntry
from shared.autoscaling.deciding.stretches import course_of
from shared.autoscaling.flows import scaling_logic, status
from shared.autoscaling.messages import Samples, decode_samples
from shared.autoscaling.operating.presenting import points
from shared.autoscaling.ports import Snapshot, StateStore
from shared.autoscaling.state import ScalingState
from shared.autoscaling.store.entries import log_entry, log_row
from shared.autoscaling.store.rows import state_of, state_row
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue, Window
from shared.values.samples import encode_metrics, format_time
from tests.autoscaling.operating.test_staleness import BUS
from tests.autoscaling.store.test_state_store import entry, name, table_store
from tests.builders import NOW, resource, sample

__all__ = ["name"]

READ = {"backlog": 120.0, "cpu": 71.5, "dead": 0.0, "finished": 40.0}


class Counting(MemoryStateStore):
    """Counts what a message costs."""

    loads = commits = 0

    async def load(self, resource_name: str) -> Snapshot:
        self.loads += 1
        return await super().load(resource_name)

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        self.commits += 1
        await super().commit(snapshot, state, entries)


@pytest.fixture(params=["memory", "tables"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[StateStore]:
    if request.param == "memory":
        yield Counting(lambda: datetime.now(UTC))
        return
    async with table_store(request.getfixturevalue("azurite")) as tables:
        yield tables


def rule(name: str) -> Resource:
    sources = {
        "backlog": StorageQueue("orders"),
        "cpu": AzureMonitorMetric(BUS, "CpuPercentage"),
        "dead": StorageQueue("orders-poison"),
        "finished": AzureMonitorMetric(BUS, "CompleteMessage", "total"),
    }
    return resource(name, metrics=sources, throughput=Throughput(completed_metric="finished"))


def read_at(name: str, now: datetime) -> list[Metric]:
    """What the collector reads in one tick: the CPU of two minutes, and one value of the others."""
    values = [(CAPACITY_METRIC, now, 2.0), *((metric, now, READ[metric]) for metric in READ)]
    values.insert(2, ("cpu", now - timedelta(minutes=1), 64.0))
    return [Metric(name, metric, MetricValue(time, value)) for metric, time, value in values]


async def test_a_tick_is_one_message_one_commit_and_one_entry_with_all_samples(
    store: StateStore, name: str
) -> None:
    declared, now = rule(name), (await store.load(name)).read_at
    read = read_at(name, now)
    (text,) = encode_metrics(read)
    before = getattr(store, "loads", 0)
    await scaling_logic.process_samples(decode_samples(text), {name: declared}, store)
    if isinstance(store, Counting):
        assert (store.loads - before, store.commits) == (1, 1)
    lines = await store.log(name)
    assert [list(line.samples) for line in lines] == [[CAPACITY_METRIC, *READ]]
    kept = [Metric(name, each, v) for each, found in lines[0].samples.items() for v in found]
    assert kept == read

    (point,) = points(course_of(lines), 60)
    assert point["metrics"] == READ
    (shown,) = await status.read_decisions(declared, store, 10)
    assert shown["samples"][0] == {"name": "capacity", "value": 2, "time": format_time(now)}
    assert {each["name"]: each["value"] for each in shown["samples"]} == {"capacity": 2, **READ}
    for metric in ("backlog", "dead"):
        sources = {metric: declared.metrics[metric]}
        entries, _ = await read_record(store, name)
        replayed = points_of(resource(name, metrics=sources), entries, ScalingState())
        assert replayed == [Point(now, READ[metric], 2)]


async def test_a_decision_counts_how_often_the_decisions_before_it_said_the_same(
    store: StateStore, name: str
) -> None:
    declared, now = resource(name), (await store.load(name)).read_at
    for number in range(4):
        at = now - timedelta(seconds=60 - 15 * number)
        read = [Metric(name, each, MetricValue(at, 2 + number / 8)) for each in ("backlog",)]
        read.append(Metric(name, CAPACITY_METRIC, MetricValue(at, 2)))
        await scaling_logic.process_samples(Samples(name, tuple(read)), {name: declared}, store)
    lines = await store.log(name)
    assert len({line.reason for line in lines}) > 1, "the numbers in the reason differ"
    assert [line.repeated for line in lines] == [3, 2, 1, 0]
    assert {line.repeated_since for line in lines[:3]} == {lines[3].time}
    (shown, *_) = await status.read_decisions(declared, store, 1)
    assert (shown["repeated"], shown["repeated_since"]) == (3, format_time(lines[3].time))
    assert (await store.load(name)).decided == lines[0]


@pytest.mark.parametrize(
    ("changed", "repeated"),
    [
        ({"reason": "mean backlog 31.5 > 100"}, 5),
        ({"reason": "mean backlog 200 < 100"}, 0),
        ({"limited_by": ()}, 0),
        ({"current": 3}, 0),
        ({"epoch": 8}, 0),  # an older version has changed the capacity and back meanwhile
        ({"applies": True}, 0),
        ({"time": NOW - timedelta(seconds=1)}, 0),  # the clock was set back
    ],
)
def test_a_decision_that_says_something_else_is_no_repetition(
    changed: dict[str, Any], repeated: int
) -> None:
    before = entry("a", applies=False, repeated=4, repeated_since=NOW - timedelta(hours=1))
    found = entry("a", "a-2", **{"applies": False, **changed}).after(before)
    assert (found.repeated, found.repeated_since) == (
        (repeated, before.repeated_since) if repeated else (0, None)
    )


def old_row() -> Any:
    """A row as versions write it that keep one sample of a decision."""
    row = log_row(entry("plan-1", metric="backlog", value=31.5))
    assert not any(column.startswith("samples") for column in row)
    return row


def test_an_entry_of_an_older_version_shows_its_one_sample() -> None:
    old = log_entry(old_row())
    declared = resource(metrics={"backlog": StorageQueue("orders")})
    assert points(course_of([old]), 60)[0]["metrics"] == {"backlog": 31.5}
    assert points_of(declared, [old], ScalingState()) == [Point(NOW, 31.5, 2)]


@pytest.mark.parametrize(
    "text", ["1", "[1]", '[["a",[[1]]]]', '[["a",[[0,"5"]]]]', '[["a",5]]', "[[[],[]]]"]
)
def test_samples_that_cannot_be_read_make_the_entry_unreadable_and_no_other(text: str) -> None:
    found = log_entry({**old_row(), "samples_0": text})
    assert (found.kind, found.samples) == ("unreadable", {})


async def test_the_largest_message_fits_into_the_log(azurite: Azurite, name: str) -> None:
    many = [
        Metric(name, "backlog", MetricValue(NOW + timedelta(microseconds=n), 1e15 / 3))
        for n in range(3000)
    ]
    text, *_ = encode_metrics(many)
    assert 40_000 < len(text) < 45_000
    samples = tuple(metric.value for metric in decode_samples(text).metrics)
    async with table_store(azurite) as tables:
        await tables.record(entry(name, samples={"backlog": samples}))
        assert (await tables.log(name))[0].samples == {"backlog": samples}


def test_the_status_of_a_sample_is_stored_and_one_of_another_version_is_left_out() -> None:
    samples = (sample(5, 30), replace(sample(6, 15), status="topic Disabled"), sample(7))
    row = state_row("plan-1", "metric|backlog", Window(samples))
    (stored, _) = state_of([row])
    assert stored.histories["backlog"].samples == samples
    (changed, _) = state_of([{**row, "samples_0": row["samples_0"].replace("Disabled", "Odd")}])
    assert [each.status for each in changed.histories["backlog"].samples] == ["", "", ""]
    decided = replace(entry("plan-1"), samples={"backlog": samples})
    assert log_entry(log_row(decided)).samples == {"backlog": samples}
