"""An Event Hub processor: takes its share of the partitions, and reads each with the epoch of its
ownership row, which is a lease that the store has confirmed."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from shared.ingestion.errors import HubUnavailable, IngestionError, RowChanged, StoreUnavailable
from shared.ingestion.model import Ownership
from shared.ingestion.ownership.load_balancing import (
    BalancingPlan,
    BalancingTimes,
    OwnershipView,
    plan,
    release,
)
from shared.ingestion.ports import HubPartitions
from shared.ingestion.store.owners import OwnershipStore
from shared.values.concurrency import TaskRunner, task_runner

AT_ONCE_MAX = 32
"""The number of rows that are written concurrently."""


class PartitionTask(Protocol):
    """A partition that is being read in the background."""

    @property
    def error(self) -> BaseException | None:
        """The error that ended the task; None while the task runs."""
        ...

    def cancel(self) -> None: ...

    async def ended(self) -> None:
        """Return when the task has ended completely."""
        ...


@dataclass(slots=True)
class _Owned:
    lease: Ownership
    until: float
    reading: PartitionTask


@dataclass(slots=True)
class Processor:
    """Takes its share of the partitions and reads them. ``me`` is unique, ``elapsed`` never goes
    back. ``epoch_of`` returns the epoch of a partition's last commit; each claim uses a higher one,
    even if the ownership rows were lost."""

    me: str
    store: OwnershipStore
    hub: HubPartitions
    epoch_of: Callable[[str], Awaitable[int]]
    start: Callable[[Ownership], PartitionTask]
    elapsed: Callable[[], float]
    times: BalancingTimes = field(default_factory=BalancingTimes)
    run_tasks: TaskRunner = field(default_factory=lambda: task_runner(AT_ONCE_MAX))
    on_plan: Callable[[str], None] = lambda _reason: None
    """Called in each cycle with the reason for the share."""
    on_failure: Callable[[Exception], None] = lambda _error: None
    """Called if the share could not be determined."""
    on_release: Callable[[Ownership, BaseException], None] = lambda _lease, _error: None
    """Called with a lease that is released, and the error that ended its task."""
    held: dict[str, _Owned] = field(default_factory=dict)

    async def cycle(self) -> bool:
        """Run one cycle; True if a partition was claimed. Lost partitions are stopped before new
        ones start. If the store cannot be read, each is read only until its lease expires."""
        asked_at = self.elapsed()
        try:
            ids = await self.hub.partition_ids()
            seen = await self.store.owners()
            planned = plan(OwnershipView(ids, seen.rows), self.me, seen.read_at, self.times)
            mine = await self._owned(planned)
        except (StoreUnavailable, HubUnavailable) as error:
            self.on_failure(error)
            await self._stop([p for p, held in self.held.items() if asked_at >= held.until])
            return False
        self.on_plan(planned.reason)
        await self._stop(
            [p for p, held in self.held.items() if not _still_owned(held.lease, mine.get(p))]
        )
        for partition_id, lease in mine.items():
            owned = self.held.get(partition_id)
            reading = owned.reading if owned else self.start(lease)
            until = asked_at + self._seconds_left(lease, seen.read_at)
            self.held[partition_id] = _Owned(lease, until, reading)
        await self._give_up_ended()
        return any(claim.partition_id in mine for claim in planned.claims)

    async def _owned(self, planned: BalancingPlan) -> Mapping[str, Ownership]:
        """Renew rows and claim partitions; return the rows of those that this processor owns."""
        mine = {row.partition_id: row for row in planned.keep}
        await self._all([partial(self._renew, each, mine) for each in planned.renewals])
        await self._all([partial(self._claim, each, mine) for each in planned.claims])
        return mine

    async def _all(self, work: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """Run the work, and raise the first error itself instead of a group."""
        try:
            await self.run_tasks(work)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def _renew(self, renewal: Ownership, mine: dict[str, Ownership]) -> None:
        """Renew one row. After a lost reply the partition stays owned until its previous expiry."""
        try:
            mine[renewal.partition_id] = await self.store.write(renewal)
        except RowChanged:
            del mine[renewal.partition_id]
        except StoreUnavailable:
            return

    async def _claim(self, claim: Ownership, mine: dict[str, Ownership]) -> None:
        """Claim one partition. After a lost reply, the next cycle finds the row."""
        try:
            committed = await self.epoch_of(claim.partition_id)
            above = replace(claim, epoch=max(claim.epoch, committed + 1))
            mine[claim.partition_id] = await self.store.write(above)
        except (RowChanged, StoreUnavailable):
            return

    async def stop(self) -> None:
        """Stop reading, then release all partitions."""
        leases = [held.lease for held in self.held.values()]
        await self._stop(list(self.held))
        await self._give_up(leases)

    async def _give_up(self, leases: Iterable[Ownership]) -> None:
        """Release the leases at once. One that the store refuses to release expires later."""

        async def give_up(lease: Ownership) -> None:
            with suppress(RowChanged, StoreUnavailable):
                await self.store.write(release(lease))

        await self._all([partial(give_up, lease) for lease in leases])

    async def _give_up_ended(self) -> None:
        """Release each partition whose task has ended. The next claim has a higher epoch."""
        ended = {p: held.reading.error for p, held in self.held.items()}
        errors = {p: error for p, error in ended.items() if error is not None}
        leases = [self.held[partition_id].lease for partition_id in errors]
        await self._stop(errors)
        for lease in leases:
            self.on_release(lease, errors[lease.partition_id])
        await self._give_up(leases)

    async def _stop(self, partition_ids: Iterable[str]) -> None:
        stopping = [self.held.pop(partition_id).reading for partition_id in partition_ids]
        for reading in stopping:
            reading.cancel()
        await self.run_tasks([reading.ended for reading in stopping])

    def _seconds_left(self, lease: Ownership, read_at: datetime) -> float:
        """How long the lease is valid. If the store's clock was set back, it counts as new."""
        lasts = self.times.expire_seconds
        age = (read_at - lease.modified_at).total_seconds()
        return min(lasts - age, lasts)


def _still_owned(lease: Ownership, current: Ownership | None) -> bool:
    return current is not None and current.epoch == lease.epoch


ENDING_SECONDS_MAX = 20
"""How long a task may take to end. An abandoned one cannot commit under its old epoch."""
CLAIMING_SECONDS = 1.0
"""The pause between two cycles while there may be more to claim."""


def processor_name() -> str:
    """A unique name, which also shows operators where the process runs."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


class BackgroundTask:
    """A PartitionTask that runs as a task of the event loop."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(work)

    @property
    def error(self) -> BaseException | None:
        if not self._task.done():
            return None
        error = None if self._task.cancelled() else self._task.exception()
        return error or IngestionError("reading ended without an error")

    def cancel(self) -> None:
        self._task.cancel()

    async def ended(self) -> None:
        await asyncio.wait([self._task], timeout=ENDING_SECONDS_MAX)


def random_jitter() -> float:
    """A random factor, so that processors do not run their cycles at the same moments."""
    return random.uniform(0.8, 1.2)  # noqa: S311 - not for secrets


async def run_processor(
    processor: Processor,
    stopping: asyncio.Event,
    cycle_seconds: float,
    jitter: Callable[[], float] = random_jitter,
) -> None:
    """Run cycles until ``stopping`` is set, then stop reading and release all partitions."""
    try:
        while not stopping.is_set():
            claimed = await processor.cycle()
            seconds = min(CLAIMING_SECONDS, cycle_seconds) if claimed else cycle_seconds
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), seconds * jitter())
    finally:
        await processor.stop()


async def run_periodically(
    work: Callable[[], Awaitable[None]],
    stopping: asyncio.Event,
    seconds: float,
    jitter: Callable[[], float] = random_jitter,
) -> None:
    """Repeat ``work`` until ``stopping`` is set, with a pause before each run."""
    while not stopping.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), seconds * jitter())
            return
        await work()
