"""Take dead letters up: put them into the pipeline again, send them elsewhere, or give them up.

Each goes its way alone: one that fails again stays where it is, and the others go on. Of two who
take up the same one, the store lets one have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from shared.ingestion.concurrency import Retrying
from shared.ingestion.dead_letters.find import event_of
from shared.ingestion.dead_letters.ports import DeadLetterSender, DeadLetterStore, StoredDeadLetter
from shared.ingestion.errors import AccountingBroken, CommitRefused, NotFound, StoreUnavailable
from shared.ingestion.events.failure_cause import Outages, classify
from shared.ingestion.events.ports import Handler, HubReader
from shared.ingestion.model import Effect, Stream

LOST_REPLIES_MAX = 5


@dataclass(slots=True)
class DeadLetterResult:
    """What became of dead letters that were taken up."""

    done: list[StoredDeadLetter] = field(default_factory=list)
    gone: list[StoredDeadLetter] = field(default_factory=list)
    """Somebody else took them up first."""

    failed: list[tuple[StoredDeadLetter, str]] = field(default_factory=list)
    """They stay where they are, and why."""

    def add(self, other: DeadLetterResult) -> None:
        self.done += other.done
        self.gone += other.gone
        self.failed += other.failed


@dataclass(frozen=True, slots=True)
class Redriver:
    """Puts dead letters into the pipeline again. ``handler_of`` gives what a stream's events are
    handled with; the messages that it leads to are left in the outbox for whoever drains it."""

    store: DeadLetterStore
    hub: HubReader
    handler_of: Callable[[Stream], Handler]
    retry: Retrying
    outages: Outages = ()

    async def run(self, letters: Sequence[StoredDeadLetter]) -> DeadLetterResult:
        """Handle each, and let it become its effect. Raises what holds a partition, too: while a
        dependency is down, no dead letter says anything about itself."""
        outcome = DeadLetterResult()
        for stored in letters:
            await self._one(stored, outcome)
        return outcome

    async def _one(self, stored: StoredDeadLetter, outcome: DeadLetterResult) -> None:
        try:
            effect = await self._handle(stored)
            took = await _insist(self.store, stored, effect)
        except (NotFound, AccountingBroken) as error:
            outcome.failed.append((stored, str(error)))
        except Exception as error:
            if classify(error, self.outages).holds_partition:
                raise
            outcome.failed.append((stored, f"{type(error).__name__}: {error}"))
        else:
            (outcome.done if took else outcome.gone).append(stored)

    async def _handle(self, stored: StoredDeadLetter) -> Effect:
        event = await event_of(stored, self.hub)
        handle = self.handler_of(stored.stream)
        return await self.retry(
            lambda: handle(event), lambda error: classify(error, self.outages).is_retryable
        )


async def forward(
    store: DeadLetterStore,
    hub: HubReader,
    sender: DeadLetterSender,
    letters: Sequence[StoredDeadLetter],
) -> DeadLetterResult:
    """Send to another queue, then remove: a crash between the two sends again, under the same ids.

    Raises HubUnavailable and SendingFailed; nothing is removed then that was not sent.
    """
    outcome, ready = DeadLetterResult(), list[StoredDeadLetter]()
    for stored in letters:
        try:
            event = await event_of(stored, hub)
        except NotFound as error:
            outcome.failed.append((stored, str(error)))
        else:
            ready.append(replace(stored, letter=replace(stored.letter, body=event.body)))
    await sender.send(ready)
    outcome.add(await purge(store, ready))
    return outcome


async def purge(store: DeadLetterStore, letters: Sequence[StoredDeadLetter]) -> DeadLetterResult:
    """Give events up for good."""
    outcome = DeadLetterResult()
    for stored in letters:
        took = await _insist(store, stored, None)
        (outcome.done if took else outcome.gone).append(stored)
    return outcome


async def _insist(store: DeadLetterStore, stored: StoredDeadLetter, effect: Effect | None) -> bool:
    """Redrive with the effect, or remove; False where somebody else was first.

    After a lost reply the row tells: it is gone, or unchanged, and then the same call is safe. A
    row that went in between counts as mine, for nobody can tell whose call it was.
    """
    lost = False
    for _ in range(LOST_REPLIES_MAX):
        try:
            if effect is None:
                await store.remove(stored)
            else:
                await store.redrive(stored, effect)
        except CommitRefused:
            return lost
        except StoreUnavailable:
            lost = True
        else:
            return True
    raise StoreUnavailable(f"{stored.stream.key}: {LOST_REPLIES_MAX} replies lost in a row")
