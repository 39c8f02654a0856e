"""In-memory adapters of the ports that the processing of data sets uses.

They keep the same contracts as the real adapters, without I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import count

from shared.datasets.claims import Claim
from shared.datasets.entities import QueueDescription
from shared.datasets.errors import ClaimTaken
from shared.datasets.processing import DatasetWork
from shared.messaging.errors import LinkFailed


class MemoryClaims:
    """See ClaimStore. As with ETags, no two writes have the same version."""

    _versions = count()

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._claims: dict[tuple[str, str], Claim] = {}

    async def take(self, work: DatasetWork, holder: str) -> Claim:
        stored, now = self._claims.get(_key(work)), self._now()
        if stored is None:
            return self._write(Claim(work, holder, now, now))
        return replace(stored, work=work, seen_at=now)

    async def change(self, claim: Claim, holder: str, *, done: bool) -> Claim:
        stored = self._claims.get(_key(claim.work))
        if stored is None or stored.version != claim.version:
            raise ClaimTaken(f"{claim.work.message_id}: another instance changed the claim first")
        now = self._now()
        taken_at, done_at = (claim.taken_at, now) if done else (now, None)
        return self._write(Claim(claim.work, holder, taken_at, now, done_at))

    async def close(self) -> None: ...

    def delete(self, work: DatasetWork) -> None:
        """Delete the claim, as an operator may do in the table by hand."""
        self._claims.pop(_key(work), None)

    def knows(self, work: DatasetWork) -> bool:
        return _key(work) in self._claims

    def _write(self, claim: Claim) -> Claim:
        written = replace(claim, version=next(self._versions))
        self._claims[_key(claim.work)] = written
        return written


class RecordingRecompute:
    """A Recompute that does nothing but record its calls."""

    def __init__(self) -> None:
        self.calls: list[DatasetWork] = []

    async def run(self, work: DatasetWork) -> None:
        self.calls.append(work)


class MemoryQueueReader:
    """See QueueReader. It returns the descriptions that it was given."""

    def __init__(self, queues: Mapping[str, QueueDescription]) -> None:
        self._queues = queues

    async def facts(self, queue: str) -> QueueDescription:
        if queue not in self._queues:
            raise LinkFailed(f"queue {queue} does not exist")
        return self._queues[queue]

    async def close(self) -> None: ...


def _key(work: DatasetWork) -> tuple[str, str]:
    return work.dataset, work.round_label
