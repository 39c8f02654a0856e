"""What the processing of data sets needs from the claim store, Service Bus and the user's own
code."""

from __future__ import annotations

from typing import Protocol

from shared.trends.datasets.claims import Claim
from shared.trends.datasets.entities import QueueDescription
from shared.trends.datasets.processing import DatasetWork


class ClaimStore(Protocol):
    """Stores which message processes which data set for which period. All times are those of its
    clock.
    """

    async def take(self, work: DatasetWork, holder: str) -> Claim:
        """Insert a claim if there is none, and return the stored claim, which may belong to another
        message. A claim is identified by the data set and the round. The returned claim carries the
        given work.
        """
        ...

    async def change(self, claim: Claim, holder: str, *, done: bool) -> Claim:
        """Update the claim: it is taken now or, if ``done`` is true, done now.

        Raises ClaimTaken if it was changed or deleted since it was read.
        """
        ...

    async def close(self) -> None: ...


class Recompute(Protocol):
    """Processes a data set for a period. Processing it twice must be harmless."""

    async def recompute(self, work: DatasetWork) -> None: ...


class QueueReader(Protocol):
    """Reads the settings of queues."""

    async def facts(self, queue: str) -> QueueDescription:
        """Raises LinkFailed if the queue does not exist, and ManageRightMissing if the identity
        lacks the right."""
        ...

    async def close(self) -> None: ...
