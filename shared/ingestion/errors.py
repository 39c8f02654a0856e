"""The exceptions of ingestion. The first sentence of each docstring says what happened.

Some errors hold the partition: its checkpoint does not move, so that no event is lost, and its
events are delivered again.
"""

from __future__ import annotations

from shared.values.messages import TextsNotSent


class IngestionError(Exception):
    """The base of all exceptions that ingestion defines."""


class AccountingBroken(IngestionError):
    """A commit would omit a sequence number or count it twice; nothing was written."""


class RowRefused(AccountingBroken):
    """The store can never take a row of a commit; nothing was written."""


class BadEvent(IngestionError):
    """The handler cannot understand an event, so retries are useless; the event becomes a dead
    letter.
    """


class BadEffect(BadEvent, ValueError):
    """An effect of the handler has text that can never be stored or sent; the event becomes a dead
    letter."""


class MessageTooLarge(BadEffect):
    """A message of an effect is larger than the queue takes; the event becomes a dead letter."""


class BadDelivery(IngestionError):
    """The Functions host delivered a batch without the metadata that ingestion needs. Its events
    cannot be accounted for, so the partition is held."""


class BreakerOpen(IngestionError):
    """The circuit breaker is open, so the partition is held; no event is at fault."""


class OutOfTime(IngestionError):
    """A batch has used up its time. The events handled so far are committed; the others are read
    again.
    """


class StreamRecreated(IngestionError):
    """The hub was deleted and created again under the same name, so its sequence numbers started
    over. An operator must decide how to continue.
    """


class Fenced(IngestionError):
    """Another processor owns the partition under a higher epoch; stop, and write nothing more."""


class RowChanged(IngestionError):
    """A row changed, appeared or disappeared since it was read; nothing was written. Read it
    again."""


class StoreUnavailable(IngestionError):
    """A call to a store failed, or its reply was lost; it is unknown whether the call took
    effect."""


class RowUnreadable(IngestionError):
    """A row cannot be read because another version of the app or a person wrote it; an operator
    must decide what to do."""


class CommitRefused(IngestionError):
    """The checkpoint has changed since it was read; nothing was written. Read it again."""


class HubUnavailable(IngestionError):
    """The hub cannot be read right now. It is unknown which events it has, so nothing counts as a
    gap yet."""


class HubMissing(HubUnavailable):
    """The hub, or the consumer group, does not exist. It was deleted, or its name is wrong."""


class HubSilent(HubUnavailable):
    """The hub delivered nothing and reported no error for too long; give the partition up."""


class TransientFailure(IngestionError):
    """Handling an event failed for a reason that may pass. The event is retried. If all attempts
    fail, it is dead-lettered once calls for other events succeed."""


class HandlerTimedOut(TransientFailure):
    """A call of the handler took too long. It is not retried in the same batch, because that would
    take as long again."""


class DependencyDown(IngestionError):
    """A service that the handler depends on is down, so the partition is held; no event is at
    fault."""


class SentInPart(TextsNotSent, DependencyDown):
    """Only some of the messages are known to be sent."""


class SendingFailed(IngestionError):
    """Some messages may not have been sent; send all of them again, under the same ids."""


class NotFound(IngestionError):
    """The requested item does not exist, or no longer exists."""
