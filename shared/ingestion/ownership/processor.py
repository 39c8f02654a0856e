"""A processor: balance, and read exactly the partitions that are mine, each under its epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from shared.ingestion.errors import HubUnavailable, StoreUnavailable
from shared.ingestion.ownership.balance import Balancer, Share
from shared.ingestion.ownership.balancing import Ownership


class PartitionReading(Protocol):
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
class _Held:
    lease: Ownership
    until: float
    reading: PartitionReading


@dataclass(slots=True)
class Processor:
    """``start`` begins to read in the background. ``elapsed`` counts seconds and never goes back;
    it may start anywhere. ``told`` hears why the share is as it is, ``failed`` why it is not known,
    and ``given_up`` why a partition is not read any more."""

    balancer: Balancer
    start: Callable[[Ownership], PartitionReading]
    elapsed: Callable[[], float]
    told: Callable[[str], None] = lambda _reason: None
    failed: Callable[[Exception], None] = lambda _error: None
    given_up: Callable[[Ownership, BaseException], None] = lambda _lease, _error: None
    held: dict[str, _Held] = field(default_factory=dict)

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
            self.failed(error)
            await self._stop([p for p, held in self.held.items() if asked_at >= held.until])
            return False
        self.told(share.reason)
        await self._stop([p for p, held in self.held.items() if not _same(held.lease, share, p)])
        for partition_id, lease in share.mine.items():
            known = self.held.get(partition_id)
            reading = known.reading if known else self.start(lease)
            self.held[partition_id] = _Held(
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
            self.given_up(lease, errors[lease.partition_id])
        await self.balancer.give_up(leases)

    async def _stop(self, partition_ids: Iterable[str]) -> None:
        stopping = [self.held.pop(partition_id).reading for partition_id in partition_ids]
        for reading in stopping:
            reading.cancel()
        for reading in stopping:
            await reading.ended()

    def _seconds_left(self, share: Share, lease: Ownership) -> float:
        """Of a lease that was written by a clock since set back: not more than of a new one."""
        lasts = self.balancer.times.expire_seconds
        age = (share.read_at - lease.modified_at).total_seconds()
        return min(lasts - age, lasts)


def _same(lease: Ownership, share: Share, partition_id: str) -> bool:
    now = share.mine.get(partition_id)
    return now is not None and now.epoch == lease.epoch
