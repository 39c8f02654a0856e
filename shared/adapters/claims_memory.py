"""In-memory twins of what the processing of data sets needs. Same contracts, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from shared.messaging.claims import Claim
from shared.messaging.entities import QueueFacts
from shared.messaging.errors import ClaimTaken, LinkFailed
from shared.messaging.processing import Work


class MemoryClaims:
    """Claims by data set and period, with a version that grows at each change."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._claims: dict[tuple[str, str], Claim] = {}

    async def take(self, work: Work, holder: str) -> Claim:
        now = self._now()
        found = self._claims.setdefault(_key(work), Claim(work, holder, now, now, version=0))
        return replace(found, seen_at=now)

    async def change(self, claim: Claim, holder: str, *, done: bool) -> Claim:
        if self._claims[_key(claim.work)].version != claim.version:
            raise ClaimTaken(f"{claim.work.message_id}: somebody else was faster")
        now = self._now()
        taken_at, done_at = (claim.taken_at, now) if done else (now, None)
        changed = Claim(claim.work, holder, taken_at, now, done_at, claim.version + 1)
        self._claims[_key(claim.work)] = changed
        return changed

    async def close(self) -> None: ...


class RecordingRecompute:
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[Work] = []

    async def run(self, work: Work) -> None:
        self.calls.append(work)


class MemoryQueueReader:
    """Tells what it was told."""

    def __init__(self, queues: Mapping[str, QueueFacts]) -> None:
        self._queues = queues

    async def facts(self, queue: str) -> QueueFacts:
        if queue not in self._queues:
            raise LinkFailed(f"queue {queue} does not exist")
        return self._queues[queue]

    async def close(self) -> None: ...


def _key(work: Work) -> tuple[str, str]:
    return work.dataset, work.turn_label
