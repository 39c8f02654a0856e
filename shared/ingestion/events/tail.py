"""What the hub has and nobody delivered: found by a timer, for no later event shows the gap."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from shared.ingestion.concurrency import TaskRunner
from shared.ingestion.events.ingest import PartitionPipeline, drain, sweep
from shared.ingestion.events.survey import check_same_hub

log = logging.getLogger(__name__)


IDLE = timedelta(seconds=45)
"""Who is at work on a stream notes it three times in this time."""


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """How far a stream was, and how far its hub, by the store's clock."""

    at: datetime
    checkpoint: int
    last_enqueued: int

    def is_stuck_since(self, before: StreamProgress | None) -> bool:
        """Whether events that were there the last time have still not been accounted for."""
        if before is None or before.checkpoint != self.checkpoint or self.at < before.at:
            return False
        return before.last_enqueued > self.checkpoint


@dataclass(slots=True)
class TailWatch:
    """Looks after the tails of all partitions; remembers what it saw from one time to the next."""

    run_tasks: TaskRunner
    seen: dict[str, StreamProgress] = field(default_factory=dict)

    async def run(
        self, partition_ids: Sequence[str], pipeline_of: Callable[[str], PartitionPipeline]
    ) -> None:
        """Each partition in its own try; raises what went wrong with any, once all are done."""
        failures: list[Exception] = []

        async def one(partition_id: str) -> None:
            pipeline = pipeline_of(partition_id)
            try:
                await self._look_after(pipeline)
            except Exception as error:
                log.error("[tail_failed] %s: %s: %s", pipeline.name, type(error).__name__, error)
                failures.append(error)

        work: list[Callable[[], Awaitable[None]]] = [partial(one, each) for each in partition_ids]
        await self.run_tasks(work)
        if failures:
            raise ExceptionGroup("tails", failures)

    async def _look_after(self, pipeline: PartitionPipeline) -> None:
        """Send what an instance left behind when it died; account for what the host skipped.

        What came since the last time is left to the trigger, which is about to deliver it. Where
        nothing is delivered any more the breaker has nobody else to try it: then that is done here.
        """
        await drain(pipeline)
        key = pipeline.consumer.stream.key
        before, now = self.seen.pop(key, None), await _progress(pipeline)
        if now is None:
            return
        since = before if before is not None and now.is_stuck_since(before) else now
        idle = now.at - since.at >= IDLE and not await _is_at_work(pipeline)
        gate = await pipeline.guard.admit(pipeline.consumer.stream.partition_id, may_probe=idle)
        if not idle or gate.shut:
            self.seen[key] = since
            return
        log.warning("[tail_found] %s: nothing delivered after %s", pipeline.name, now.checkpoint)
        await sweep(pipeline, gate.events_max)


async def _is_at_work(pipeline: PartitionPipeline) -> bool:
    """Whether a batch of this process or of any other is at the stream; it may take its time."""
    if pipeline.consumer.remembered.at_work:
        return True
    idle_for = await pipeline.consumer.store.idle_for(pipeline.consumer.stream)
    return idle_for is not None and abs(idle_for) < IDLE  # further ahead: the clock was set back


async def _progress(pipeline: PartitionPipeline) -> StreamProgress | None:
    """None for a stream that never began."""
    consumer = pipeline.consumer
    saved = await consumer.store.load(consumer.stream)
    if saved.checkpoint is None:
        return None
    hub = await consumer.hub.state(consumer.stream)
    check_same_hub(saved.checkpoint, hub)
    return StreamProgress(saved.read_at, saved.checkpoint.sequence, hub.last_enqueued)
