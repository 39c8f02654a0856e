"""The contract of StateStore, tested on the in-memory adapter and on Azure Tables (Azurite)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.data.tables import TableServiceClient

from local.azurite import Azurite
from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.deciding.samples import SAMPLES_KEPT_MAX
from shared.autoscaling.declaring import Mode
from shared.autoscaling.errors import StateConflict
from shared.autoscaling.plan_facts import PlanFacts
from shared.autoscaling.policy import Recommendation
from shared.autoscaling.ports import StateStore, Wrote, wrote_nothing
from shared.autoscaling.state import (
    ActionStatus,
    BacklogTrend,
    BusyIntervals,
    Learned,
    Override,
    RateClaim,
    RulesInForce,
    ScalingState,
    Stall,
)
from shared.autoscaling.store.entries import (
    PackedPlace,
    last_of,
    log_entry,
    log_operations,
    log_row,
    newest_first,
)
from shared.autoscaling.store.tables import TableStateStore
from shared.sampling.profile import UsualWeek, profile_row
from shared.settings.connections import StorageConnection
from shared.storage.table_requests import Row, RowOperation
from shared.values.measurements import MetricValue, WeekProfile, Window
from shared.values.row_values import json_text
from shared.values.samples import METRICS_OF_A_MESSAGE_MAX
from shared.wiring.app import App
from tests.builders import NOW, ago, desired, history, sample
from tests.wiring.test_platform_metrics import EXAMPLE


@asynccontextmanager
async def table_store(
    azurite: Azurite, wrote: Wrote = wrote_nothing
) -> AsyncIterator[TableStateStore]:
    store = TableStateStore(StorageConnection("Storage", azurite.connection_string), wrote)
    yield store
    await store.close()


@pytest.fixture
def written() -> list[tuple[str, ScalingState]]:
    """The ids of the entries that the store says it has written, each with its state."""
    return []


@pytest.fixture(params=["memory", "tables"])
async def store(
    request: pytest.FixtureRequest, written: list[tuple[str, ScalingState]]
) -> AsyncIterator[StateStore]:
    def wrote(entries: Sequence[LogEntry], state: ScalingState) -> None:
        written.extend((each.entry_id, state) for each in entries)

    if request.param == "memory":
        yield MemoryStateStore(lambda: datetime.now(UTC), wrote)
        return
    async with table_store(request.getfixturevalue("azurite"), wrote) as tables:
        yield tables


@pytest.fixture
def name() -> str:
    return f"plan-{uuid.uuid4().hex[:8]}"


def entry(name: str, entry_id: str = "a-1", **changes: object) -> LogEntry:
    fields = {
        "resource_name": name,
        "time": NOW,
        "kind": EntryKind.DECISION,
        "entry_id": entry_id,
        "reason": "mean backlog 200 > 100",
        "current": 2,
        "desired": 3,
        "epoch": 7,
        "applies": True,
        "limited_by": ("cooldown", "bounds"),
        "candidates": (Recommendation(4, "much", "threshold", {"mean": 200.5, "n": None}),),
        "evidence": {"mean": 200.5, "samples": 6, "metric": "backlog", "latest": None},
    }
    return LogEntry(**{**fields, **changes})  # type: ignore[arg-type]


FULL = ScalingState(
    histories={
        "backlog": history([1, 2.5, 3]),
        "capacity": Window((MetricValue(ago(0.123456), 2.0),)),
    },
    desired=desired(
        status=ActionStatus.FAILED,
        changed_at=ago(900),
        retry_at=ago(-15),
        attempts=2,
        superseded=(4, 5),
        last_error="409 Conflict: 'quoted' ü",
        changed_out=False,
        changed_by_hand=True,
        changes=(1_772_366_400, 1_772_366_460),
    ),
    plan=PlanFacts("Standard", 2, 10, "no", True, "/subscriptions/1", "cpu", "403"),
    recommendations=history([2, 3]),
    learned=Learned(
        7,
        2,
        3.5,
        BusyIntervals(NOW, ((120.0, 3.0), (0.0, 3.0))),
        BacklogTrend(NOW, 12, 1, -80.5, 2.5, 1600.25, 0.125, 5.5, 30, 1.5),
        (Stall("backlog", ago(600), ago(900.5)), Stall("retries", ago(60))),
        RateClaim(60.0, 5.5, ago(900), ago(600), shown=True),
    ),
    rules=RulesInForce("3f1b", ago(900), ("2e0a", "1d9f"), ago(5), "local-77", ago(1)),
)


async def test_a_committed_state_is_read_back_and_may_be_committed_again(
    store: StateStore, name: str
) -> None:
    empty = await store.load(name)
    assert empty.state == ScalingState()
    assert abs(empty.read_at - datetime.now(UTC)) < timedelta(seconds=30)
    await store.commit(empty, FULL, [entry(name)])
    first = await store.load(name)
    assert first.state == FULL
    assert await store.log(name) == [entry(name)]
    await store.commit(first, FULL)
    await store.commit(first, first.state)


HELD = (sample(1.5), replace(sample(2), status="topic Disabled"))
HOLD: Any = {"applies": False, "samples": {"backlog": HELD}}
OUTCOME = {"kind": EntryKind.CONFIRMED, "applies": False}


async def test_decisions_that_request_nothing_are_read_among_all_others_in_their_order(
    store: StateStore, name: str
) -> None:
    kinds: Sequence[Any] = (HOLD, {}, *[HOLD] * 6, OUTCOME, HOLD, {"epoch": 8}, HOLD)
    ages = (3000, 901, 901, 900, 900, 30, 30, 30, 20, 15, 15, 0)
    lines = [
        entry(name, f"{'zca'[n % 3]}-{n}", time=ago(age), **kind)
        for n, (age, kind) in enumerate(zip(ages, kinds, strict=True))
    ]
    await store.record(lines[0])  # in a row of its own, as earlier versions wrote it
    for line in [*lines[1:], lines[-1]]:  # an entry that is written twice is there once
        await store.commit(await store.load(name), ScalingState(), [line])
    newest_first = lines[::-1]
    newest_first.sort(key=lambda line: (NOW - line.time, -(line.epoch or 0)))
    assert (await store.load(name)).decided == lines[-1]
    other = [entry(f"{name}-2", applies=True), entry(f"{name}-2", applies=False)]
    for line in other:  # another entry, although its ID is the same
        await store.commit(await store.load(f"{name}-2"), ScalingState(), [line])
    assert await store.log(f"{name}-2") == other[::-1]
    for limit in range(1, len(lines) + 2):
        assert await store.log(name, limit) == newest_first[:limit]
    for age in (0, 15, 30, 900, 901, 5000):
        expected = [line for line in newest_first if line.time >= ago(age)]
        assert await store.log(name, since=ago(age)) == expected
        changes = [e for e in expected if e.applies or e.kind is EntryKind.CONFIRMED]
        assert await store.log(name, since=ago(age), changes_only=True) == changes
        for limit in (1, 3, 50):
            earlier = [line for line in newest_first if line.time < ago(age)]
            assert await store.log(name, limit, before=ago(age)) == earlier[:limit]
            part = [line for line in earlier if line.time >= ago(950)]
            assert await store.log(name, limit, ago(950), before=ago(age)) == part[:limit]


async def test_the_course_has_the_lowest_highest_and_last_values_at_each_capacity(
    store: StateStore, name: str
) -> None:
    seen = [(2000, 2, 9.0), (1100, 2, 9.0), (1000, 2, 90.0), (980, 2, 5.0), (950, 2, 7.0)]
    seen = [*[(age, 2, 9.0) for age in (5000, 4000, 3000)], *seen, (940, 3, 1.0)]
    for age, capacity, value in seen:
        samples = {"backlog": (MetricValue(ago(age), value),)}
        evidence = {"backlog": value, "arrivals_per_minute": 2.0}
        hold: Any = {**HOLD, "samples": samples, "evidence": evidence, "desired": capacity}
        line = entry(name, f"b-{age}", time=ago(age), current=capacity, **hold)
        snapshot = await store.load(name)
        await store.commit(snapshot, ScalingState(), [line])
    await store.commit(await store.load(name), ScalingState(), [entry(name, "c-1", time=ago(945))])
    course, lost = await store.course(name, ago(1100), ago(935))
    assert lost == 0
    told = [(s.time, s.capacity, s.desired, s.metrics["backlog"], s.ages["age_minutes"][1])
            for s in course]  # fmt: skip
    assert told == [
        (ago(1100), 2, 2, (5.0, 90.0, 7.0), 45.0),
        (ago(940), 3, 3, (1.0, 1.0, 1.0), 0.5),
    ]
    assert len((await store.course(name, ago(3000), ago(0)))[0]) == 4
    for limit in range(1, 6):
        assert len(await store.log(name, limit, before=ago(1990))) == min(limit, 4)


async def test_the_course_of_rows_of_an_older_version_is_told_as_lost(
    azurite: Azurite, table: Any, name: str
) -> None:
    async with table_store(azurite) as store:
        for age, course in ((2000, None), (1000, "{"), (100, "[[1,2]]"), (0, "")):
            row = entry(name, "a", time=ago(age), **HOLD)
            (merged, _) = log_operations([row], PackedPlace(), None)
            stored = {k: v for k, v in {**merged.row, "course": course}.items() if v is not None}
            table.upsert_entity(stored)
        assert await store.course(name, ago(3000), ago(-900)) == ([], 3)


async def test_each_entry_that_was_written_is_told_with_its_state(
    store: StateStore, name: str, written: list[tuple[str, ScalingState]]
) -> None:
    empty = await store.load(name)
    await store.commit(empty, FULL, [entry(name, "a"), entry(name, "b")])
    with pytest.raises(StateConflict):
        await store.commit(empty, replace(FULL, desired=None), [entry(name, "refused")])
    await store.put_override(empty, Override(Mode.PAUSED, "work"), entry(name, "c"))
    await store.record(entry(name, "d"))
    expected = [("a", FULL), ("b", FULL), ("c", ScalingState()), ("d", ScalingState())]
    assert written == expected


async def test_of_two_decisions_on_the_same_state_only_one_is_written(
    store: StateStore, name: str
) -> None:
    """Even if they write different rows of the state: the second has not counted the first."""
    await store.commit(await store.load(name), FULL, [entry(name, "a", **HOLD)])
    first, second = await store.load(name), await store.load(name)
    more = first.state.with_history("backlog", history([9]))
    await store.commit(first, more, [entry(name, "b", **HOLD)])
    other = second.state.with_history("finished", history([9]))
    with pytest.raises(StateConflict):
        await store.commit(second, other, [entry(name, "c", **HOLD)])
    await store.commit(second, other)
    decided = (await store.load(name)).decided
    assert decided is not None
    assert decided.entry_id == "b"


async def test_only_one_of_two_concurrent_commits_of_a_row_wins(
    store: StateStore, name: str
) -> None:
    first, second = await store.load(name), await store.load(name)
    await store.commit(first, replace(FULL, desired=None), [entry(name)])
    with pytest.raises(StateConflict):
        await store.commit(second, replace(FULL, desired=None), [entry(name, "b-1")])
    third, fourth = await store.load(name), await store.load(name)
    await store.commit(third, replace(third.state, desired=desired()))
    with pytest.raises(StateConflict):
        await store.commit(fourth, replace(fourth.state, desired=desired(target=9)))
    assert [e.entry_id for e in await store.log(name)] == ["a-1"]
    assert (await store.load(name)).state.desired == desired()


async def test_an_override_lasts_until_it_is_replaced_and_only_one_of_two_writers_wins(
    store: StateStore, name: str
) -> None:
    paused = Override(Mode.PAUSED, "incident 42", NOW + timedelta(hours=2))
    floor = Override(reason="sale", floor=3, freeze_scale_in=True)
    for number, override in enumerate((paused, floor, None, None)):
        first, second = await store.load(name), await store.load(name)
        line = entry(name, f"o-{number}", kind=EntryKind.OVERRIDE)
        await store.put_override(first, override, line)
        assert (await store.load(name)).state.override == override
        if number == 3:  # removed twice: the row did not change
            break
        with pytest.raises(StateConflict):
            await store.put_override(second, Override(Mode.DRY_RUN, "second"), entry(name, "o-9"))
    assert (await store.load(name)).state.override is None
    assert {e.entry_id for e in await store.log(name)} == {f"o-{number}" for number in range(4)}


async def test_a_commit_does_not_conflict_with_changes_of_other_rows(
    store: StateStore, name: str
) -> None:
    snapshot = await store.load(name)
    paused = Override(Mode.PAUSED, "now")
    await store.put_override(snapshot, paused, entry(name, "o-1", kind=EntryKind.OVERRIDE))
    await store.commit(snapshot, FULL, [entry(name)])
    await store.commit(snapshot, ScalingState({"b": history([2])}))
    expected = replace(FULL, override=paused, histories={**FULL.histories, "b": history([2])})
    assert (await store.load(name)).state == expected


async def test_a_commit_is_atomic(store: StateStore, name: str) -> None:
    await store.commit(await store.load(name), ScalingState(), [entry(name, "a-1")])
    snapshot = await store.load(name)
    with pytest.raises(StateConflict):
        await store.commit(snapshot, FULL, [entry(name, "a-2"), entry(name, "a-1")])
    assert (await store.load(name)).state == ScalingState()
    assert [e.entry_id for e in await store.log(name)] == ["a-1"]


@pytest.mark.parametrize(
    ("recorded", "order"),
    [
        ([{"time": ago(n), "epoch": n} for n in (3, 1, 2, 5, 4)], (1, 2, 0, 4, 3)),
        ([{"epoch": 9}, {"epoch": 11}, {"epoch": 10}], (1, 2, 0)),
        ([{"kind": EntryKind.CONFIRMED}, {}], (0, 1)),
        ([{"kind": EntryKind.OVERRIDE} for _ in range(3)], (2, 1, 0)),
    ],
    ids=["newest first", "higher epoch first", "outcome before decision", "last override first"],
)
async def test_the_log_is_newest_first_and_within_a_second_in_the_order_of_events(
    store: StateStore, name: str, recorded: list[dict[str, object]], order: tuple[int, ...]
) -> None:
    lines = [entry(name, f"{'zcab'[n % 4]}-{n}", **each) for n, each in enumerate(recorded)]
    for line in lines:
        await store.record(line)
    expected = [lines[n] for n in order]
    assert await store.log(name) == expected
    await store.record(lines[-1])
    assert await store.log(name) == expected, "an entry that is recorded twice is there once"
    assert await store.log(name, 1) == expected[:1]
    newer = [line for line in expected if line.time >= ago(2)]
    assert await store.log(name, since=ago(2)) == newer
    assert await store.log("plan-without-a-log") == []


async def test_any_recommendation_of_a_rule_can_be_written_and_read(
    store: StateStore, name: str
) -> None:
    class Unprintable:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    odd: Any = {1: Unprintable(), "huge": 10**5000, "half": "\ud800", "nan": float("nan")}
    loop: Any = {}
    loop["self"] = loop
    long_ones = [Recommendation(2, "r" * 500, f"rule {i}", {"text": "x" * 400}) for i in range(99)]
    recommendation = Recommendation(2, "half \ud800", "rule", {**odd, **loop})
    line = entry(
        name,
        candidates=(recommendation, *long_ones),
        evidence={str(i): "y" * 999 for i in range(99)},
    )
    await store.record(line)
    (read,) = await store.log(name)
    assert read.candidates[0].rule == "rule"
    assert all(c.capacity == 2 for c in read.candidates)


@pytest.mark.parametrize(
    ("reason", "count", "kept", "has_evidence"),
    [("r" * 100, 10, 10, True), ("r" * 100, 40, 40, False), ("r" * 500, 99, 28, False)],
)
def test_recommendations_that_do_not_fit_lose_their_evidence_first_and_then_the_last_ones(
    reason: str, count: int, kept: int, has_evidence: bool
) -> None:
    given = [Recommendation(n, reason, "rule", {"text": "x" * 400}) for n in range(count)]
    row = log_row(entry("plan-1", candidates=tuple(given)))
    assert len(row["candidates"]) <= 16_000
    expected = given if has_evidence else [replace(each, evidence={}) for each in given]
    assert list(log_entry(row).candidates) == expected[:kept]


async def test_the_longest_histories_of_all_metrics_of_a_message_fit_one_transaction(
    store: StateStore, name: str
) -> None:
    long = Window(tuple(sample(1e15 / 7, i / 8 + 1e-6) for i in reversed(range(SAMPLES_KEPT_MAX))))
    histories = {f"{'long' * 24}-{n}": long for n in range(METRICS_OF_A_MESSAGE_MAX)}
    lines = [entry(name, f"a-{n}", reason="x" * 16_000) for n in range(3)]
    await store.commit(await store.load(name), ScalingState(histories), lines)
    assert (await store.load(name)).state.histories == histories


async def test_a_message_of_the_maximum_size_is_stored_completely(
    store: StateStore, name: str
) -> None:
    body = "😀'\"\n" * 13_000
    await store.record(entry(name, kind=EntryKind.POISON, body=body))
    assert (await store.log(name))[0].body == body


async def test_pruning_deletes_only_older_entries(store: StateStore, name: str) -> None:
    await store.commit(await store.load(name), FULL)
    for seconds in range(205):
        await store.record(entry(name, f"id-{seconds:03d}", time=ago(seconds)))
    assert await store.prune_log(name, ago(3)) == 201
    kept = [e.entry_id for e in await store.log(name)]
    assert kept == ["id-000", "id-001", "id-002", "id-003"]
    assert (await store.load(name)).state == FULL


# --- rows that operators read, and rows that they write ---------------------------------------


@pytest.fixture
def table(azurite: Azurite) -> Any:
    service = TableServiceClient.from_connection_string(azurite.connection_string)
    yield service.create_table_if_not_exists("Scaling")
    service.close()


async def test_rows_are_readable_for_operators(azurite: Azurite, table: Any, name: str) -> None:
    async with table_store(azurite) as store:
        await store.commit(await store.load(name), FULL, [entry(name)])
    rows = {r["RowKey"]: r for r in table.query_entities(f"PartitionKey eq '{name}'")}
    decision, *others = list(rows)
    assert decision.startswith("decision|")
    metrics = ["metric|backlog", "metric|capacity"]
    assert others == ["desired", "last", "learned", *metrics, "plan", "rules", "wishes"]
    assert rows["desired"]["target"] == 3
    assert rows["desired"]["requested_at"] == ago(30)
    assert rows[decision]["reason"] == "mean backlog 200 > 100"


def keys_of(table: Any, name: str) -> list[str]:
    found = table.query_entities(f"PartitionKey eq '{name}'", select=["RowKey"])
    return [row["RowKey"].split("|")[0] for row in found]


async def test_decisions_that_request_nothing_share_a_row_for_each_quarter_of_an_hour(
    azurite: Azurite, table: Any, name: str
) -> None:
    async with table_store(azurite) as store:
        for number in range(12):
            line = entry(name, f"a-{number}", time=ago(100 * number), applies=number == 5)
            await store.commit(await store.load(name), ScalingState(), [line])
        assert keys_of(table, name) == [*["decided"] * 3, "decision", "last"]
        assert await store.prune_log(name, ago(550)) == 1
        left = [line.entry_id for line in await store.log(name)]
        assert left == [f"a-{number}" for number in range(10)], "the quarter is not over"
        assert await store.prune_log(name, ago(-900)) == 3
        assert await store.log(name) == []


async def test_decisions_after_a_clock_was_set_back_replace_none_of_the_same_time(
    store: StateStore, name: str
) -> None:
    written = list[LogEntry]()
    for age in (960, 945, 930, 45, 30, 15, 960, 945, 45, 30, 930, 45, 15):  # set back twice
        line = entry(name, f"backlog-{age}", time=ago(age), **HOLD)
        snapshot = await store.load(name)
        written.append(line.after(snapshot.decided))
        await store.commit(snapshot, ScalingState(), written[-1:])
    expected = written[::-1]
    expected.sort(key=lambda line: NOW - line.time)
    assert await store.log(name) == expected


@pytest.mark.parametrize(
    "reason", ["", "x" * 1900, "x" * 15_000], ids=["many", "long", "very long"]
)
def test_packed_rows_have_no_more_properties_and_characters_than_a_row_can_have(
    reason: str,
) -> None:
    place, rows = PackedPlace(), dict[str, Row]()
    lines = [entry("a", f"a-{n}", time=ago(1), reason=f"{n}{reason}", **HOLD) for n in range(450)]
    for line in lines:
        merged, last = log_operations([line], place, None)
        rows.setdefault(merged.row["RowKey"], {}).update(merged.row)
        (_, place, lost) = last_of([last.row])
        assert not lost
    sizes = [(len(row), len(json_text(row)) * 2 < 2**20) for row in rows.values()]
    assert {fits for _, fits in sizes} == {True}
    assert max(count for count, _ in sizes) <= 203
    assert len(sizes) == {0: 3, 1900: 3, 15_000: 18}[len(reason)]
    in_order = [rows[key] for key in sorted(rows)]
    assert newest_first([], in_order) == lines[::-1]
    assert newest_first([], in_order[:1])[0] == lines[-1], "the newest row is the first"


@pytest.mark.parametrize("code", ["TooManyProperties", "EntityTooLarge", ""])
async def test_a_decision_that_cannot_be_packed_has_a_row_of_its_own(
    azurite: Azurite, table: Any, name: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is full, or else the entry is too long."""
    line = entry(name, reason="x" * (15_000 if code else 16_000), **HOLD)
    async with table_store(azurite) as store:
        submit = store._table.submit

        async def refused(operations: Sequence[RowOperation]) -> Any:
            if code and any(each.method == "PATCH" for each in operations):
                error: Any = HttpResponseError(f"400 {code}")
                error.error_code = code
                raise error
            return await submit(operations)

        monkeypatch.setattr(store._table, "submit", refused)
        await store.commit(await store.load(name), replace(FULL, plan=None), [line])
        snapshot = await store.load(name)
        assert (snapshot.decided, await store.log(name)) == (line, [line])
        assert snapshot.state == replace(FULL, plan=None)
        assert keys_of(table, name)[0] == "decision"


@pytest.mark.parametrize(
    ("topic", "subscription"), [("t" * 260, "s" * 50), (f"a/{'_.-' * 40}b", "t" * 50)]
)
async def test_the_shipped_rules_scale_by_the_longest_names_that_azure_allows(
    azurite: Azurite, name: str, topic: str, subscription: str
) -> None:
    async with App({**EXAMPLE, "Topic": topic, "Subscription": subscription}) as app:
        (resource,) = app.resources.values()
    (backlog,) = resource.metrics
    state = replace(FULL, histories={backlog: FULL.histories["backlog"]})
    async with table_store(azurite) as store:
        await store.commit(await store.load(name), state, [])
        assert (await store.load(name)).state.histories == state.histories


@pytest.mark.parametrize(
    ("fields", "override"),
    [
        ({"mode": "paused", "reason": "incident"}, Override(Mode.PAUSED, "incident")),
        (
            {"mode": "dry_run", "expires_at": "2026-03-01T12:00:00Z"},
            Override(Mode.DRY_RUN, expires_at=NOW),
        ),
        ({"mode": "paused", "expires_at": NOW}, Override(Mode.PAUSED, expires_at=NOW)),
        ({"floor": 3}, Override(floor=3)),
        ({"exact": "4", "freeze_scale_in": True}, Override(freeze_scale_in=True, exact=4)),
        ({"exact": 4, "reason": "test"}, Override(reason="test", exact=4)),
        ({"mode": "stop!"}, None),
        ({"mode": "active", "expires_at": "tomorrow"}, None),
        ({}, None),
        ({"floor": "many"}, None),
        ({"freeze_scale_in": "yes please"}, None),
    ],
)
async def test_an_override_written_by_hand_is_applied_or_pauses_scaling(
    azurite: Azurite, table: Any, name: str, fields: dict[str, Any], override: Override | None
) -> None:
    table.create_entity({"PartitionKey": name, "RowKey": "override", **fields})
    async with table_store(azurite) as store:
        read = (await store.load(name)).state.override
    assert read is not None
    if override is None:
        assert (read.mode, read.expires_at) == (Mode.PAUSED, None)
    else:
        assert read == override


async def test_a_profile_is_read_and_an_unreadable_one_gives_the_reason(
    azurite: Azurite, table: Any, name: str
) -> None:
    loads = (None, *[float(hour) for hour in range(1, 168)])
    week = "Europe/Paris", (0, *[8] * 167)
    profile, row = WeekProfile(loads, *week), profile_row(name, UsualWeek(loads, *week))
    async with table_store(azurite) as store:
        table.create_entity(row)
        assert (await store.load(name)).state.profile == profile
        await store.commit(await store.load(name), FULL)
        assert (await store.load(name)).state == replace(FULL, profile=profile)
        table.upsert_entity({**row, "time_zone": "Mars/Olympus"})
        broken = (await store.load(name)).state.profile
        assert broken is not None
        assert "cannot be read" in broken.absent


async def test_a_resource_name_is_never_interpreted_as_a_query(azurite: Azurite) -> None:
    async with table_store(azurite) as store:
        name = f"o'brien-{uuid.uuid4().hex[:8]}"
        await store.commit(await store.load(name), FULL)
        assert (await store.load(name)).state == FULL
