"""Decides which processor reads which partition. Each processor decides by itself, from the same
rows.

The algorithm follows "Event Processor Load balancing" (github.com/srnagar, gist 7ef8566c): each of
N processors claims partitions in each cycle, until it has ⌊P/N⌋ of the P partitions or one more.
It steals one partition per cycle. Of free ones it claims up to its share, but no more than it has:
a processor that starts claims one, and then sees which others have started. Two additions ensure
that the distribution becomes stable. Only P mod N processors may have one more, even while a
partition is free. Each claim starts a new epoch, by which a store distinguishes a former owner from
the present one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shared.ingestion.model import Ownership, OwnershipClaim
from shared.values.leases import is_held

CLAIMS_MAX = 100
"""The most claims per cycle. Each of them opens a receiver."""


@dataclass(frozen=True, slots=True)
class OwnershipView:
    """The hub's present partitions, and all ownership rows. If a partition has several rows, the
    one that was written last counts."""

    partition_ids: tuple[str, ...]
    ownerships: tuple[Ownership, ...] = ()


@dataclass(frozen=True, slots=True)
class BalancingTimes:
    """When an ownership is renewed and when it expires, in seconds.

    A partition whose ownership was not renewed for ``expire_seconds`` is free. An ownership is
    renewed once it is ``renew_seconds`` old; a younger one is not written again.

    A row whose time is ahead of now by more than ``expire_seconds`` was written before the store's
    clock was set back, and has not been renewed since. The partition is free for other processors,
    and its owner renews the row at once.
    """

    renew_seconds: float = 10
    expire_seconds: float = 30

    @property
    def hub_timeout_seconds(self) -> float:
        """The time limit for the other requests of a cycle: half of the time that is left for a
        late renewal."""
        return (self.expire_seconds - self.renew_seconds) / 2


@dataclass(frozen=True, slots=True)
class BalancingPlan:
    """What a processor does in this cycle."""

    keep: tuple[Ownership, ...]
    """The partitions that the store assigns to this processor. It has lost any other partition that
    it still reads."""
    renewals: tuple[OwnershipClaim, ...]
    claims: tuple[OwnershipClaim, ...]
    reason: str


Choice = Callable[[Iterable[str], str], str]
"""Chooses one of several names for a processor."""


def rendezvous(names: Iterable[str], me: str) -> str:
    """The name that ranks first for ``me``. The ranking is pseudo-random, and each processor has a
    different one.
    """
    return max(names, key=lambda n: hashlib.blake2b(f"{me}|{n}".encode()).digest())


@dataclass(frozen=True, slots=True)
class _Holdings:
    """The ownership rows, evaluated for one processor."""

    me: str
    partition_ids: tuple[str, ...]
    rows: Mapping[str, Ownership]
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The partitions of each living processor. ``me`` is included even if it has none."""

    @property
    def mine(self) -> tuple[str, ...]:
        return self.held[self.me]

    @property
    def floor(self) -> int:
        return len(self.partition_ids) // len(self.held)

    @property
    def free(self) -> list[str]:
        taken = {p for partitions in self.held.values() for p in partitions}
        return [p for p in self.partition_ids if p not in taken]

    @property
    def missing(self) -> int:
        """How many more partitions this processor should have: those up to the floor. If it has
        exactly the floor, one more if fewer than P mod N processors have one more.
        """
        if len(self.mine) < self.floor:
            return self.floor - len(self.mine)
        above = sum([len(partitions) > self.floor for partitions in self.held.values()])
        return len(self.mine) == self.floor and above < len(self.partition_ids) % len(self.held)


def plan(
    view: OwnershipView,
    me: str,
    now: datetime,
    times: BalancingTimes = BalancingTimes(),
    choose: Choice = rendezvous,
) -> BalancingPlan:
    """The plan of the processor ``me`` for this cycle. ``now`` must be by the store's clock, like
    the times of the rows.

    1. Ignore rows that have expired, were released, or are of a partition that no longer exists.
    2. Renew own rows that are due.
    3. If this processor has too few partitions: claim free ones, or else steal one from a
       processor that has the most.
    """
    holdings = _holdings(view, me, now, times)
    keep = tuple(holdings.rows[p] for p in holdings.mine)
    fresh = timedelta(seconds=times.renew_seconds)
    renewals = tuple(
        _renewal(row)
        for row in keep
        if not _is_held(row, now, times) or now - row.modified_at >= fresh
    )
    claims, reason = _claims(holdings, choose)
    return BalancingPlan(keep, renewals, claims, reason)


def _holdings(view: OwnershipView, me: str, now: datetime, times: BalancingTimes) -> _Holdings:
    expires = timedelta(seconds=times.expire_seconds)
    held: dict[str, tuple[str, ...]] = {me: ()}
    present = set(view.partition_ids)
    oldest_first = sorted(view.ownerships, key=lambda row: row.modified_at)
    rows = {row.partition_id: row for row in oldest_first}
    for row in rows.values():
        is_mine = row.owner == me and now - row.modified_at < expires
        living = row.owner and (is_mine or _is_held(row, now, times))
        if living and row.partition_id in present:
            held[row.owner] = (*held.get(row.owner, ()), row.partition_id)
    return _Holdings(me, view.partition_ids, rows, held)


def _is_held(row: Ownership, now: datetime, times: BalancingTimes) -> bool:
    expires = timedelta(seconds=times.expire_seconds)
    return is_held(row.modified_at + expires - now, expires)


def _renewal(row: Ownership) -> OwnershipClaim:
    return OwnershipClaim(row.partition_id, row.owner, row.epoch, row.version, "still at work")


def _claims(holdings: _Holdings, choose: Choice) -> tuple[tuple[OwnershipClaim, ...], str]:
    free = holdings.free
    share = f"{len(holdings.partition_ids)} partitions, {len(holdings.held)} processors, "
    share += f"{len(holdings.mine)} mine"
    if not holdings.missing:
        return (), f"{share}: enough"
    if free:
        count = min(holdings.missing, len(free), max(len(holdings.mine), 1), CLAIMS_MAX)
        claims = list[OwnershipClaim]()
        for _ in range(count):
            free.remove(taken := choose(free, holdings.me))
            claims.append(_taking(holdings, taken, "free", share))
        return tuple(claims), claims[0].reason if count == 1 else f"{share}: take {count} free ones"
    owner = _largest_owner(holdings, choose)
    if owner is None:
        return (), f"{share}: nothing to steal"
    taken = choose(holdings.held[owner], holdings.me)
    claim = _taking(holdings, taken, f"{owner} has {len(holdings.held[owner])}", share)
    return (claim,), claim.reason


def _largest_owner(holdings: _Holdings, choose: Choice) -> str | None:
    """A processor that has the most partitions, if it has at least two more than this one, or at
    least one more while this one is below the floor."""
    most = max(len(partitions) for partitions in holdings.held.values())
    least = holdings.floor + 1 if len(holdings.mine) < holdings.floor else holdings.floor + 2
    if most < least:
        return None
    return choose([o for o, held in holdings.held.items() if len(held) == most], holdings.me)


def _taking(holdings: _Holdings, partition_id: str, why: str, share: str) -> OwnershipClaim:
    row = holdings.rows.get(partition_id)
    epoch, version = (row.epoch + 1, row.version) if row else (1, None)
    reason = f"{share}: take {partition_id} ({why})"
    return OwnershipClaim(partition_id, holdings.me, epoch, version, reason)


def release(row: Ownership) -> OwnershipClaim:
    """Release a partition at once instead of letting it expire. The epoch stays in the row and is
    not used again."""
    return OwnershipClaim(row.partition_id, "", row.epoch, row.version, "given up")
