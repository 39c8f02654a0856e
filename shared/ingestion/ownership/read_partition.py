"""Read one partition under one lease: from the checkpoint on, and again from it after a failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from shared.ingestion.concurrency import Backoff
from shared.ingestion.errors import Fenced, HubSilent
from shared.ingestion.events.ports import CheckpointReader, HubReader
from shared.ingestion.events.survey import check_same_hub
from shared.ingestion.model import Event, Stream
from shared.ingestion.ownership.load_balancing import Ownership
from shared.ingestion.ownership.ports import PartitionReceiver

Process = Callable[[Sequence[Event], Ownership], Awaitable[None]]
"""Accounts for a batch under a lease; raises what holds the partition, or Fenced."""


@dataclass(frozen=True, slots=True)
class PartitionReader:
    """What reading needs, whatever the partition. ``on_failure`` hears of each failure."""

    stream_of: Callable[[str], Stream]
    store: CheckpointReader
    receiver: PartitionReceiver
    hub: HubReader
    process: Process
    pause: Backoff
    on_failure: Callable[[Ownership, Exception], None]

    async def read(self, lease: Ownership) -> None:
        """Until it is cancelled. Raises Fenced and HubSilent: then the partition is to be given up.

        Everything else is told and tried again, a hub that was made anew included: that lasts
        until a person deletes the rows of its stream, and then reading goes on by itself.

        A batch that could not be accounted for is not kept in memory: it is read again from where
        the checkpoint stands, after a pause that grows until a batch goes through.
        """
        stream, failures = self.stream_of(lease.partition_id), 0

        async def deliver(events: Sequence[Event]) -> None:
            nonlocal failures
            await self.process(events, lease)
            failures = 0

        while True:
            try:
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
"""A failure that lasts is told so often, so that the log never falls silent about it."""


@dataclass(slots=True)
class RepeatedFailures:
    """Remembers, for each thing that can fail, what was told of it last and when."""

    _logged: dict[str, tuple[str, float]] = field(default_factory=dict)

    def should_log(self, what: str, text: str, now: float) -> bool:
        """``now`` counts seconds and never goes back."""
        before = self._logged.get(what)
        if before is not None and before[0] == text and now - before[1] < REPEAT_SECONDS:
            return False
        self._logged[what] = text, now
        return True
