"""An unreadable row of the table Scaling is reported and affects no other row or resource.

A rollback from a newer version may leave such a row, or an operator may have written it by hand.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.data.tables import TableServiceClient

from local.azurite import Azurite
from local.twins.autoscaling import MemoryCapacityControl
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.errors import StateUnreadable
from shared.autoscaling.flows import notify as resource_news
from shared.autoscaling.flows import poison, retention, scaling_logic
from shared.autoscaling.flows.reconciler import Reconciler
from shared.autoscaling.flows.scaler import Scaler
from shared.autoscaling.messages import encode_action
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import Learned, ScaleAction
from shared.autoscaling.store.entries import (
    LOG_PREFIX,
    PACKED,
    PackedPlace,
    log_operations,
    log_row,
)
from shared.autoscaling.store.tables import TableStateStore
from shared.sampling.profile import UsualWeek, profile_row
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue, WeekProfile
from shared.web.board import Board, resources
from shared.web.http import Request
from shared.web.page import dashboard
from tests.autoscaling.store.test_state_store import FULL, entry, table_store
from tests.builders import NOW, TIMING, as_message, encode_metric, resource

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
    """Two resources, each with a state and a decision."""
    names = [f"plan-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    for name in names:
        snapshot = await store.load(name)
        line = entry(name, time=snapshot.read_at)
        await store.commit(snapshot, FULL, [line])
    return {name: resource(name) for name in names}


def board(two: dict[str, Resource], store: TableStateStore) -> Board:
    return Board(two, store, 30)


def own_row(line: LogEntry, changed: dict[str, Any]) -> dict[str, Any]:
    row = log_row(line) | changed
    return {name: value for name, value in row.items() if value is not None}


def packed_row(line: LogEntry, changed: dict[str, Any]) -> dict[str, Any]:
    """The row of a decision that requests nothing, with another one beside it."""
    lines = [replace(line, applies=False), replace(line, applies=False, entry_id="good")]
    row = log_operations(lines, PackedPlace(), None)[0].row
    bad = next(name for name in row if PACKED.match(name))
    content = json.loads(row[bad]) | changed
    kept = {name: value for name, value in content.items() if value is not None}
    return row | {bad: json.dumps(kept) if len(changed) < 2 else "{", "added_later": 1}


@pytest.mark.parametrize("form", [own_row, packed_row])
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"kind": "rebalanced"}, "'rebalanced' is not a valid EntryKind"),
        ({"evidence": "{"}, "JSONDecodeError"),
        ({"evidence": "[1, 2]"}, "evidence is a list"),
        ({"candidates": '[{"capacity": 2, "rule": "x"}]'}, "'reason'"),
        ({"candidates": '[{"capacity": 2, "reason": "x", "evidence": null}]'}, "no evidence"),
        ({"current": "two"}, "current is a str"),
        ({"limited_by": "[1]"}, "limited_by is a int"),
        ({"candidates": '[{"capacity": "2", "reason": "x"}]'}, "capacity is a str"),
        ({"value": float("inf")}, "value is inf"),
        ({"value": float("nan")}, "value is nan"),
        ({"reason": None}, "KeyError: 'reason'"),
        ({"evidence": "{", "reason": "not JSON at all if packed"}, "JSONDecodeError"),
    ],
)
async def test_an_unreadable_log_entry_is_shown_as_unreadable_and_hides_no_other(
    two: dict[str, Resource],
    store: TableStateStore,
    table: Any,
    changed: dict[str, Any],
    why: str,
    form: Callable[[LogEntry, dict[str, Any]], dict[str, Any]],
) -> None:
    bad, good = two
    at = datetime.now(UTC) - timedelta(minutes=1)
    row = form(entry(bad, "older", time=at), changed)
    table.create_entity(row)
    entries = await store.log(bad)
    kinds = [line.kind for line in entries]
    assert (kinds[0], kinds.count(EntryKind.UNREADABLE)) == (EntryKind.DECISION, 1)
    assert kinds.count(EntryKind.DECISION) == (2 if form is packed_row else 1)
    (unreadable,) = [line for line in entries if line.kind is EntryKind.UNREADABLE]
    assert abs(unreadable.time - at) < timedelta(seconds=1)
    assert unreadable.resource_name == bad
    assert repr(row["RowKey"]) in unreadable.reason
    assert why in unreadable.reason
    reply = await dashboard(Request(), board(two, store))
    assert reply.status == 200
    assert "1 entry of the decision log cannot be read" in reply.body
    assert reply.body.count("cannot be shown now") == 0
    for name in two:
        request = Request(route={"name": name, "view": "history"})
        assert (await resources(request, board(two, store))).status == 200
    news = await resource_news.collect_news(two.values(), store, at - HOUR, datetime.now(UTC), 30)
    assert news.unread == []
    assert await retention.delete_old_entries([good], store, days=1) == 0


DESIRED_AS_TYPED = {
    **dict.fromkeys(("target", "epoch", "previous", "attempts"), 2),
    **dict.fromkeys(("reason", "last_error"), ""),
    "requested_at": NOW,
    "status": "pending",
}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"target": 2.5}, "target is a float, but must be a whole number"),
        ({"previous": True}, "previous is a bool, but must be a whole number"),
        ({"reason": 5}, "reason is a int, but must be text"),
        ({"changed_by_hand": "no"}, "changed_by_hand is a str, but must be true or false"),
        ({"superseded": '[4, "x"]'}, "superseded is a str, but must be a whole number"),
        ({"superseded": "4"}, "superseded is a int, but must be a list"),
    ],
)
async def test_a_desired_row_with_a_field_of_the_wrong_type_is_refused_by_name(
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
async def test_an_unreadable_state_row_stops_only_its_resource_with_a_clear_error(
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
        await scaling_logic.process_samples(
            as_message(Metric(bad, "backlog", MetricValue(now, 5))), two, store
        )
    control = MemoryCapacityControl(lambda: now, {bad: 2, good: 2})
    action = ScaleAction(bad, 3, 7, "x", now)
    with pytest.raises(StateUnreadable):
        await Scaler(two, store, control, TIMING).execute(action)
    caplog.set_level(logging.INFO)
    await Reconciler(store, control, TIMING, 30).reconcile_all(two.values())
    assert [line for line in caplog.messages if "[reconcile_failed]" in line and key in line]
    assert control.changes == []
    await scaling_logic.process_samples(
        as_message(Metric(good, "backlog", MetricValue(now, 5))), two, store
    )
    statuses = await resources(Request(), board(two, store))
    assert f'"error": "{bad}: row' in statuses.body
    assert '"capacity": 2' in statuses.body
    reply = await dashboard(Request(), board(two, store))
    assert (reply.status, str(e.value).split(";")[0].replace("'", "&#39;") in reply.body) == (
        200,
        True,
    )
    assert f'data-resource="{good}"' in reply.body
    observed = await resource_news.collect_news(two.values(), store, now - HOUR, now, 30)
    assert [(n.kind, n.subject) for n in observed.conditions if n.subject.startswith(bad)] == [
        ("state.unreadable", bad)
    ]
    assert observed.unread == [bad]


async def test_a_message_poisoned_by_an_unreadable_row_is_logged_with_the_reason(
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


@pytest.mark.parametrize(
    "row",
    [
        {"RowKey": "learned", "epoch": 7, "trend": '{"weeks": 1}'},
        {"RowKey": "learned", "epoch": 7, "stalls": '[{"metric": "backlog"}]'},
        {"RowKey": "learned", "epoch": 7, "work": '{"recent": [[1.0]]}'},
        {"RowKey": "learned", "epoch": "seven", "trend": "{}"},
        {"RowKey": "profile", "time_zone": "Mars/Olympus"},
        {"RowKey": "rules", "version": 7},
        {"RowKey": "last", "entry_0": "{"},
    ],
)
async def test_a_resource_keeps_scaling_without_an_optional_row_and_reports_it(
    two: dict[str, Resource],
    store: TableStateStore,
    table: Any,
    row: dict[str, Any],
) -> None:
    bad, _ = two
    profile = profile_row(bad, UsualWeek(tuple(float(hour) for hour in range(168)), "UTC", ()))
    sound_profile = profile if row["RowKey"] == "profile" else {}
    table.upsert_entity({**sound_profile, "PartitionKey": bad, **row})
    snapshot = await store.load(bad)
    (reason,) = snapshot.unreadable
    if row["RowKey"] == "learned":
        assert snapshot.state == replace(FULL, learned=Learned())
    elif row["RowKey"] == "rules":
        assert snapshot.state == replace(FULL, rules=None)
    elif row["RowKey"] == "last":
        assert (snapshot.state, snapshot.decided) == (FULL, None)
    else:
        assert snapshot.state == replace(FULL, profile=WeekProfile((), absent=reason))
    why = f"row {row['RowKey']!r} of table Scaling cannot be read ("
    assert reason.startswith(why)
    now = datetime.now(UTC)
    assert why.replace("'", "&#39;") in (await dashboard(Request(), board(two, store))).body
    told_news = await resource_news.collect_news(two.values(), store, now - HOUR, now, 30)
    assert ("state.unreadable", bad) in [(n.kind, n.subject) for n in told_news.conditions]
    assert told_news.unread == []
    for name in (CAPACITY_METRIC, "backlog"):
        sent = Metric(bad, name, MetricValue(now, 2))
        await scaling_logic.process_samples(as_message(sent), two, store, "a")
    replaced = row["RowKey"] != "profile"  # the next decision replaces the row
    assert (await store.load(bad)).unreadable == (() if replaced else (reason,))


async def test_an_entry_without_a_time_in_its_key_has_the_time_of_its_writing(
    two: dict[str, Resource], store: TableStateStore, table: Any
) -> None:
    bad, _ = two
    table.create_entity({"PartitionKey": bad, "RowKey": f"{LOG_PREFIX}soon"})
    (unreadable,) = [e for e in await store.log(bad) if e.kind is EntryKind.UNREADABLE]
    assert datetime.now(UTC) - unreadable.time < timedelta(minutes=5)
