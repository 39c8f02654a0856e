"""Sends dead-lettered events to a Service Bus queue, with message ids made from the events."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC

from shared.ingestion.errors import SendingFailed
from shared.ingestion.store.events import StoredDeadLetter
from shared.values.messages import Message, MessageSender, MessagingError
from shared.values.redaction import redacting_call


@redacting_call
async def send_dead_letters(
    sender: MessageSender, letters: Sequence[StoredDeadLetter]
) -> Mapping[int, str]:
    """See SendDeadLetters. A queue with duplicate detection accepts each event once within its
    window."""
    try:
        result = await sender.send([to_message(stored) for stored in letters])
    except MessagingError as error:
        raise SendingFailed(f"{type(error).__name__}: {error}") from error
    return {refusal.position: refusal.reason for refusal in result.refused}


def id_of(stored: StoredDeadLetter) -> str:
    """The same ID for each attempt to send the dead letter, and another one for each other dead
    letter, also of a hub that was deleted and created again.

    The hash covers the whole names, because an ID has at most 128 characters.
    """
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
