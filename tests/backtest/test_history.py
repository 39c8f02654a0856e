"""Replaying the app's records: arrivals are reconstructed from backlogs and capacities."""

from __future__ import annotations

import asyncio
import json
import uuid
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from backtest.arena import as_schedule
from backtest.errors import NoHistory
from backtest.history import Point, load_history, points_of, read_record, workload_from
from backtest.outcome import course
from local.azurite import Azurite
from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling import StorageQueue, Threshold
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.store.tables import TableStateStore
from shared.settings.connections import StorageConnection
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from tests.backtest.arenas import START, CommandLine, arena
from tests.builders import as_message, resource

ONE = resource(metrics={"jobs": StorageQueue("jobs")}, policy=Threshold("jobs", 100, 10))


def points(backlogs: list[float], capacity: int, every: float = 1) -> list[Point]:
    return [
        Point(START + timedelta(minutes=every * i), backlog, capacity)
        for i, backlog in enumerate(backlogs)
    ]


def test_arrivals_of_busy_minutes_are_reconstructed_exactly() -> None:
    arrivals = np.array([50.0, 30, 10, 40, 5, 25])
    played = course(arena(), arrivals, as_schedule([2] * 6))
    history = workload_from(ONE, points([0, *played.backlog], 2), rate=10)
    assert history.arrivals.tolist() == arrivals.tolist()


def test_an_interval_that_ends_with_an_empty_queue_counts_as_no_arrivals() -> None:
    history = workload_from(ONE, points([5, 0, 0, 7], 1), rate=10)
    assert history.arrivals.tolist() == [0, 0, 17]
    assert "2 of 3 intervals end with an empty queue" in history.notices[1]


def test_gaps_in_the_record_are_cut_out() -> None:
    late = [Point(p.time + timedelta(hours=1), p.backlog, 2) for p in points([50, 50], 2)]
    history = workload_from(ONE, points([50, 50, 50], 2) + late, rate=10)
    assert history.arrivals.tolist() == [20, 20, 20]
    assert history.starts[2] == START + timedelta(hours=1)
    assert "1 gaps of more than 5 min" in history.notices[2]


async def test_points_are_read_from_the_decision_log_of_the_app() -> None:
    now = START
    store = MemoryStateStore(lambda: now)
    for minute, backlog in enumerate([30, 40, 50]):
        now = START + timedelta(minutes=minute)
        for name, value in ((CAPACITY_METRIC, 2), ("jobs", backlog)):
            sample = Metric(ONE.name, name, MetricValue(now, float(value)))
            await scaling_logic.process_samples(as_message(sample), {ONE.name: ONE}, store)
    read = points_of(ONE, *await read_record(store, ONE.name))
    assert read == [
        Point(START + timedelta(minutes=m), q, 2) for m, q in enumerate((30.0, 40.0, 50.0))
    ]


def test_decisions_in_a_real_table_are_replayed(
    backtest: CommandLine, azurite: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"plan-{uuid.uuid4().hex[:8]}"
    rules = tmp_path / "rules.py"
    rules.write_text(RULES.format(name=name))
    asyncio.run(record_four_minutes(azurite.connection_string, name))
    monkeypatch.setenv("AzureWebJobsStorage", azurite.connection_string)
    words = ("--from-history", name, "--instance-rate", "10", "--rules", str(rules), "--json")
    code, out, err = backtest.run(*words)
    assert (code, err) == (0, "")
    trace = json.loads(out)["trace"]
    assert trace["arrivals"] == pytest.approx(90, rel=0.2)  # 3 minutes of 2 instances, and growth
    assert any("recorded backlogs at 10 items" in notice for notice in trace["notices"])


RULES = """
from shared.autoscaling import AppServicePlan, Resource, StorageQueue, Threshold

def resources(settings):
    plan = AppServicePlan("00000000-0000-0000-0000-000000000001", "group", "{name}")
    jobs = {{"jobs": StorageQueue("jobs")}}
    return [Resource("{name}", plan, jobs, Threshold("jobs", 1000, 0))]
"""


async def record_four_minutes(connection_string: str, name: str) -> None:
    """Write decisions like the app does, with times that are a minute apart."""
    store = TableStateStore(StorageConnection("Storage", connection_string))
    for minute, backlog in enumerate([30.0, 40, 50, 60]):
        line = LogEntry(
            resource_name=name,
            time=START + timedelta(minutes=minute),
            kind=EntryKind.DECISION,
            entry_id=f"jobs-{minute}",
            reason="hold",
            current=2,
            desired=2,
            metric="jobs",
            value=backlog,
        )
        await store.record(line)
    await store.close()


def test_without_a_running_storage_the_error_says_what_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refused(_store: TableStateStore, *_arguments: object, **_options: object) -> None:
        raise OSError("Connect call failed ('127.0.0.1', 10002)\nand more")

    monkeypatch.setenv("AzureWebJobsStorage", "UseDevelopmentStorage=true")
    monkeypatch.setattr(TableStateStore, "log", refused)
    with pytest.raises(NoHistory, match="Nothing listens there: start Azurite") as raised:
        load_history(ONE, 5)
    assert "\n" not in str(raised.value)
