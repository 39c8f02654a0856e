"""What can go wrong, named. The first line of each docstring says what it means for the caller."""

from __future__ import annotations


class IngestionError(Exception):
    """Something that ingestion itself can name."""


class AccountingBroken(IngestionError):
    """A plan that would leave a sequence number out, or count it twice; nothing was written."""


class BadEvent(IngestionError):
    """An event that nobody can make sense of, however often it is tried; a dead letter."""


class BadDelivery(IngestionError):
    """The host handed over a batch without what is needed of it; nothing can be accounted for."""


class BreakerOpen(IngestionError):
    """The circuit breaker lets nothing through; the partition is held, no event is to blame."""


class OutOfTime(IngestionError):
    """A batch has taken as long as it may: what is handled is committed, the rest comes again."""


class AnnouncementFailed(IngestionError):
    """Nobody was told of an opening; another instance tries again after a while."""


class StreamRecreated(IngestionError):
    """The hub counts from the start again under an old name; a person must say what to do."""


class Fenced(IngestionError):
    """Somebody owns the partition under a higher epoch: stop, and write nothing more."""


class ClaimLost(IngestionError):
    """Somebody else wrote the partition's ownership first; look again in the next cycle."""


class StoreUnavailable(IngestionError):
    """A call to a store failed, or its reply was lost: whether it took effect is not known."""


class RowUnreadable(IngestionError):
    """A row cannot be read, as another version or a person wrote it; a person must decide."""


class CommitRefused(IngestionError):
    """The checkpoint changed since it was read, nothing was written; read again, survey again."""


class HubUnavailable(IngestionError):
    """The hub cannot be read right now; what it has is not known, so nothing is a gap yet."""


class HubSilent(HubUnavailable):
    """The hub delivered nothing and reported nothing for too long; give the partition up."""


class TransientFailure(IngestionError):
    """Handling an event failed in a way that may pass; tried again, and poison only in the end."""


class DependencyDown(IngestionError):
    """What events are handled with does not work; hold the partition, no event is to blame."""


class BreakerChanged(IngestionError):
    """Somebody else changed the breaker's row since it was read; read it again."""


class SendingFailed(IngestionError):
    """Not everything was sent, and what was is not known; send again under the same ids."""


class NotFound(IngestionError):
    """What was asked for is not there, or not any more."""
