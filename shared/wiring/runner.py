"""Reads an event hub outside the Functions trigger, as one of several processors."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from shared.ingestion.errors import StreamRecreated
from shared.ingestion.events import ingest
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.ingest import PartitionPipeline
from shared.ingestion.hub.client import KnownPartitions
from shared.ingestion.model import Event, Ownership
from shared.ingestion.ownership.load_balancing import BalancingTimes
from shared.ingestion.ownership.processor import (
    BackgroundTask,
    Processor,
    processor_name,
    run_periodically,
    run_processor,
)
from shared.ingestion.ownership.read_partition import PartitionReader, RepeatedFailures
from shared.values.concurrency import pause
from shared.wiring.app import App
from shared.wiring.remedies import with_remedy

log = logging.getLogger(__name__)

TAIL_SECONDS = 60.0
"""The interval of checks of the ends of the owned partitions, as of the timer of the app."""


class Runner:
    """One processor, which reads its share of the partitions."""

    def __init__(self, app: App, tail_seconds: float = TAIL_SECONDS) -> None:
        self._app = app
        self._tail_seconds = tail_seconds
        self._pipelines: dict[str, tuple[int, PartitionPipeline]] = {}
        self.name = processor_name()
        balancing, ingestion = app.settings.ingestion.balancing, app.ingestion
        self._cycle_seconds = balancing.cycle_seconds
        reader = PartitionReader(
            ingestion.stream,
            ingestion.store,
            ingestion.receiver,
            ingestion.hub,
            self._process,
            pause,
            self._failed,
        )
        times = balancing.part(BalancingTimes)
        self.processor = Processor(
            self.name,
            ingestion.owners,
            KnownPartitions(ingestion.hub, times.hub_timeout_seconds),
            self._committed_epoch,
            lambda lease: self._start(reader, lease),
            time.monotonic,
            times,
            on_plan=self._log_reason,
            on_failure=self._balancing_failed,
            on_release=self._given_up,
        )
        self._reason = ""
        self._failures = RepeatedFailures()

    async def run(self, stopping: asyncio.Event) -> None:
        """Read until ``stopping`` is set, then release all partitions."""
        watching = asyncio.create_task(
            run_periodically(self._watch_tails, stopping, self._tail_seconds)
        )
        try:
            await run_processor(self.processor, stopping, self._cycle_seconds)
        finally:
            watching.cancel()
            await asyncio.wait([watching])

    async def _watch_tails(self) -> None:
        """Process events that the hub has but that no receiver delivers."""
        leases = {partition_id: held.lease for partition_id, held in self.processor.held.items()}
        try:
            await self._app.ingestion.tail_watch.check_partitions(
                list(leases), lambda partition_id: self._pipeline(leases[partition_id])
            )
        except Exception as error:  # the watch has logged the error of each partition
            log.warning("[tails_failed] %s: %s", type(error).__name__, error)

    def _start(self, reader: PartitionReader, lease: Ownership) -> BackgroundTask:
        log.info("[partition_taken] %s under epoch %s", lease.partition_id, lease.epoch)
        return BackgroundTask(reader.read(lease))

    async def _process(self, events: Sequence[Event], lease: Ownership) -> None:
        pipeline = self._pipeline(lease)
        if events:
            await ingest.ingest_batch(events, pipeline)
        else:
            await ingest.send_outbox(pipeline)
        await self._app.ingestion.effect_retention.clean_up()

    def _pipeline(self, lease: Ownership) -> PartitionPipeline:
        epoch, pipeline = self._pipelines.get(lease.partition_id, (None, None))
        if pipeline is None or epoch != lease.epoch:
            stream = self._app.ingestion.stream(lease.partition_id)
            pipeline = self._app.ingestion.pipeline_of(stream, Writer(self.name, lease.epoch))
            self._pipelines[lease.partition_id] = lease.epoch, pipeline
        return pipeline

    async def _committed_epoch(self, partition_id: str) -> int:
        ingestion = self._app.ingestion
        saved = await ingestion.store.load(ingestion.stream(partition_id))
        return saved.checkpoint.epoch if saved.checkpoint else 0

    def _failed(self, lease: Ownership, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if self._failures.should_log(lease.partition_id, text, time.monotonic()):
            level = logging.ERROR if isinstance(error, StreamRecreated) else logging.WARNING
            log.log(level, "[partition_held] %s: %s", _where(lease), with_remedy(text))

    def _given_up(self, lease: Ownership, error: BaseException) -> None:
        text = with_remedy(f"{type(error).__name__}: {error}")
        log.warning("[partition_given_up] %s: %s", _where(lease), text)

    def _balancing_failed(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if self._failures.should_log("balancing", text, time.monotonic()):
            log.warning("[balancing_failed] %s", with_remedy(text))

    def _log_reason(self, reason: str) -> None:
        if reason != self._reason:
            log.info("[balancing] %s", reason)
        self._reason = reason


def _where(lease: Ownership) -> str:
    return f"{lease.partition_id} under epoch {lease.epoch}"
