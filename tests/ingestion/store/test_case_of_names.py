"""A stream stays the same whatever the case of the names in the settings, in each store."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from local.twins.event_hub import MemoryHubReader
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.process_batch import Consumer, process_batch
from shared.ingestion.events.stored_streams import StoredStreams
from shared.ingestion.model import Effect, Event, OutboxMessage, Stream, message_id
from shared.ingestion.store.events import EventStore
from shared.values.concurrency import task_runner
from tests.builders import thrice
from tests.ingestion.commits import commit, event, new_stream

ALL = 1000


class Instance:
    """A process that reads one partition. ``earlier`` is one of a version that compared names
    exactly."""

    def __init__(self, store: EventStore, names: Stream, *, earlier: bool = False) -> None:
        self.store, self.names, self.earlier = store, names, earlier
        self.streams = StoredStreams(store)
        self.consumers: dict[Stream, Consumer] = {}

    async def reads(self, last: int) -> None:
        """The hub delivers all events up to ``last``, as to a consumer group that is new to it."""
        stream = self.names if self.earlier else await self.streams.find(self.names)
        if stream not in self.consumers:
            self.consumers[stream] = self._consumer(stream)
        await process_batch([event(n) for n in range(last + 1)], self.consumers[stream])

    def _consumer(self, stream: Stream) -> Consumer:
        async def handle(event: Event) -> Effect:
            sent = OutboxMessage(message_id(stream, event.sequence), "m")
            return Effect(event.sequence, "value", (sent,))

        txids = iter(f"{id(self)}-{n}" for n in range(ALL))
        return Consumer(
            stream,
            Writer("me"),
            self.store,
            MemoryHubReader(),
            handle,
            thrice,
            task_runner(4),
            lambda: next(txids),
        )


async def stored(store: EventStore, hub: str) -> list[tuple[str, int]]:
    """The names and number of each message that any spelling of the hub has in its outbox."""
    return [
        (f"{stream.hub}/{stream.consumer_group}", message.sequence)
        for stream in await store.streams()
        if stream.hub.lower() == hub.lower()
        for message in await store.outbox(stream, ALL)
    ]


@pytest.mark.parametrize("change", [str.upper, str.swapcase])
async def test_an_upgrade_that_changes_the_case_processes_no_event_again(
    store: EventStore, change: type[str]
) -> None:
    names = new_stream(hub="Shop")
    new_names = Stream(*map(change, list(names.names.values())))
    old, new = Instance(store, names, earlier=True), Instance(store, new_names)
    for instance, last in ((old, 1), (new, 2), (old, 4), (new, 4), (old, 5), (new, 7)):
        await instance.reads(last)
    assert await stored(store, names.hub) == [(f"{names.hub}/$Default", n) for n in range(8)]
    (first, *_) = await store.outbox(names, ALL)
    assert first.message.message_id == f"{names.hub}:0:0"


async def test_a_new_stream_has_names_in_one_case_unless_an_earlier_version_begins_it(
    store: EventStore,
) -> None:
    """A new stream has names in one case, so that processes that start at once with different
    settings write the same rows."""
    names = new_stream(hub="Shop")
    old, new = Instance(store, names, earlier=True), Instance(store, names.in_one_case)
    assert await new.streams.find(names) == names.in_one_case
    await old.reads(1)
    await new.reads(3)
    assert await stored(store, names.hub) == [(f"{names.hub}/$Default", n) for n in range(4)]
    names = new_stream(hub="Shop")
    group = replace(names, hub=names.hub.upper(), consumer_group="$DEFAULT")
    for instance, last in ((Instance(store, names), 2), (Instance(store, group), 3)):
        await instance.reads(last)
    lower = names.hub.lower()
    assert await stored(store, names.hub) == [(f"{lower}/$Default", n) for n in range(4)]


@pytest.mark.parametrize("behind", [0, 1])
async def test_of_two_checkpoints_that_differ_by_case_the_further_one_counts(
    store: EventStore, behind: int, caplog: pytest.LogCaptureFixture
) -> None:
    lower = new_stream()
    both: Sequence[Stream] = (lower, replace(lower, hub=lower.hub.upper()))
    for stream, last in ((both[behind], 3), (both[1 - behind], 9)):
        await store.commit(stream, await store.load(stream), commit(None, last))
    streams = StoredStreams(store)
    with caplog.at_level(logging.WARNING):
        for stream in both:
            assert await streams.find(stream) == both[1 - behind]
    assert [record.getMessage().split(": ")[0] for record in caplog.records] == [
        f"[stream_superseded] {both[behind].key}"
    ]


def test_the_name_of_a_replay_keeps_its_case() -> None:
    one = replace(new_stream(), consumer_group="$Default~Trial")
    other = replace(one, consumer_group="$default~trial")
    assert one.in_one_case == one
    assert other.in_one_case.consumer_group == "$Default~trial"
