"""A timer's check for undelivered events at a partition's end, where no later event tells."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from shared.ingestion.events.ingest import PartitionPipeline, ingest_undelivered, send_outbox
from shared.ingestion.events.survey import check_same_hub, problem
from shared.values.concurrency import TaskRunner
from shared.values.leases import is_held

log = logging.getLogger(__name__)


IDLE = timedelta(seconds=45)
"""A stream is idle after this time without an activity record, of which work writes three."""


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """The positions of a stream's checkpoint and of its partition's end, by the store's clock."""

    at: datetime
    checkpoint: int
    last_enqueued: int

    def is_stuck_since(self, before: StreamProgress | None) -> bool:
        """Whether events that the hub had at the time of ``before`` are still not accounted for."""
        if before is None or before.checkpoint != self.checkpoint or self.at < before.at:
            return False
        return before.last_enqueued > self.checkpoint


@dataclass(slots=True)
class TailWatch:
    """Checks the ends of all partitions, and remembers the progress of each."""

    run_tasks: TaskRunner
    seen: dict[str, StreamProgress] = field(default_factory=dict)

    async def check_partitions(
        self,
        partition_ids: Sequence[str],
        pipeline_of: Callable[[str], PartitionPipeline],
    ) -> None:
        """Check each partition, and raise all failures together at the end."""
        failures: list[Exception] = []

        async def check_partition(partition_id: str) -> None:
            try:
                await self._look_after(pipeline_of(partition_id))
            except Exception as error:
                name = f"partition {partition_id}"
                log.error("[tail_failed] %s: %s: %s", name, type(error).__name__, error)
                failures.append(error)

        work: list[Callable[[], Awaitable[None]]] = [
            partial(check_partition, each) for each in partition_ids
        ]
        await self.run_tasks(work)
        if failures:
            raise ExceptionGroup("checking the ends of partitions failed", failures)

    async def _look_after(self, pipeline: PartitionPipeline) -> None:
        """Send messages left behind, and account for events that the host skipped; new ones are the
        trigger's. If no batch is delivered any more, only this probes an open breaker."""
        await send_outbox(pipeline)
        key = pipeline.consumer.stream.key
        before, now = self.seen.pop(key, None), await _progress(pipeline)
        if now is None:
            return
        since = before if before is not None and now.is_stuck_since(before) else now
        idle = now.at - since.at >= IDLE and not await _is_at_work(pipeline)
        admission = await pipeline.breaker.admit(pipeline.partition_id, may_probe=idle)
        if not idle or admission.is_held:
            self.seen[key] = since
            return
        log.warning(
            "[tail_found] %s: no event was delivered after event %s", pipeline.name, now.checkpoint
        )
        await ingest_undelivered(pipeline, admission.events_max)


async def _is_at_work(pipeline: PartitionPipeline) -> bool:
    if pipeline.consumer.remembered.at_work:
        return True
    idle_for = await pipeline.consumer.store.idle_for(pipeline.consumer.stream)
    return idle_for is not None and is_held(IDLE - idle_for, IDLE)


async def _progress(pipeline: PartitionPipeline) -> StreamProgress | None:
    consumer = pipeline.consumer
    saved = await consumer.store.load(consumer.stream)
    hub = await consumer.hub.state(consumer.stream)
    if saved.checkpoint is None:
        if why := problem(None, hub, saved.read_at):
            log.warning("[tail_unread] %s: %s", pipeline.name, why)
        return None
    check_same_hub(saved.checkpoint, hub)
    return StreamProgress(saved.read_at, saved.checkpoint.sequence, hub.last_enqueued)
