"""The exceptions of ingestion. The first sentence of each docstring says what happened."""

from __future__ import annotations

from shared.values.messages import TextsNotSent


class IngestionError(Exception):
    """The base of all exceptions that ingestion defines."""


class AccountingBroken(IngestionError):
    """A commit would omit a sequence number or count it twice; nothing was written."""


class RowRefused(AccountingBroken):
    """The store can never take a row of a commit; nothing was written."""


class BadEvent(IngestionError):
    """The handler cannot understand an event; it becomes a dead letter at once."""


class BadEffect(BadEvent, ValueError):
    """An effect has text that can never be stored or sent; the event becomes a dead letter."""


class MessageTooLarge(BadEffect):
    """A message of an effect is larger than the queue takes; the event becomes a dead letter."""


class BadDelivery(IngestionError):
    """The Functions host delivered a batch without the metadata that accounting for it needs."""


class BreakerOpen(IngestionError):
    """The circuit breaker is open, so the partition is held; no event is at fault."""


class OutOfTime(IngestionError):
    """A batch has used up its time. What was handled is committed; the rest is read again."""


class StreamRecreated(IngestionError):
    """The hub was deleted and created again; its numbers started over. An operator must decide."""


class Fenced(IngestionError):
    """Another processor owns the partition under a higher epoch; stop, and write nothing more."""


class RowChanged(IngestionError):
    """A row changed, appeared or disappeared since it was read; nothing was written."""


class StoreUnavailable(IngestionError):
    """A call to a store failed or its reply was lost; it may have taken effect."""


class RowUnreadable(IngestionError):
    """A row of another version or of a person cannot be read; an operator must decide."""


class HubUnavailable(IngestionError):
    """The hub cannot be read now. Which events it has is unknown, so nothing counts as a gap."""


class HubMissing(HubUnavailable):
    """The hub, or the consumer group, does not exist. It was deleted, or its name is wrong."""


class HubSilent(HubUnavailable):
    """The hub delivered nothing and reported no error for too long; give the partition up."""


class TransientFailure(IngestionError):
    """Handling an event failed for a reason that may pass, so the event is retried."""


class HandlerTimedOut(TransientFailure):
    """A call of the handler took too long. It is not retried in the same batch."""


class DependencyDown(IngestionError):
    """A service that the handler depends on is down; no event is at fault."""


class SentInPart(TextsNotSent, DependencyDown):
    """Only some of the messages are known to be sent."""


class SendingFailed(IngestionError):
    """Some messages may not have been sent; send all of them again, under the same ids."""


class NotFound(IngestionError):
    """The requested item does not exist, or no longer exists."""


NO_LETTER = (
    "there is no dead letter with this sequence number; `dead-letters list` shows those there are"
)
