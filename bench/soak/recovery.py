"""Measures from the store how long partitions stand still after their reader was killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shared.ingestion.model import Checkpoint, Ownership, Stream
from shared.ingestion.store.events import EventStore

POLL_SECONDS = 0.25


@dataclass(slots=True)
class _Waiting:
    killed_at: float
    sequence: int


@dataclass(slots=True)
class RecoveryWatch:
    """Watches checkpoints. A partition has recovered when a process commits again. Only partitions
    with events left to commit are timed, because the others have nothing to recover."""

    store: EventStore
    streams: Sequence[Stream]
    newest_of: Callable[[str], int]
    seconds: list[float] = field(default_factory=list)
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    _waiting: dict[str, _Waiting] = field(default_factory=dict)

    async def killed(self, pid: int, owners: Sequence[Ownership]) -> int:
        """Start timing partitions whose reader is dead. Return how many lost their reader."""
        at = time.monotonic()
        lost = {row.partition_id for row in owners if f"-{pid}-" in row.owner}
        for stream in self.streams:
            if stream.partition_id in lost:
                checkpoint = (await self.store.load(stream)).checkpoint
                sequence = checkpoint.sequence if checkpoint else -1
                self._waiting.setdefault(stream.partition_id, _Waiting(at, sequence))
        return len(lost)

    async def run(self) -> None:
        while True:
            for stream in self.streams:
                await self._look(stream)
            await asyncio.sleep(POLL_SECONDS)

    async def _look(self, stream: Stream) -> None:
        checkpoint = (await self.store.load(stream)).checkpoint
        partition_id = stream.partition_id
        before = self.checkpoints.get(partition_id)
        if checkpoint is not None:
            assert before is None or checkpoint.sequence >= before.sequence, "it went back"
            assert before is None or checkpoint.epoch >= before.epoch, "an old epoch committed"
            self.checkpoints[partition_id] = checkpoint
        waiting = self._waiting.get(partition_id)
        if waiting is None:
            return
        if checkpoint is not None and checkpoint.sequence > waiting.sequence:
            self.seconds.append(time.monotonic() - waiting.killed_at)
            del self._waiting[partition_id]
        elif checkpoint is not None and checkpoint.sequence == self.newest_of(partition_id):
            waiting.killed_at = time.monotonic()  # There is nothing to commit yet.
