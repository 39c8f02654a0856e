"""Builds what reads an event hub outside the Functions trigger: a processor among others."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from shared import wiring_ingestion
from shared import wiring_ingestion_state as state
from shared.adapters.event_hub_receiver import EventHubReceiver
from shared.adapters.event_hubs import KnownPartitions
from shared.adapters.ingestion_retry import pause
from shared.ingestion.accounting import Writer
from shared.ingestion.balancing import BalancingTimes, Ownership
from shared.ingestion.flows import ingest
from shared.ingestion.flows.balance import Balancer
from shared.ingestion.flows.ingest import Line
from shared.ingestion.flows.processor import Processor
from shared.ingestion.flows.read_partition import PartitionReader
from shared.ingestion.flows.serve import BackgroundReading, processor_name
from shared.ingestion.model import Event

log = logging.getLogger(__name__)


class Runner:
    """One process that takes its share of the partitions."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int], Line] = {}
        self.name = processor_name()
        settings, hub = wiring_ingestion.settings(), wiring_ingestion.connection()
        self.cycle_seconds = settings.balancing.cycle_seconds
        reader = PartitionReader(
            wiring_ingestion.stream,
            state.store(),
            EventHubReceiver(hub, settings.consumer_group),
            wiring_ingestion.hub(),
            self._process,
            pause,
            self._failed,
        )
        times = BalancingTimes(settings.balancing.renew_seconds, settings.balancing.expire_seconds)
        self.processor = Processor(
            Balancer(
                self.name,
                state.owners(),
                KnownPartitions(wiring_ingestion.hub(), times.patience_seconds),
                committed_epoch,
                times,
            ),
            lambda lease: self._start(reader, lease),
            time.monotonic,
            self._told,
        )
        self._reason = ""

    def _start(self, reader: PartitionReader, lease: Ownership) -> BackgroundReading:
        log.info("[partition_taken] %s under epoch %s", lease.partition_id, lease.epoch)
        return BackgroundReading(reader.read(lease))

    async def _process(self, events: Sequence[Event], lease: Ownership) -> None:
        line = self._line(lease)
        if events:
            await ingest.run(events, line)
        else:
            await ingest.drain(line)
        await wiring_ingestion.keeper().run()

    def _line(self, lease: Ownership) -> Line:
        key = lease.partition_id, lease.epoch
        if key not in self._lines:
            stream = wiring_ingestion.stream(lease.partition_id)
            writer = Writer(self.name, lease.epoch)
            self._lines[key] = wiring_ingestion.line_of(
                stream, writer, wiring_ingestion.handler(stream)
            )
        return self._lines[key]

    def _failed(self, lease: Ownership, error: Exception) -> None:
        where = f"{lease.partition_id} under epoch {lease.epoch}"
        log.warning("[partition_held] %s: %s: %s", where, type(error).__name__, error)

    def _told(self, reason: str) -> None:
        """The same reason over and over is said once."""
        if reason != self._reason:
            log.info("[balancing] %s", reason)
        self._reason = reason


async def committed_epoch(partition_id: str) -> int:
    saved = await state.store().load(wiring_ingestion.stream(partition_id))
    return saved.checkpoint.epoch if saved.checkpoint else 0
