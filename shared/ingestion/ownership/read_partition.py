"""Reads one partition under one lease, from the checkpoint, again after each failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from shared.ingestion.errors import Fenced, HubSilent
from shared.ingestion.events.survey import check_same_hub
from shared.ingestion.model import Event, Ownership, Stream
from shared.ingestion.ports import HubReader, PartitionReceiver
from shared.ingestion.store.events import EventStore
from shared.values.concurrency import Backoff

Process = Callable[[Sequence[Event], Ownership], Awaitable[None]]
"""Processes a batch under a lease. Raises errors that hold the partition, or Fenced."""


@dataclass(frozen=True, slots=True)
class PartitionReader:
    """Reads any partition of a hub. ``on_failure`` is called with each failure."""

    stream_of: Callable[[str], Stream]
    store: EventStore
    receiver: PartitionReceiver
    hub: HubReader
    process: Process
    pause: Backoff
    on_failure: Callable[[Ownership, Exception], None]

    async def read(self, lease: Ownership) -> None:
        """Read until the task is cancelled. Raises Fenced and HubSilent, after which the partition
        must be given up. Any other error is reported and retried after a growing pause."""
        failures = 0

        async def deliver(events: Sequence[Event]) -> None:
            nonlocal failures
            await self.process(events, lease)
            failures = 0

        while True:
            try:
                stream = self.stream_of(lease.partition_id)
                saved = await self.store.load(stream)
                after = saved.checkpoint.sequence if saved.checkpoint else None
                if saved.checkpoint:
                    check_same_hub(saved.checkpoint, await self.hub.state(stream))
                await self.receiver.receive(lease.partition_id, after, lease.epoch, deliver)
            except (Fenced, HubSilent):
                raise
            except Exception as error:
                self.on_failure(lease, error)
                failures += 1
                await self.pause(failures)


REPEAT_SECONDS = 30.0
"""Seconds after which a lasting failure is logged again."""


@dataclass(slots=True)
class RepeatedFailures:
    """Suppresses repeated log lines, by subject."""

    _logged: dict[str, tuple[str, float]] = field(default_factory=dict)

    def should_log(self, subject: str, text: str, now: float) -> bool:
        """Whether to log the text now. ``now`` counts seconds and never goes back."""
        before = self._logged.get(subject)
        if before is not None and before[0] == text and now - before[1] < REPEAT_SECONDS:
            return False
        self._logged[subject] = text, now
        return True
