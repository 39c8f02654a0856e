"""Redrives dead letters through the pipeline, forwards them to a queue, or deletes them. Each is
processed separately. If two callers process the same one, only one removes it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC

from shared.ingestion.dead_letters.find import event_of
from shared.ingestion.errors import (
    AccountingBroken,
    BadEvent,
    NotFound,
    RowChanged,
    SendingFailed,
    StoreUnavailable,
)
from shared.ingestion.events.outbox import OutboxLeases, send_messages
from shared.ingestion.failure_cause import classify, is_worth_retrying
from shared.ingestion.model import Effect, Stream
from shared.ingestion.ports import Handler, HubReader, SendMessages
from shared.ingestion.store.events import EventStore, StoredDeadLetter
from shared.values.concurrency import Retrying
from shared.values.messages import Message, MessageSender, MessagingError
from shared.values.redaction import redacting_call
from shared.values.text import told

LOST_REPLIES_MAX = 5


@dataclass(slots=True)
class DeadLetterResult:
    done: list[StoredDeadLetter] = field(default_factory=list)
    gone: list[StoredDeadLetter] = field(default_factory=list)
    """The dead letters that another caller removed first."""

    failed: list[tuple[StoredDeadLetter, str]] = field(default_factory=list)
    """The dead letters that stay in the store, each with the reason."""

    def add(self, other: DeadLetterResult) -> None:
        self.done += other.done
        self.gone += other.gone
        self.failed += other.failed


@dataclass(frozen=True, slots=True)
class Redriver:
    """Handles the events of dead letters again. Without ``send``, the resulting messages stay in
    the outbox."""

    store: EventStore
    hub: HubReader
    handler_of: Callable[[Stream], Handler]
    retry: Retrying
    send: SendMessages | None = None

    async def redrive(self, letters: Sequence[StoredDeadLetter]) -> DeadLetterResult:
        """Replace each dead letter by its event's effect. Raises what holds a partition."""
        outcome = DeadLetterResult()
        for stored in letters:
            await self._one(stored, outcome)
        if self.send is not None:
            await self._send(self.send, outcome.done)
        return outcome

    async def _send(self, send: SendMessages, redriven: Sequence[StoredDeadLetter]) -> None:
        """Send the messages of these events. No other process does."""
        for stream in {stored.stream for stored in redriven}:
            numbers = [stored.letter.sequence for stored in redriven if stored.stream == stream]
            leases = OutboxLeases(dict.fromkeys(numbers, 0))
            await send_messages(stream, self.store, send, leases)

    async def _one(self, stored: StoredDeadLetter, outcome: DeadLetterResult) -> None:
        try:
            effect = await self._handle(stored)
            applied = await _apply(self.store, stored, effect)
        except (NotFound, AccountingBroken) as error:
            outcome.failed.append((stored, str(error)))
        except Exception as error:
            if classify(error).holds_partition:
                raise
            outcome.failed.append((stored, told(error)))
        else:
            (outcome.done if applied else outcome.gone).append(stored)

    async def _handle(self, stored: StoredDeadLetter) -> Effect:
        event = await event_of(stored, self.hub)
        if event.unreadable:
            raise BadEvent(event.unreadable)
        handle = self.handler_of(stored.stream)
        return await self.retry(lambda: handle(event), is_worth_retrying)


@redacting_call
async def forward(
    store: EventStore,
    hub: HubReader,
    queue: MessageSender,
    letters: Sequence[StoredDeadLetter],
) -> DeadLetterResult:
    """Send dead letters to a queue for operators or another app, then remove those that it took.
    After a crash in between, they are sent again, under the same ids. Raises HubUnavailable, and
    SendingFailed: any may have been sent."""
    outcome, ready = DeadLetterResult(), list[StoredDeadLetter]()
    for stored in letters:
        try:
            event = await event_of(stored, hub)
        except NotFound as error:
            outcome.failed.append((stored, str(error)))
        else:
            ready.append(replace(stored, letter=replace(stored.letter, body=event.body)))
    try:
        refusals = (await queue.send([to_message(stored) for stored in ready])).refused
    except MessagingError as error:
        raise SendingFailed(f"{type(error).__name__}: {error}") from error
    refused = {refusal.position: refusal.reason for refusal in refusals}
    outcome.failed += [(ready[place], reason) for place, reason in refused.items()]
    sent = [stored for place, stored in enumerate(ready) if place not in refused]
    outcome.add(await purge(store, sent))
    return outcome


def id_of(stored: StoredDeadLetter) -> str:
    """The same ID for each attempt to send the dead letter, and another one for each other dead
    letter, also of a hub that was recreated. It has at most 128 characters, so it hashes names."""
    stream, letter = stored.stream, stored.letter
    identity = f"{stream.key}|{letter.sequence}|{letter.enqueued_at.astimezone(UTC).isoformat()}"
    digest = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
    return f"{stream.hub[:50]}:{stream.partition_id[:10]}:{letter.sequence}:{digest}"


def to_message(stored: StoredDeadLetter) -> Message:
    """A message with the event's body, and with its origin and its failure as properties."""
    stream, letter = stored.stream, stored.letter
    return Message(
        letter.body,
        message_id=id_of(stored),
        subject="dead-letter",
        application_properties={
            "namespace": stream.namespace,
            "hub": stream.hub,
            "consumer_group": stream.consumer_group,
            "partition_id": stream.partition_id,
            "sequence": letter.sequence,
            "enqueued_at": letter.enqueued_at,
            "failed_at": letter.failed_at,
            "partition_key": letter.partition_key or "",
            "kind": str(letter.kind),
            "error": letter.error,
        },
    )


async def purge(store: EventStore, letters: Sequence[StoredDeadLetter]) -> DeadLetterResult:
    outcome = DeadLetterResult()
    for stored in letters:
        applied = await _apply(store, stored, None)
        (outcome.done if applied else outcome.gone).append(stored)
    return outcome


async def _apply(store: EventStore, stored: StoredDeadLetter, effect: Effect | None) -> bool:
    """Redrive with the effect, or remove if it is None; False if another caller was first. After a
    lost reply, a row that is gone counts as removed by this call."""
    lost = False
    for _ in range(LOST_REPLIES_MAX):
        try:
            if effect is None:
                await store.remove(stored)
            else:
                await store.redrive(stored, effect)
        except RowChanged:
            return lost
        except StoreUnavailable:
            lost = True
        else:
            return True
    raise StoreUnavailable(
        f"{stored.stream.key}: {LOST_REPLIES_MAX} replies of the store were lost in a row"
    )
