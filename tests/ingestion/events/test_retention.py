"""Old effects are removed in time and not too early, and only below the checkpoint."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.twins.ingestion import MemoryIngestionStore
from shared.ingestion.errors import StoreUnavailable
from shared.ingestion.events import retention
from shared.ingestion.events.retention import MARKS_KEPT, Cleanup, EffectRetention, plan_cleanup
from shared.ingestion.model import Checkpoint, Commit, Effect, Mark, Stream
from tests.builders import NOW

STREAM = Stream("ns", "hub", "$Default", "0")
KEEP = timedelta(days=10)


def ago(days: float, sequence: int) -> Mark:
    return Mark(NOW - timedelta(days=days), sequence)


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([], Cleanup(Mark(NOW, 50))),
        ([ago(0.9, 40)], Cleanup()),
        ([ago(1, 40)], Cleanup(Mark(NOW, 50))),
        ([ago(9.9, 10), ago(0.5, 40)], Cleanup()),
        ([ago(10, 10), ago(0.5, 40)], Cleanup(None, 10, (ago(10, 10),))),
        (
            [ago(12, 5), ago(11, 10), ago(9, 20), ago(0, 49)],
            Cleanup(None, 10, (ago(12, 5), ago(11, 10))),
        ),
        ([ago(11, 70), ago(0, 80)], Cleanup(None, 50, (ago(11, 70),))),
    ],
)
def test_expired_marks_determine_which_effects_are_removed(
    marks: list[Mark], expected: Cleanup
) -> None:
    assert plan_cleanup(marks, 50, NOW, KEEP) == expected


@given(st.lists(st.floats(0.01, 3), min_size=1, max_size=60), st.integers(1, 30))
def test_effects_are_removed_neither_too_early_nor_too_late(
    pauses: list[float], keep_days: int
) -> None:
    keep, now, marks = timedelta(days=keep_days), NOW, list[Mark]()
    accounted: dict[int, datetime] = {}
    purged = -1
    for sequence, days in enumerate(pauses):
        now += timedelta(days=days)
        accounted[sequence] = now
        what = plan_cleanup(marks, sequence, now, keep)
        marks = [mark for mark in marks if mark not in what.expired]
        marks += [what.mark] if what.mark else []
        if what.purge_to is not None:
            assert all(now - accounted[n] >= keep for n in range(what.purge_to + 1))
            purged = max(purged, what.purge_to)
        late = keep + keep / MARKS_KEPT + timedelta(days=3 * 2)
        assert all(now - accounted[n] < late for n in accounted if n > purged)
        assert 1 <= len(marks) <= MARKS_KEPT + 1


class Rig:
    """A stream of a thousand effects and their retention, with one clock for the store and the
    process."""

    def __init__(self) -> None:
        self.now = NOW
        self.store = MemoryIngestionStore(lambda: self.now, rows_max=10_000)
        self.effect_retention = EffectRetention(self.store, KEEP, self.elapsed)

    def elapsed(self) -> float:
        return (self.now - NOW).total_seconds()

    def wait(self, **time: float) -> None:
        self.now += timedelta(**time)

    async def commit(self, first: int, last: int) -> None:
        saved = await self.store.load(STREAM)
        after = Checkpoint(0, last, "", self.now, txid=f"tx{last}")
        made = tuple([Effect(n, "v") for n in range(first, last + 1)])
        await self.store.commit(STREAM, saved, Commit(saved.checkpoint, after, made))

    @property
    def kept(self) -> list[int]:
        return sorted(self.store.rows[STREAM].effects)


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    await rig.commit(0, 999)
    assert await rig.effect_retention.clean_up() == 0
    return rig


async def test_old_effects_are_removed_and_the_checkpoint_stays(rig: Rig) -> None:
    rig.wait(days=9)
    await rig.commit(1000, 1009)
    assert await rig.effect_retention.clean_up() == 0
    rig.wait(days=1)
    assert await rig.effect_retention.clean_up() == 1000
    assert rig.kept == list(range(1000, 1010))
    checkpoint = rig.store.rows[STREAM].checkpoint
    assert checkpoint is not None
    assert checkpoint.sequence == 1009
    assert len(await rig.store.marks(STREAM)) == 2


async def test_the_retention_runs_once_an_hour(rig: Rig) -> None:
    rig.wait(days=20)
    assert await rig.effect_retention.clean_up() == 1000
    await rig.commit(1000, 1000)
    rig.store.rows[STREAM].marks[NOW] = Mark(NOW, 1000)
    for minutes, removed in ((59, 0), (1, 1)):
        rig.wait(minutes=minutes)
        assert await rig.effect_retention.clean_up() == removed


async def test_without_a_retention_time_no_mark_is_written() -> None:
    rig = Rig()
    rig.effect_retention.keep = None
    await rig.commit(0, 9)
    assert await rig.effect_retention.clean_up() == 0
    assert await rig.store.marks(STREAM) == []


async def test_many_effects_are_removed_in_several_calls(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call has a time limit; the next one follows soon and continues."""
    purge = rig.store.purge_effects

    async def slow(stream: Stream, up_to: int, limit: int) -> int:
        rig.wait(seconds=retention.SECONDS_MAX / 4)
        return await purge(stream, up_to, limit)

    async def broken(stream: Stream, up_to: int, limit: int) -> int:
        raise StoreUnavailable("gone")

    rig.wait(days=20)
    turns = []
    for call in (broken, slow, slow, slow):
        monkeypatch.setattr(rig.store, "purge_effects", call)
        turns.append(await rig.effect_retention.clean_up())
        rig.wait(seconds=retention.AGAIN_SECONDS)
    assert (turns, rig.kept) == ([0, 400, 400, 200], []), "an unreachable store is tried again soon"
