"""A processor: balance, and read exactly the partitions that are mine, each under its epoch.

One cycle: 1. Read the hub's partitions and the owners' rows. 2. Let ``plan`` decide. 3. Renew, and
claim at most one. What was not confirmed by the store is not mine: a claim that fails is no claim.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from shared.ingestion.errors import ClaimLost, HubUnavailable, IngestionError, StoreUnavailable
from shared.ingestion.ownership.load_balancing import (
    BalancingTimes,
    Choice,
    Ownership,
    OwnershipClaim,
    OwnershipView,
    plan,
    release,
    rendezvous,
)
from shared.ingestion.ownership.ports import HubPartitions, OwnershipStore


@dataclass(frozen=True, slots=True)
class OwnedPartitions:
    """The partitions that are mine, as the store confirmed them, and why they are so many.

    ``read_at`` is the store's clock; ``claimed`` tells that one of them is new.
    """

    mine: Mapping[str, Ownership]
    read_at: datetime
    claimed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Balancer:
    """One processor's part in the balancing.

    ``me`` must be a name of its own for each process: two of one name would share an epoch.
    ``epoch_of`` tells under which epoch a partition was committed last; a claim goes above it,
    also where the ownership rows were lost.
    """

    me: str
    store: OwnershipStore
    hub: HubPartitions
    epoch_of: Callable[[str], Awaitable[int]]
    times: BalancingTimes = field(default_factory=BalancingTimes)
    choose: Choice = rendezvous

    async def cycle(self) -> OwnedPartitions:
        """Renew and claim. Raises StoreUnavailable and HubUnavailable where nothing is known."""
        ids = await self.hub.partition_ids()
        seen = await self.store.owners()
        found = plan(OwnershipView(ids, seen.rows), self.me, seen.read_at, self.times, self.choose)
        mine = {row.partition_id: row for row in found.keep}
        for renewal in found.renewals:
            await self._renew(renewal, mine)
        claimed = found.claim is not None and await self._claim(found.claim, mine)
        return OwnedPartitions(mine, seen.read_at, claimed, found.reason)

    async def give_up(self, leases: Iterable[Ownership]) -> None:
        """Free partitions at once. Where that fails they expire."""
        for row in leases:
            try:
                await self.store.write(release(row))
            except (ClaimLost, StoreUnavailable):
                continue

    async def _renew(self, renewal: OwnershipClaim, mine: dict[str, Ownership]) -> None:
        """A renewal whose reply is lost leaves the partition mine for as long as it was."""
        try:
            mine[renewal.partition_id] = await self.store.write(renewal)
        except ClaimLost:
            del mine[renewal.partition_id]
        except StoreUnavailable:
            return

    async def _claim(self, claim: OwnershipClaim, mine: dict[str, Ownership]) -> bool:
        """Should a claim whose reply is lost stand, the next cycle finds it among mine."""
        try:
            committed = await self.epoch_of(claim.partition_id)
            above = replace(claim, epoch=max(claim.epoch, committed + 1))
            mine[claim.partition_id] = await self.store.write(above)
        except (ClaimLost, StoreUnavailable):
            return False
        return True


class PartitionTask(Protocol):
    """A partition that is being read in the background."""

    @property
    def error(self) -> BaseException | None:
        """Why it ended of itself; None while it goes on."""
        ...

    def cancel(self) -> None: ...

    async def ended(self) -> None:
        """Returns when nothing of it goes on any more, whatever it was doing."""
        ...


@dataclass(slots=True)
class _Owned:
    lease: Ownership
    until: float
    reading: PartitionTask


@dataclass(slots=True)
class Processor:
    """``start`` begins to read in the background. ``elapsed`` counts seconds and never goes back;
    it may start anywhere. ``on_plan`` hears why the share is as it is, ``on_failure`` why it is not
    known, and ``on_release`` why a partition is not read any more."""

    balancer: Balancer
    start: Callable[[Ownership], PartitionTask]
    elapsed: Callable[[], float]
    on_plan: Callable[[str], None] = lambda _reason: None
    on_failure: Callable[[Exception], None] = lambda _error: None
    on_release: Callable[[Ownership, BaseException], None] = lambda _lease, _error: None
    held: dict[str, _Owned] = field(default_factory=dict)

    async def cycle(self) -> bool:
        """One round: what was lost is stopped before anything else is begun.

        Answers whether a partition was claimed; then there may be more to claim.

        Without word of the store a lease ends when it expires there, by the time that has passed
        here since before it was read.
        """
        asked_at = self.elapsed()
        try:
            share = await self.balancer.cycle()
        except (StoreUnavailable, HubUnavailable) as error:
            self.on_failure(error)
            await self._stop([p for p, held in self.held.items() if asked_at >= held.until])
            return False
        self.on_plan(share.reason)
        await self._stop([p for p, held in self.held.items() if not _same(held.lease, share, p)])
        for partition_id, lease in share.mine.items():
            known = self.held.get(partition_id)
            reading = known.reading if known else self.start(lease)
            self.held[partition_id] = _Owned(
                lease, asked_at + self._seconds_left(share, lease), reading
            )
        await self._give_up_ended()
        return share.claimed

    async def stop(self) -> None:
        """Stop reading, then give all partitions up."""
        leases = [held.lease for held in self.held.values()]
        await self._stop(list(self.held))
        await self.balancer.give_up(leases)

    async def _give_up_ended(self) -> None:
        """A lease whose reading has ended would keep others from the partition. The next claim,
        whosever it is, goes above the epoch of this one, and above one that fenced it."""
        ended = {p: held.reading.error for p, held in self.held.items()}
        errors = {p: error for p, error in ended.items() if error is not None}
        leases = [self.held[partition_id].lease for partition_id in errors]
        await self._stop(errors)
        for lease in leases:
            self.on_release(lease, errors[lease.partition_id])
        await self.balancer.give_up(leases)

    async def _stop(self, partition_ids: Iterable[str]) -> None:
        stopping = [self.held.pop(partition_id).reading for partition_id in partition_ids]
        for reading in stopping:
            reading.cancel()
        for reading in stopping:
            await reading.ended()

    def _seconds_left(self, share: OwnedPartitions, lease: Ownership) -> float:
        """Of a lease that was written by a clock since set back: not more than of a new one."""
        lasts = self.balancer.times.expire_seconds
        age = (share.read_at - lease.modified_at).total_seconds()
        return min(lasts - age, lasts)


def _same(lease: Ownership, share: OwnedPartitions, partition_id: str) -> bool:
    now = share.mine.get(partition_id)
    return now is not None and now.epoch == lease.epoch


ENDING_SECONDS_MAX = 20
"""What does not end in time is left behind: the epoch keeps it from doing harm."""
CLAIMING_SECONDS = 1.0
"""Between two cycles while there is still something to claim: one a cycle, but soon."""


def processor_name() -> str:
    """A name of its own for each processor, by which people find where it runs."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


class BackgroundTask:
    """See Reading: a task of the event loop."""

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
    """Never the same, so that processors do not go in step."""
    return random.uniform(0.8, 1.2)  # noqa: S311 - not for secrets


async def run_processor(
    processor: Processor,
    stopping: asyncio.Event,
    cycle_seconds: float,
    jitter: Callable[[], float] = random_jitter,
) -> None:
    """Cycle until ``stopping`` is set, then stop reading and give everything up."""
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
    """Do some work now and then until ``stopping`` is set, the first time after one wait."""
    while not stopping.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), seconds * jitter())
            return
        await work()
