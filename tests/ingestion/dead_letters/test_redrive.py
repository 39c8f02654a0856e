"""Operations on dead letters: find, redrive, forward and purge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryIngestionStore
from shared.ingestion.dead_letters.find import (
    DeadLetterQuery,
    chunks,
    event_of,
    find,
    older_than,
    read,
)
from shared.ingestion.dead_letters.redrive import Redriver, forward, purge
from shared.ingestion.errors import (
    DependencyDown,
    NotFound,
    SendingFailed,
    TransientFailure,
)
from shared.ingestion.events.accounting import dead_letter
from shared.ingestion.model import (
    Checkpoint,
    Commit,
    Effect,
    Event,
    FailureKind,
    OutboxMessage,
    Stream,
    message_id,
)
from shared.ingestion.store.events import StoredDeadLetter
from shared.values.messages import LinkFailed, Message, Order, Refusal, Result
from tests.builders import NOW, thrice

FIRST, SECOND = (Stream("ns", "hub", "$Default", partition) for partition in "01")


def event(sequence: int, body: bytes = b"x") -> Event:
    return Event(sequence, f"@{sequence}", NOW - timedelta(hours=1), body, "key")


async def store_with(
    sequences: Sequence[int], stream: Stream = FIRST, store: MemoryIngestionStore | None = None
) -> MemoryIngestionStore:
    """A day of failures, one per hour. Every third one had used up its attempts."""
    store = store or MemoryIngestionStore(lambda: NOW)
    letters = tuple(
        dead_letter(
            event(n),
            FailureKind.EXHAUSTED if n % 3 == 0 else FailureKind.POISON,
            f"ValueError: {n}",
            NOW - timedelta(hours=n),
        )
        for n in sequences
    )
    after = Checkpoint(0, max(sequences), "@", NOW)
    saved = await store.load(stream)
    await store.commit(stream, saved, Commit(None, after, dead_letters=letters))
    return store


def redriver(
    store: MemoryIngestionStore,
    handle: Callable[[Event], Effect],
    hub: MemoryHubReader | None = None,
) -> Redriver:
    async def handler(event: Event) -> Effect:
        return handle(event)

    return Redriver(store, hub or MemoryHubReader(), lambda _stream: handler, thrice)


def to_message(event: Event) -> Effect:
    return Effect(event.sequence, None, (OutboxMessage(message_id(FIRST, event.sequence), "m"),))


def numbers(letters: Sequence[StoredDeadLetter]) -> list[int]:
    return [stored.letter.sequence for stored in letters]


async def every(store: MemoryIngestionStore, **query: Any) -> Sequence[StoredDeadLetter]:
    return await find(store, DeadLetterQuery(**query), 400)


async def left(store: MemoryIngestionStore) -> list[int]:
    return numbers(await every(store))


# --- find -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 2]),
        ({"partition_id": "1"}, [2]),
        ({"hub": "other"}, []),
        ({"hub": "HUB", "partition_id": "1"}, [2]),
        ({"consumer_group": "$DEFAULT", "partition_id": "1"}, [2]),
        ({"sequence": 2}, [2, 2]),
        ({"kind": FailureKind.EXHAUSTED}, [3, 6]),
        ({"failed_before": NOW - timedelta(hours=4)}, [5, 6]),
    ],
)
async def test_dead_letters_are_found_by_hub_group_partition_number_kind_and_age(
    query: dict[str, Any], found: list[int]
) -> None:
    store = await store_with(range(1, 7))
    await store_with([2], SECOND, store)
    assert numbers(await every(store, **query)) == found


async def test_dead_letters_are_listed_page_by_page() -> None:
    store = await store_with(range(250), store=MemoryIngestionStore(lambda: NOW, rows_max=300))
    assert numbers(await find(store, DeadLetterQuery(), 240)) == list(range(240))
    assert numbers(await find(store, DeadLetterQuery(), 240, after=239)) == list(range(240, 250))


async def test_each_dead_letter_is_visited_once_although_some_are_removed_meanwhile() -> None:
    store = await store_with(range(10))
    met: list[int] = []
    async for chunk in chunks(store, DeadLetterQuery(), 3):
        met += numbers(chunk)
        await purge(store, chunk[:2])
    assert met == list(range(10))


async def test_reading_a_dead_letter_returns_its_event_and_an_ambiguous_number_is_refused() -> None:
    store, hub = await store_with([1, 2]), MemoryHubReader()
    stored, original = await read(store, hub, DeadLetterQuery(sequence=2))
    assert stored.letter.error == "ValueError: 2"
    assert (original.body, original.partition_key) == (b"x", "key")
    with pytest.raises(NotFound, match="no dead letter"):
        await read(store, hub, DeadLetterQuery(sequence=3))
    await store_with([2], replace(FIRST, hub="HUB"), store)  # the same hub, read twice
    assert (await read(store, hub, DeadLetterQuery("Hub", "$default", "0", 2)))[1] == original
    await store_with([2], SECOND, store)
    with pytest.raises(NotFound, match="several dead letters have this number"):
        await read(store, hub, DeadLetterQuery(sequence=2))


async def test_a_body_too_large_to_keep_is_read_from_the_hub_while_the_hub_has_it() -> None:
    store, hub = await store_with([1]), MemoryHubReader()
    hub.add(FIRST, event(0), event(1, b"large"))
    (stored,) = await every(store)
    without = replace(stored, letter=replace(stored.letter, body=None))
    assert (await event_of(without, hub)).body == b"large"
    hub.forget(FIRST, 2)
    with pytest.raises(NotFound, match="the hub no longer has it"):
        await event_of(without, hub)


# --- redrive ----------------------------------------------------------------------------------


async def test_a_redriven_dead_letter_is_replaced_by_the_effect_and_its_messages() -> None:
    store = await store_with([1, 2])
    outcome = await redriver(store, to_message).redrive(await every(store, sequence=1))
    assert (numbers(outcome.done), await left(store)) == ([1], [2])
    assert [s.message.message_id for s in await store.outbox(FIRST, 9)] == ["hub:0:1"]


def failing(error: Exception) -> Callable[[Event], Effect]:
    def handle(event: Event) -> Effect:
        if event.sequence == 2:
            raise error
        return to_message(event)

    return handle


async def test_a_dead_letter_that_fails_again_stays_and_the_others_are_redriven() -> None:
    store = await store_with([1, 2, 4])
    again = redriver(store, failing(TransientFailure("not yet")))
    outcome = await again.redrive(await every(store))
    assert (numbers(outcome.done), await left(store)) == ([1, 4], [2])
    told = [(s.letter.sequence, why) for s, why in outcome.failed]
    assert told == [(2, "not yet")]


@pytest.mark.parametrize("error", [DependencyDown("database"), ConnectionError("no route")])
async def test_an_outage_stops_a_redrive_and_changes_nothing(error: Exception) -> None:
    store = await store_with([2, 3])
    with pytest.raises(type(error)):
        await redriver(store, failing(error)).redrive(await every(store))
    assert await left(store) == [2, 3]


# --- forward to a queue -----------------------------------------------------------------------


class Queue:
    """Detects duplicates. May refuse a message, or fail after it has accepted all messages."""

    def __init__(self, *, fails: bool = False, refused: Sequence[int] = ()) -> None:
        self.fails, self.refused = fails, refused
        self.taken: dict[str, bytes | str | None] = {}

    async def send(self, messages: Sequence[Message], order: Order = Order.KEPT) -> Result:
        assert order is Order.KEPT
        for place, message in enumerate(messages):
            assert message.message_id is not None
            if place not in self.refused:
                self.taken.setdefault(message.message_id.rpartition(":")[0], message.body)
        if self.fails:
            raise LinkFailed("no reply")
        refused = [Refusal(place, None, "too large") for place in self.refused]
        return Result(len(messages) - len(refused), 1, 1, 0, 0, tuple(refused))


async def test_a_dead_letter_that_the_queue_refuses_stays_and_does_not_hold_back_others() -> None:
    store, queue = await store_with([1, 2, 3, 4]), Queue(refused=[1])
    letters = (await every(store))[:3]
    outcome = await forward(store, MemoryHubReader(), queue, letters)
    assert (numbers(outcome.done), queue.taken) == ([1, 3], {"hub:0:1": b"x", "hub:0:3": b"x"})
    assert [(s.letter.sequence, why) for s, why in outcome.failed] == [(2, "too large")]
    assert await left(store) == [2, 4], "what was not sent is not removed"


async def test_dead_letters_of_a_failed_sending_stay_and_can_be_sent_again() -> None:
    store, queue = await store_with([1, 2]), Queue(fails=True)
    with pytest.raises(SendingFailed):
        await forward(store, MemoryHubReader(), queue, await every(store))
    assert await left(store) == [1, 2]
    queue.fails = False
    await forward(store, MemoryHubReader(), queue, await every(store))
    assert (sorted(queue.taken), await left(store)) == (["hub:0:1", "hub:0:2"], [])


# --- purge ------------------------------------------------------------------------------------


async def test_purging_by_age_uses_the_stores_clock() -> None:
    store = await store_with(range(1, 7))
    before = await older_than(store, timedelta(hours=4))
    outcome = await purge(store, await every(store, failed_before=before))
    assert (numbers(outcome.done), await left(store)) == ([5, 6], [1, 2, 3, 4])


async def test_purging_by_age_spares_the_first_dead_letter_if_it_is_stored_meanwhile() -> None:
    before = await older_than(MemoryIngestionStore(lambda: NOW), timedelta(0))
    assert await every(await store_with(range(1, 2)), failed_before=before) == []
