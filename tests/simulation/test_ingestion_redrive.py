"""Simulates several people who redrive and purge the same dead letters concurrently, with failing
calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import pytest

from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryIngestionStore
from shared.ingestion.dead_letters.find import DeadLetterQuery, find
from shared.ingestion.dead_letters.redrive import Redriver, purge
from shared.ingestion.errors import IngestionError, StoreUnavailable, TransientFailure
from shared.ingestion.events.accounting import dead_letter
from shared.ingestion.model import (
    Checkpoint,
    Commit,
    Effect,
    Event,
    FailureKind,
    OutboxMessage,
    message_id,
)
from shared.ingestion.store.events import StoredDeadLetter
from tests.builders import NOW
from tests.simulation.faults import failing_as, once, pausing, stream_of
from tests.simulation.scheduler import Crash, Outage, Scheduler, pause
from tests.simulation.seeds import seeds

STREAM = stream_of("0")
LETTERS = 12


@pausing("redrive", "remove", error=StoreUnavailable)
class FaultyStore(MemoryIngestionStore):
    """Counts what was redriven and removed."""

    def __init__(self) -> None:
        super().__init__(lambda: NOW)
        self.redriven: Counter[int] = Counter()
        self.removed: Counter[int] = Counter()

    async def redrive(self, stored: StoredDeadLetter, effect: Effect) -> None:
        await super().redrive(stored, effect)
        self.redriven[effect.sequence] += 1

    async def remove(self, stored: StoredDeadLetter) -> None:
        await super().remove(stored)
        self.removed[stored.letter.sequence] += 1


class World:
    """A stream of dead letters, and people who start again after each crash until no dead letter is
    left."""

    def __init__(self, seed: int, fault_rate: float) -> None:
        self.scheduler = Scheduler(seed, fault_rate)
        self.store = FaultyStore()
        asyncio.run(_fill(self.store))
        self.reported: Counter[int] = Counter()
        """What the operations reported as done."""
        self.failed: list[int] = []
        for purges in (False, False, seed % 2 == 0):
            self.start(purges)

    def start(self, purges: bool) -> None:
        def ended(_result: object, error: BaseException | None) -> None:
            assert error is None or isinstance(error, Crash | Outage), error
            if error is not None:
                self.start(purges)

        self.scheduler.start(self.person(purges), ended)

    async def person(self, purges: bool) -> None:
        while letters := await find(self.store, DeadLetterQuery(), 5):
            await pause()
            with suppress(IngestionError):
                await self._take_up(letters, purges)

    async def _take_up(self, letters: Sequence[StoredDeadLetter], purges: bool) -> None:
        if purges:
            outcome = await purge(self.store, letters[:1])
        else:
            redriver = Redriver(self.store, MemoryHubReader(), lambda _s: self._handle, once)
            outcome = await redriver.redrive(letters)
        self.failed += [stored.letter.sequence for stored, _why in outcome.failed]
        self.reported.update(stored.letter.sequence for stored in outcome.done)

    async def _handle(self, event: Event) -> Effect:
        with failing_as(TransientFailure("not yet")):
            await pause()
        message = OutboxMessage(message_id(STREAM, event.sequence), "m")
        return Effect(event.sequence, messages=(message,))


async def _fill(store: MemoryIngestionStore) -> None:
    events = [Event(n, f"@{n}", NOW, b"x") for n in range(LETTERS)]
    letters = [dead_letter(event, FailureKind.POISON, "no", NOW) for event in events]
    after = Checkpoint(0, LETTERS - 1, "@", NOW)
    commit = Commit(None, after, dead_letters=tuple(letters))
    await store.commit(STREAM, await store.load(STREAM), commit)


def check_seed(seed: int) -> None:
    world = World(seed, fault_rate=(0.0, 0.05, 0.2)[seed % 3])
    world.scheduler.run_until_idle()
    store = world.store
    processed = store.redriven + store.removed
    assert processed == Counter(range(LETTERS)), f"seed {seed}: {processed}"
    if world.scheduler.fault_rate == 0:
        assert world.reported == processed, f"seed {seed}: {world.reported}"
        assert world.failed == [], f"seed {seed}"
    sent = [stored.message.message_id for stored in asyncio.run(store.outbox(STREAM, 100))]
    assert sorted(sent) == sorted(message_id(STREAM, n) for n in store.redriven), f"seed {seed}"


@pytest.mark.parametrize("seed", seeds(30))
def test_each_dead_letter_is_redriven_or_purged_exactly_once(seed: int) -> None:
    check_seed(seed)
