"""Replaying a range of a partition, with a checkpoint of its own beside the real stream."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryIngestionStore
from shared.ingestion.errors import NotFound, StoreUnavailable
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.process_batch import Consumer, process_batch
from shared.ingestion.events.replay import ReplayRange, replay, replay_stream, without_messages
from shared.ingestion.model import Commit, Effect, Event, OutboxMessage, Stream, message_id
from shared.ingestion.store.events import StoredCheckpoint
from tests.builders import NOW
from tests.ingestion.flows import STREAM, consumer
from tests.simulation.faults import once, one_by_one

SIDE = replay_stream(STREAM, "again")


class Hub(MemoryHubReader):
    """One partition, the same for each consumer group."""

    def __init__(self) -> None:
        super().__init__(read_max=7)
        events = [Event(n, f"@{n}", NOW + timedelta(minutes=n), b"x", "k") for n in range(30)]
        for stream in (STREAM, SIDE):
            self.add(stream, *events)

    def lose(self, before: int) -> None:
        for stream in (STREAM, SIDE):
            self.forget(stream, before)


class Rig:
    """A partition that was processed once by a handler that failed on every fifth event."""

    def __init__(self) -> None:
        self.hub, self.store = Hub(), MemoryIngestionStore(lambda: NOW)
        self.wrong = self.sent_too = True
        self.sent: list[str] = []

    async def handle(self, event: Event) -> Effect:
        if self.wrong and event.sequence % 5 == 0:
            raise ValueError("misunderstood")
        message = OutboxMessage(message_id(STREAM, event.sequence), "m")
        return Effect(event.sequence, "value", (message,))

    async def send(self, messages: Sequence[OutboxMessage]) -> None:
        self.sent += [message.message_id for message in messages]

    def reader(self, stream: Stream = SIDE) -> Consumer:
        handle = self.handle if self.sent_too else without_messages(self.handle)
        return consumer(self.store, self.hub, handle, stream, Writer("me"), once, one_by_one)


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    await process_batch(tuple(rig.hub.events[STREAM]), rig.reader(STREAM))
    rig.sent_too = rig.wrong = False
    return rig


async def test_a_replay_accounts_for_the_range_and_leaves_the_stream_unchanged(rig: Rig) -> None:
    before = await rig.store.load(STREAM)
    outcome = await replay(rig.reader(), ReplayRange(first=12, last=20), None)
    assert (outcome.first, outcome.effects, outcome.dead_letters) == (12, 9, 0)
    assert sorted(rig.store.rows[SIDE].effects) == list(range(12, 21))
    assert await rig.store.load(STREAM) == before
    assert sorted(rig.store.rows[STREAM].dead_letters) == [0, 5, 10, 15, 20, 25]


@pytest.mark.parametrize(
    ("wanted", "first", "last"),
    [
        (ReplayRange(first=12, last=20), 12, 20),
        (ReplayRange(first=25), 25, 29),
        (ReplayRange(since=NOW + timedelta(minutes=26.5)), 27, 29),
    ],
)
async def test_a_replay_reads_from_a_number_or_a_time_to_a_number_or_the_newest_event(
    rig: Rig, wanted: ReplayRange, first: int, last: int
) -> None:
    outcome = await replay(rig.reader(), wanted, None)
    assert (outcome.first, outcome.last, outcome.effects) == (first, last, last - first + 1)
    assert await rig.store.outbox(SIDE, 100) == [], "it sends messages only if asked to"


async def test_a_replay_sends_messages_under_their_first_ids(rig: Rig) -> None:
    rig.sent_too = True
    await replay(rig.reader(), ReplayRange(first=28), rig.send)
    assert rig.sent == ["hub:0:28", "hub:0:29"]


async def test_a_replay_that_stops_has_sent_the_messages_of_what_it_has_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.ingestion.events.replay.READ_AT_ONCE", 4)
    rig.sent_too, broken = True, BreaksOff(lambda: NOW)
    rig.store, broken.left = broken, 2
    with pytest.raises(StoreUnavailable):
        await replay(rig.reader(), ReplayRange(first=11), rig.send)
    done = sorted(broken.rows[SIDE].effects)
    assert done
    assert rig.sent == [f"hub:0:{sequence}" for sequence in done]


class BreaksOff(MemoryIngestionStore):
    """Fails after a number of commits."""

    left = 2

    async def commit(
        self, stream: Stream, saved: StoredCheckpoint, commit: Commit
    ) -> StoredCheckpoint:
        if stream == SIDE and self.left == 0:
            raise StoreUnavailable("gone")
        self.left -= stream == SIDE
        return await super().commit(stream, saved, commit)


async def test_a_replay_of_the_same_name_continues_where_it_stopped(rig: Rig) -> None:
    broken = BreaksOff(lambda: NOW)
    rig.store, broken.left = broken, 2
    with pytest.raises(StoreUnavailable):
        await replay(rig.reader(), ReplayRange(first=3), None)
    done = len(broken.rows[SIDE].effects)
    assert 0 < done < 27
    broken.left = 1000
    outcome = await replay(rig.reader(), ReplayRange(first=3), None)
    assert (outcome.first, outcome.effects) == (3, 27 - done)
    again = await replay(rig.reader(), ReplayRange(first=3), None)
    assert again.effects == 0


async def test_events_that_the_hub_has_lost_are_a_gap_of_the_replay(rig: Rig) -> None:
    await replay(rig.reader(), ReplayRange(first=3, last=9), None)
    rig.hub.lose(before=20)
    outcome = await replay(rig.reader(), ReplayRange(), None)
    assert [(gap.first, gap.last) for gap in outcome.gaps] == [(10, 19)]
    assert outcome.checkpoint is not None
    assert outcome.checkpoint.sequence == 29


async def test_a_replay_of_a_range_without_events_is_refused(rig: Rig) -> None:
    rig.hub.lose(before=20)
    with pytest.raises(NotFound, match="the hub has no event from 3 to 9 any more"):
        await replay(rig.reader(), ReplayRange(first=3, last=9), None)
    late = await replay(rig.reader(), ReplayRange(first=3), None)
    assert late.first == 20


@pytest.mark.parametrize("name", ["", "a~b", "a|b", "-a", "a" * 51, "a b"])
def test_an_invalid_name_of_a_replay_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="use 1 to 50 letters, digits and hyphens"):
        replay_stream(STREAM, name)
