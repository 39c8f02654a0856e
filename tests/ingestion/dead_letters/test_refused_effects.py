"""A commit that the database refuses: the one effect at fault becomes a dead letter."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from sqlalchemy import CheckConstraint, Column, Connection, Integer, MetaData, Table, insert, select
from sqlalchemy.exc import IntegrityError

from local.twins.event_hub import MemoryHubReader
from shared.ingestion.dead_letters.redrive import Redriver
from shared.ingestion.errors import BadEffect, MessageTooLarge, StoreUnavailable
from shared.ingestion.events.process_batch import process_batch
from shared.ingestion.model import Effect, Event, FailureKind, OutboxMessage, Stream, split
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.sql import SqlRows
from shared.ingestion.store.sql_engine import Sql
from shared.ingestion.store.sql_schema import metadata
from tests.builders import NOW, thrice
from tests.ingestion.flows import STREAM, consumer

own = MetaData()
readings = Table(
    "Reading",
    own,
    Column("number", Integer, CheckConstraint('"number" >= 0'), primary_key=True),
)


class Rig:
    """A handler whose effects are numbers, written to a table that refuses negative ones."""

    def __init__(self) -> None:
        self.sql = Sql("sqlite://", metadata, own)
        self.error: Exception | None = None
        self.commits = 0
        self.store = EventStore(SqlRows(self.sql), self.write)
        self.consumer = consumer(self.store, MemoryHubReader(), self.handle)
        self.next = 0

    async def handle(self, event: Event) -> Effect:
        if event.body == b"quiet":
            return Effect(event.sequence)
        return Effect(event.sequence, event.body.decode())

    def write(self, connection: Connection, _stream: Stream, effects: Sequence[Effect]) -> None:
        self.commits += 1
        if self.error is not None:
            raise self.error
        rows = [{"number": json.loads(each.value)} for each in effects if each.value is not None]
        if rows:
            connection.execute(insert(readings), rows)

    async def deliver(self, *bodies: int | str) -> None:
        """Deliver a batch, and again if it is held. Only an event with an outcome is left out."""
        batch = [
            Event(n, str(n), NOW, str(body).encode(), f"key {n}")
            for n, body in enumerate(bodies, self.next)
        ]
        await process_batch(batch, self.consumer)
        self.next += len(bodies)

    async def dead(self) -> list[int]:
        return [each.letter.sequence for each in await self.store.dead_letters(STREAM, None, 999)]

    async def kept(self) -> list[int]:
        numbers = select(readings.c.number).order_by("number")
        return [*await self.sql.read(lambda c: c.execute(numbers).scalars().all())]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    await made.store.close()


@pytest.mark.parametrize(
    ("bodies", "dead"),
    [
        ([1, 2, 3, -4, 5, 6, 7], [3]),
        ([-1, 2, 3, 4], [0]),
        ([-1, -2, 3, 4], [0, 1]),
        ([1, 2, 3, -4], [3]),
        ([1, -2, 3, -4, 5, -6], [1, 3, 5]),
        ([1, 1, 2], [1]),
        ([1, "{", 2], [1]),
        ([*range(1, 60), -60, *range(61, 120)], [59]),
        (["quiet", -2, "quiet", 4], [1]),
        ([-1], [0]),
    ],
)
async def test_the_effect_that_breaks_a_constraint_becomes_a_dead_letter(
    rig: Rig, bodies: list[int | str], dead: list[int]
) -> None:
    await rig.deliver(*bodies)
    assert await rig.dead() == dead
    good = [n for place, n in enumerate(bodies) if place not in dead and n != "quiet"]
    assert await rig.kept() == good
    assert rig.commits <= 4 + 16 * len(dead), "the commit is halved"
    for stored in await rig.store.dead_letters(STREAM, None, 9):
        assert stored.letter.kind is FailureKind.POISON
        assert "the effect was refused" in stored.letter.error


@pytest.mark.parametrize(
    "bodies",
    [[-1, -2], [-1, -2, -3, -4], [-n for n in range(1, 100)], ["quiet", -1, "quiet", -2, "quiet"]],
)
async def test_a_table_that_refuses_every_effect_is_an_outage(
    rig: Rig, bodies: list[int | str], caplog: pytest.LogCaptureFixture
) -> None:
    await rig.deliver(7)
    for _ in range(2):
        with pytest.raises(IntegrityError):
            await rig.deliver(*bodies)
    assert "were refused, each alone, so no single event is at fault" in caplog.text
    assert (await rig.dead(), await rig.kept()) == ([], [7])
    assert rig.commits < 50
    await rig.deliver(*[100 - n if isinstance(n, int) else n for n in bodies])
    assert await rig.dead() == []


async def test_at_most_one_of_many_batches_of_one_event_is_blamed(rig: Rig) -> None:
    await rig.deliver(-1)
    for _ in range(3):
        with pytest.raises(IntegrityError):
            await rig.deliver(-2)
    assert await rig.dead() == [0]
    await rig.deliver(2)
    await rig.deliver(-3)
    assert (await rig.dead(), await rig.kept()) == ([0, 2], [2])


@pytest.mark.parametrize("error", [ConnectionError("refused"), StoreUnavailable("down")])
async def test_an_outage_while_tables_are_written_divides_nothing(
    rig: Rig, error: Exception
) -> None:
    rig.error = error
    with pytest.raises(type(error)):
        await rig.deliver(*range(1, 50))
    assert (rig.commits <= 5, await rig.dead()) == (True, [])


async def test_a_redriven_effect_that_is_refused_again_stays_a_dead_letter(rig: Rig) -> None:
    await rig.deliver(1, -2, 3)
    letters = await rig.store.dead_letters(STREAM, None, 9)
    redriver = Redriver(rig.store, MemoryHubReader(), lambda _: rig.handle, thrice)
    outcome = await redriver.redrive(letters)
    assert ([each.letter.sequence for each, _ in outcome.failed], await rig.dead()) == ([1], [1])


# --- messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "error", "reason"),
    [
        ("x" * 65_536, None, ""),
        ("x" * 65_537, MessageTooLarge, "has 65537 bytes, but the queue takes at most 65536"),
        ("é" * 32_769, MessageTooLarge, "has 65538 bytes"),
        ("a\x01b", BadEffect, "holds the character U+0001"),
        ("a\ufffeb", BadEffect, "holds the character U+FFFE"),
        ("a\tb\r\nc", None, ""),
        (json.dumps(["x" * 60_000] * 3), None, ""),
        (json.dumps([1, "x" * 70_000]), MessageTooLarge, "has 70002 bytes"),
        (json.dumps(["é" * 20_000], ensure_ascii=False), MessageTooLarge, "has 120002 bytes"),
        ('["a\ufffeb"]', None, ""),
        ("[no JSON", None, ""),
        ("[" * 60_000, None, ""),
        ("a\ud800b", BadEffect, "cannot be stored"),
    ],
)
async def test_an_effect_with_a_message_that_can_never_be_sent_is_refused(
    body: str, error: type[Exception] | None, reason: str
) -> None:
    if error is None:
        assert Effect(1, None, (OutboxMessage("m1", body),)).messages
        assert all(len(text.encode()) <= 65_536 for text in split(body))
        return
    with pytest.raises(error, match=re.escape(reason)):
        Effect(1, None, (OutboxMessage("m1", body),))


async def test_an_event_whose_message_is_too_large_becomes_a_dead_letter_at_once(rig: Rig) -> None:
    calls: list[int] = []

    async def handle(event: Event) -> Effect:
        calls.append(event.sequence)
        body = "x" * 70_000 if event.sequence == 1 else "x"
        return Effect(event.sequence, None, (OutboxMessage(f"m{event.sequence}", body),))

    rig.consumer = replace(rig.consumer, handle=handle)
    await rig.deliver(0, 1, 2)
    (stored,) = await rig.store.dead_letters(STREAM, None, 9)
    assert (stored.letter.sequence, stored.letter.kind) == (1, FailureKind.TOO_LARGE)
    assert calls == [0, 1, 2]
    waiting = await rig.store.outbox(STREAM, 9)
    assert [each.message.message_id for each in waiting] == ["m0", "m2"]
