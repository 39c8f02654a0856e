"""What the processing of data sets asks of the outside."""

from __future__ import annotations

from typing import Protocol

from shared.datasets.claims import Claim
from shared.datasets.entities import QueueDescription
from shared.datasets.processing import DatasetWork


class ClaimStore(Protocol):
    """Remembers who processes which data set for which period. Its clock is the one that counts."""

    async def take(self, work: DatasetWork, holder: str) -> Claim:
        """Insert a claim where there is none; answers the one that stands, own or another's.

        Data set and turn name a claim. The one answered carries the work that was asked for.
        """
        ...

    async def change(self, claim: Claim, holder: str, *, done: bool) -> Claim:
        """Write the claim anew, taken or done now.

        Raises ClaimTaken where it has changed or was deleted since it was read.
        """
        ...

    async def close(self) -> None: ...


class Recompute(Protocol):
    """Processes a data set for a period; doing it twice must be harmless."""

    async def run(self, work: DatasetWork) -> None: ...


class QueueReader(Protocol):
    """Reads what queues are like."""

    async def facts(self, queue: str) -> QueueDescription:
        """Raises LinkFailed where there is no such queue, ManageRightMissing without the right."""
        ...

    async def close(self) -> None: ...
