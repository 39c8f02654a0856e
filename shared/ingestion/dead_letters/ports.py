"""What dead letters need from stores, and from the queue to which they can be sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from shared.ingestion.model import (
    DeadLetter,
    Effect,
    Stream,
)


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """A dead letter as it was read. ``version`` is its row's ETag or version number."""

    stream: Stream
    letter: DeadLetter
    version: Any


class DeadLetterStore(Protocol):
    """The dead letters of all streams. All methods raise StoreUnavailable."""

    async def streams(self) -> Sequence[Stream]:
        """See AccountReader."""
        ...

    async def dead_letters(
        self,
        stream: Stream,
        after: int | None,
        limit: int,
        failed_since: datetime | None = None,
    ) -> Sequence[StoredDeadLetter]:
        """The first ``limit`` dead letters with a number above ``after`` (None: from the start), in
        the order of their numbers. With ``failed_since``, only those that failed at that time or
        later; others are not even read.

        A row that cannot be read is returned as a dead letter of the kind ``unreadable``, whose
        error says why.
        """
        ...

    async def dead_letter(self, stream: Stream, sequence: int) -> StoredDeadLetter | None:
        """The dead letter of this number; None if there is none."""
        ...

    async def redrive(self, stored: StoredDeadLetter, effect: Effect) -> None:
        """Replace the dead letter by the effect and its messages, in one transaction.

        Raises AccountingBroken if the effect has another number or does not fit into a transaction.
        Raises CommitRefused if the row changed or is gone, so that of two concurrent redrives only
        one succeeds. A client may also repeat a request whose reply was lost; then CommitRefused is
        raised although the effect was written.
        """
        ...

    async def remove(self, stored: StoredDeadLetter) -> None:
        """Delete the dead letter permanently. Raises CommitRefused if the row changed or is
        gone."""
        ...


class NewestDeadLetters(Protocol):
    """The dead letters that operators look at first. All methods raise StoreUnavailable."""

    async def streams(self) -> Sequence[Stream]:
        """See AccountReader."""
        ...

    async def newest_dead_letters(self, stream: Stream, limit: int) -> Sequence[StoredDeadLetter]:
        """The dead letters with the highest numbers, the highest first. The number of rows that are
        read is bounded, however many dead letters there are.
        """
        ...


class DeadLetterSender(Protocol):
    """Sends dead letters to a queue for operators or another app."""

    async def send(self, letters: Sequence[StoredDeadLetter]) -> Mapping[int, str]:
        """Send all dead letters, each under an id of its own. Returns the places of those that
        the queue refuses, with the reasons. Raises SendingFailed, after which any of the dead
        letters may have been sent. A queue that detects duplicates accepts each dead letter only
        once within its window.
        """
        ...
