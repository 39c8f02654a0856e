"""The contract of StateStore, tested on the in-memory adapter and on Azure Tables (Azurite)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from local.azurite import Azurite
from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.deciding.samples import SAMPLES_KEPT_MAX
from shared.autoscaling.declaring import Mode
from shared.autoscaling.errors import StateConflict
from shared.autoscaling.policy import Recommendation
from shared.autoscaling.ports import StateStore, Wrote, wrote_nothing
from shared.autoscaling.state import (
    ActionStatus,
    BacklogTrend,
    BusyIntervals,
    Learned,
    Override,
    RulesInForce,
    ScalingState,
    Stall,
)
from shared.autoscaling.store.tables import TableStateStore
from shared.settings.connections import StorageConnection
from shared.values.measurements import MetricValue, Window
from shared.values.samples import METRICS_OF_A_MESSAGE_MAX
from tests.builders import NOW, ago, desired, history, sample


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
    ),
    recommendations=history([2, 3]),
    learned=Learned(
        7,
        2,
        3.5,
        BusyIntervals(NOW, 5, 200.5, 5, recent=((120.0, 3.0), (0.0, 3.0))),
        BacklogTrend(NOW, 12, 1, -80.5, 2.5, 1600.25, 0.125, 5.5, 30, 1.5),
        (Stall("backlog", ago(600), ago(900.5)), Stall("retries", ago(60))),
    ),
    rules=RulesInForce("3f1b", ago(900), ("2e0a", "1d9f"), ago(5), "local-77", ago(1)),
)


async def test_a_committed_state_is_read_back(store: StateStore, name: str) -> None:
    empty = await store.load(name)
    assert empty.state == ScalingState()
    await store.commit(empty, FULL, [entry(name)])
    assert (await store.load(name)).state == FULL
    assert await store.log(name) == [entry(name)]


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


async def test_a_snapshot_has_the_stores_own_time(store: StateStore, name: str) -> None:
    read_at = (await store.load(name)).read_at
    assert read_at.tzinfo is not None
    assert abs(read_at - datetime.now(UTC)) < timedelta(seconds=30)


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


async def test_an_override_lasts_until_it_is_removed_and_both_changes_are_logged(
    store: StateStore, name: str
) -> None:
    paused = Override(Mode.PAUSED, "incident 42", NOW + timedelta(hours=2))
    floor = Override(reason="sale", floor=3, freeze_scale_in=True)
    for entry_id, override in (("o-1", paused), ("o-2", floor), ("o-3", None), ("o-4", None)):
        line = entry(name, entry_id, kind=EntryKind.OVERRIDE)
        await store.put_override(await store.load(name), override, line)
        assert (await store.load(name)).state.override == override
    assert {e.entry_id for e in await store.log(name)} == {"o-1", "o-2", "o-3", "o-4"}


async def test_the_later_of_two_overrides_on_one_snapshot_is_refused(
    store: StateStore, name: str
) -> None:
    paused = Override(Mode.PAUSED, "first")
    for override in (paused, None):
        first, second = await store.load(name), await store.load(name)
        await store.put_override(first, override, entry(name, f"o-{override}"[:5]))
        with pytest.raises(StateConflict):
            await store.put_override(second, Override(Mode.DRY_RUN, "second"), entry(name, "o-9"))
        assert (await store.load(name)).state.override == override
    assert "o-9" not in {e.entry_id for e in await store.log(name)}


async def test_a_decision_does_not_conflict_with_a_concurrent_override(
    store: StateStore, name: str
) -> None:
    snapshot = await store.load(name)
    paused = Override(Mode.PAUSED, "now")
    await store.put_override(snapshot, paused, entry(name, "o-1", kind=EntryKind.OVERRIDE))
    await store.commit(snapshot, FULL, [entry(name)])
    assert (await store.load(name)).state == replace(FULL, override=paused)


async def test_the_log_can_be_read_since_a_time(store: StateStore, name: str) -> None:
    for number in range(5):
        line = entry(name, f"a-{number}", time=NOW + timedelta(seconds=number))
        await store.record(line)
    found = await store.log(name, since=NOW + timedelta(seconds=2))
    assert [e.entry_id for e in found] == ["a-4", "a-3", "a-2"]
    assert [e.entry_id for e in await store.log(name, 1, since=NOW)] == ["a-4"]


async def test_no_update_of_many_concurrent_writers_is_lost(store: StateStore, name: str) -> None:
    async def add(value: int) -> None:
        while True:
            snapshot = await store.load(name)
            kept = snapshot.state.histories.get("backlog", Window())
            more = Window((*kept.samples, sample(value, -len(kept.samples))))
            try:
                histories = {**snapshot.state.histories, "backlog": more}
                return await store.commit(snapshot, ScalingState(histories))
            except StateConflict:
                continue

    await asyncio.gather(*[add(i) for i in range(8)])
    kept = (await store.load(name)).state.histories["backlog"].samples
    assert sorted(each.value for each in kept) == list(range(8))


async def test_a_commit_does_not_conflict_with_changes_of_other_rows(
    store: StateStore, name: str
) -> None:
    first, second = await store.load(name), await store.load(name)
    await store.commit(first, ScalingState({"a": history([1])}))
    await store.commit(second, ScalingState({"b": history([2])}))
    assert set((await store.load(name)).state.histories) == {"a", "b"}


async def test_a_commit_is_atomic(store: StateStore, name: str) -> None:
    await store.commit(await store.load(name), ScalingState(), [entry(name, "a-1")])
    snapshot = await store.load(name)
    with pytest.raises(StateConflict):
        await store.commit(snapshot, FULL, [entry(name, "a-2"), entry(name, "a-1")])
    assert (await store.load(name)).state == ScalingState()
    assert [e.entry_id for e in await store.log(name)] == ["a-1"]


async def test_a_commit_without_changes_never_conflicts(store: StateStore, name: str) -> None:
    first = await store.load(name)
    await store.commit(first, FULL)
    await store.commit(first, first.state)


async def test_the_log_is_newest_first_and_limited(store: StateStore, name: str) -> None:
    for seconds in (3, 1, 2, 5, 4):
        await store.record(entry(name, f"id-{seconds}", time=ago(seconds)))
    assert [e.entry_id for e in await store.log(name, 3)] == ["id-1", "id-2", "id-3"]
    assert await store.log("plan-without-a-log") == []


async def test_within_a_second_the_higher_epoch_comes_first(store: StateStore, name: str) -> None:
    for epoch in (9, 11, 10):
        await store.record(entry(name, f"id-{epoch}", epoch=epoch))
    assert [e.epoch for e in await store.log(name)] == [11, 10, 9]


async def test_within_a_second_the_outcome_comes_before_its_decision(
    store: StateStore, name: str
) -> None:
    await store.record(entry(name, "z-confirmed", kind=EntryKind.CONFIRMED))
    await store.record(entry(name, "a-decision"))
    assert [e.entry_id for e in await store.log(name)] == ["z-confirmed", "a-decision"]


async def test_within_a_second_the_last_entry_about_an_override_comes_first(
    store: StateStore, name: str
) -> None:
    for entry_id in ("b-pause", "c-resume", "a-pause"):
        await store.record(entry(name, entry_id, kind=EntryKind.OVERRIDE))
    assert [e.entry_id for e in await store.log(name)] == ["a-pause", "c-resume", "b-pause"]


async def test_an_entry_that_is_recorded_twice_is_in_the_log_once(
    store: StateStore, name: str
) -> None:
    await store.record(entry(name))
    await store.record(entry(name))
    assert len(await store.log(name)) == 1


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


async def test_the_longest_history_is_stored_completely(store: StateStore, name: str) -> None:
    long = Window(tuple(sample(123456.5, i / 8) for i in reversed(range(SAMPLES_KEPT_MAX))))
    await store.commit(await store.load(name), ScalingState({"backlog": long}))
    assert (await store.load(name)).state.histories["backlog"] == long


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
