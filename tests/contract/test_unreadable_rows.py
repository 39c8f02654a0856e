"""Rows of the table that this version cannot read: named, and no harm to other rows or resources.

Such rows are left behind by a rollback from a newer version, or were written by hand.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.data.tables import TableServiceClient

from local.azurite import Azurite
from shared.adapters.memory.autoscaling import MemoryCapacityControl
from shared.adapters.tables.scaling import LOG_PREFIX, TableStateStore, log_row
from shared.adapters.tables.scaling_rows import profile_row
from shared.autoscaling.deciding.decide import EntryKind
from shared.autoscaling.errors import StateUnreadable
from shared.autoscaling.flows import notify as resource_news
from shared.autoscaling.flows import poison, reconciler, retention, scaler, scaling_logic
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric, MetricValue, WeekProfile
from shared.autoscaling.messages import encode_action, encode_metric
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import Learned, RegressionSums, ScaleAction
from shared.web.board import Board, RecentLog, read
from shared.web.http import Request
from shared.web.page import page
from tests.builders import NOW, TIMING, resource
from tests.contract.test_state_store import FULL, entry, table_store

HOUR = timedelta(hours=1)


@pytest.fixture
def table(azurite: Azurite) -> Iterator[Any]:
    service = TableServiceClient.from_connection_string(azurite.connection_string)
    yield service.create_table_if_not_exists("Scaling")
    service.close()


@pytest.fixture
async def store(azurite: Azurite) -> AsyncIterator[TableStateStore]:
    async with table_store(azurite) as opened:
        yield opened


@pytest.fixture
async def two(store: TableStateStore) -> dict[str, Resource]:
    """Two resources with a state and a decision each."""
    names = [f"plan-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    for name in names:
        snapshot = await store.load(name)
        line = entry(name, time=snapshot.read_at)
        await store.commit(snapshot, FULL, [line])
    return {name: resource(name) for name in names}


def board(two: dict[str, Resource], store: TableStateStore) -> Board:
    return Board(two, store, RecentLog(store))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"kind": "rebalanced"}, "'rebalanced' is not a valid EntryKind"),
        ({"evidence": "{"}, "JSONDecodeError"),
        ({"evidence": "[1, 2]"}, "evidence is a list"),
        ({"candidates": '[{"capacity": 2, "reason": "x", "weight": 1}]'}, "'weight'"),
        ({"candidates": '[{"capacity": 2, "reason": "x", "evidence": null}]'}, "no evidence"),
        ({"current": "two"}, "current is a str"),
        ({"value": float("inf")}, "value is inf"),
        ({"value": float("nan")}, "value is nan"),
        ({"reason": None}, "KeyError: 'reason'"),
    ],
)
async def test_one_unreadable_line_of_the_log_is_shown_as_such_and_hides_nothing(
    two: dict[str, Resource], store: TableStateStore, table: Any, changed: dict[str, Any], why: str
) -> None:
    bad, good = two
    at = datetime.now(UTC) - timedelta(minutes=1)
    row = log_row(entry(bad, "older", time=at)) | changed
    table.create_entity({name: value for name, value in row.items() if value is not None})
    found = await store.log(bad)
    assert [line.kind for line in found] == [EntryKind.DECISION, EntryKind.UNREADABLE]
    unreadable = found[1]
    assert abs(unreadable.time - at) < timedelta(milliseconds=1)
    assert unreadable.resource_name == bad
    assert repr(row["RowKey"]) in unreadable.reason
    assert why in unreadable.reason
    reply = await page(board(two, store), Request())
    assert reply.status == 200
    assert "1 line(s) of the decision log cannot be read" in reply.body
    assert reply.body.count("cannot be shown now") == 0
    for name in two:
        assert (
            await read(board(two, store), Request(route={"name": name, "view": "history"}))
        ).status == 200
    news = await resource_news.run(two.values(), store, at - HOUR, datetime.now(UTC), 30)
    assert news.unasked == []
    assert await retention.run([good], store, days=1) == 0


DESIRED_AS_TYPED = {
    **dict.fromkeys(("target", "epoch", "previous", "attempts"), 2),
    **dict.fromkeys(("reason", "last_error"), ""),
    "requested_at": NOW,
    "status": "pending",
}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"target": 2.5}, "target is a float, a whole number is needed"),
        ({"previous": True}, "previous is a bool, a whole number is needed"),
        ({"reason": 5}, "reason is a int, text is needed"),
    ],
)
async def test_an_order_of_another_kind_than_the_app_writes_is_refused_by_name(
    store: TableStateStore, table: Any, changed: dict[str, Any], why: str
) -> None:
    name = f"plan-{uuid.uuid4().hex[:8]}"
    table.upsert_entity({"PartitionKey": name, "RowKey": "desired", **DESIRED_AS_TYPED, **changed})
    with pytest.raises(StateUnreadable, match=why):
        await store.load(name)


STATE_ROWS = {
    "desired": {"status": "frozen"},
    "metric|backlog": {"samples_0": '[[1, "many"]]'},
    "wishes": {"samples_0": "[[1"},
}


@pytest.mark.parametrize("key", STATE_ROWS)
async def test_an_unreadable_row_of_state_stops_its_resource_alone_with_a_clear_error(
    two: dict[str, Resource],
    store: TableStateStore,
    table: Any,
    key: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, good = two
    table.upsert_entity({"PartitionKey": bad, "RowKey": key, **STATE_ROWS[key]})
    now = datetime.now(UTC)
    with pytest.raises(StateUnreadable, match=rf"{bad}: row '{key}'.* table Scaling .*deploy") as e:
        await scaling_logic.run(Metric(bad, "backlog", MetricValue(now, 5)), two, store)
    control = MemoryCapacityControl(lambda: now, {bad: 2, good: 2})
    action = ScaleAction(bad, 3, 7, "x", now)
    with pytest.raises(StateUnreadable):
        await scaler.run(action, two, store, control, TIMING)
    caplog.set_level(logging.INFO)
    await reconciler.run(two.values(), store, control, TIMING, 30)
    assert [line for line in caplog.messages if "[reconcile_failed]" in line and key in line]
    assert control.changes == []
    await scaling_logic.run(Metric(good, "backlog", MetricValue(now, 5)), two, store)
    statuses = await read(board(two, store), Request())
    assert f'"error": "{bad}: row' in statuses.body
    assert '"capacity": 2' in statuses.body
    reply = await page(board(two, store), Request())
    assert (reply.status, str(e.value).split(";")[0].replace("'", "&#39;") in reply.body) == (
        200,
        True,
    )
    assert f'data-resource="{good}"' in reply.body
    told = await resource_news.run(two.values(), store, now - HOUR, now, 30)
    assert [(n.kind, n.subject) for n in told.conditions if n.subject.startswith(bad)] == [
        ("state.unreadable", bad)
    ]
    assert told.unasked == [bad]


async def test_what_was_poisoned_by_an_unreadable_row_is_written_down_with_the_reason(
    two: dict[str, Resource], store: TableStateStore, table: Any
) -> None:
    bad, _ = two
    table.upsert_entity({"PartitionKey": bad, "RowKey": "desired", "status": "frozen"})
    now = datetime.now(UTC)
    bodies = {
        "m-1": encode_metric(Metric(bad, "backlog", MetricValue(now, 5))),
        "a-1": encode_action(ScaleAction(bad, 3, 7, "x", now)),
    }
    sample, action = [poison.PoisonMessage("q", m, body, now) for m, body in bodies.items()]
    await poison.run_metric(sample, two, store)
    await poison.run_action(action, two, store, TIMING)
    lines = [line for line in await store.log(bad) if line.kind is EntryKind.POISON]
    assert len(lines) == 2
    assert all("row 'desired' of table Scaling cannot be read" in line.reason for line in lines)


def anew(epoch: int) -> Learned:
    """What was learned, without the sums that the rows below spoil."""
    out = RegressionSums(recent=FULL.learned.out.recent)
    return Learned(epoch, out, work=FULL.learned.work)


@pytest.mark.parametrize(
    ("row", "why", "learned"),
    [
        ({"RowKey": "learned", "epoch": 7, "out": '{"weeks": 1}'}, "row 'learned'", anew(7)),
        ({"RowKey": "learned", "epoch": "seven", "out": "{}"}, "row 'learned'", anew(0)),
        ({"RowKey": "profile", "time_zone": "Mars/Olympus"}, "row 'profile'", FULL.learned),
    ],
)
async def test_a_resource_goes_on_without_what_it_can_do_without_and_says_so(
    two: dict[str, Resource],
    store: TableStateStore,
    table: Any,
    row: dict[str, Any],
    why: str,
    learned: Learned,
) -> None:
    bad, _ = two
    profile = profile_row(bad, WeekProfile(tuple(float(hour) for hour in range(168))))
    standing = profile if row["RowKey"] == "profile" else {}
    lessons = {"into": "{}", "dead_times": 0, "dead_time_minutes": 0}
    table.upsert_entity({**standing, **lessons, "PartitionKey": bad, **row})
    snapshot = await store.load(bad)
    (told,) = snapshot.unreadable
    if row["RowKey"] == "learned":
        assert snapshot.state == replace(FULL, learned=learned)
    else:
        assert snapshot.state == replace(FULL, profile=WeekProfile((), absent=told))
    assert told.startswith(f"{why} of table Scaling cannot be read (")
    now = datetime.now(UTC)
    for name in (CAPACITY_METRIC, "backlog"):
        await scaling_logic.run(Metric(bad, name, MetricValue(now, 2)), two, store)
    assert why.replace("'", "&#39;") in (await page(board(two, store), Request())).body
    told_news = await resource_news.run(two.values(), store, now - HOUR, now, 30)
    assert ("state.unreadable", bad) in [(n.kind, n.subject) for n in told_news.conditions]
    assert told_news.unasked == []


async def test_a_line_whose_key_tells_no_time_has_that_of_its_writing(
    two: dict[str, Resource], store: TableStateStore, table: Any
) -> None:
    bad, _ = two
    table.create_entity({"PartitionKey": bad, "RowKey": f"{LOG_PREFIX}soon"})
    (unreadable,) = [e for e in await store.log(bad) if e.kind is EntryKind.UNREADABLE]
    assert datetime.now(UTC) - unreadable.time < timedelta(minutes=5)
