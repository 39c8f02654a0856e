"""Where dead letters are kept, and where they may be sent."""

from __future__ import annotations

from collections.abc import Sequence
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
    """A dead letter as it was read; ``version`` is the store's mark of its row."""

    stream: Stream
    letter: DeadLetter
    version: Any


class DeadLetterStore(Protocol):
    """What became of the events that failed, over all streams. All raise StoreUnavailable."""

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
        """The first so many with a number above ``after`` (None: from the start), by number; with
        ``failed_since`` those that failed then or later, and no others are read.

        A row that cannot be read is a letter of the kind ``unreadable``, whose error says why.
        """
        ...

    async def dead_letter(self, stream: Stream, sequence: int) -> StoredDeadLetter | None:
        """The dead letter of this number, if there is one."""
        ...

    async def redrive(self, stored: StoredDeadLetter, effect: Effect) -> None:
        """The dead letter becomes the effect, with its messages, in one transaction.

        Raises AccountingBroken where the effect is of another number or fits into no transaction,
        CommitRefused where the row changed or is gone (of two who redrive, one does), or where the
        client repeated a request whose reply was lost: then the effect is there.
        """
        ...

    async def remove(self, stored: StoredDeadLetter) -> None:
        """Give the event up for good. Raises CommitRefused where the row changed or is gone."""
        ...


class NewestDeadLetters(Protocol):
    """The dead letters that people look at first. All raise StoreUnavailable."""

    async def streams(self) -> Sequence[Stream]:
        """See AccountReader."""
        ...

    async def newest_dead_letters(self, stream: Stream, limit: int) -> Sequence[StoredDeadLetter]:
        """Those with the highest numbers, the highest first. What is read for that is bounded,
        however many there are."""
        ...


class DeadLetterSender(Protocol):
    """Sends dead letters to where people or another app deal with them."""

    async def send(self, letters: Sequence[StoredDeadLetter]) -> None:
        """Send all, each under the id of its event. Raises SendingFailed, where any of them may
        have been sent; the ids tell, and a queue that detects duplicates takes each once."""
        ...
