"""What the hub has and nobody delivered: found by a timer, for no later event shows the gap."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from shared.ingestion.flows import process_batch
from shared.ingestion.flows.ingest import Line, drain, tell
from shared.ingestion.ports import Together
from shared.ingestion.survey import check_same_hub

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sight:
    """How far a stream was, and how far its hub."""

    checkpoint: int
    last_enqueued: int

    def stands_still_since(self, before: Sight | None) -> bool:
        """Whether events that were there the last time have still not been delivered."""
        if before is None or before.checkpoint != self.checkpoint:
            return False
        return before.last_enqueued > self.checkpoint


@dataclass(slots=True)
class TailWatch:
    """Looks after the tails of all partitions; remembers what it saw from one time to the next."""

    together: Together
    seen: dict[str, Sight] = field(default_factory=dict)

    async def run(self, partition_ids: Sequence[str], line_of: Callable[[str], Line]) -> None:
        """Each partition in its own try; raises what went wrong with any, once all are done."""
        failures: list[Exception] = []

        async def one(partition_id: str) -> None:
            line = line_of(partition_id)
            try:
                await self._look_after(line)
            except Exception as error:
                log.error("[tail_failed] %s: %s: %s", line.name, type(error).__name__, error)
                failures.append(error)

        work: list[Callable[[], Awaitable[None]]] = [partial(one, each) for each in partition_ids]
        await self.together(work)
        if failures:
            raise ExceptionGroup("tails", failures)

    async def _look_after(self, line: Line) -> None:
        """Send what an instance left behind when it died; account for what the host skipped.

        What came since the last time is left to the trigger, which is about to deliver it.
        """
        await drain(line)
        key = line.consumer.stream.key
        before, now = self.seen.pop(key, None), await _sight(line)
        if now is None or not await line.guard.is_closed():
            return
        if now.stands_still_since(before):
            log.warning("[tail_found] %s: nothing delivered after %s", line.name, now.checkpoint)
            tell(line, await process_batch.sweep(line.consumer))
            await drain(line)
        else:
            self.seen[key] = now


async def _sight(line: Line) -> Sight | None:
    """None for a stream that never began."""
    consumer = line.consumer
    saved = await consumer.store.load(consumer.stream)
    if saved.checkpoint is None:
        return None
    hub = await consumer.hub.state(consumer.stream)
    check_same_hub(saved.checkpoint, hub)
    return Sight(saved.checkpoint.sequence, hub.last_enqueued)
