"""Decides which processor reads which partition. Each decides by itself, from the same rows, after
"Event Processor Load balancing" (github.com/srnagar, gist 7ef8566c): each of N processors claims
partitions until it has ⌊P/N⌋ of the P partitions or one more. In a cycle it steals one, or claims
free ones up to its share, but no more than it has. Two additions: only P mod N processors may have
one more, and each claim starts a new epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from shared.ingestion.model import Ownership
from shared.values.leases import is_held

CLAIMS_MAX = 100
"""The most claims per cycle. Each of them opens a receiver."""


@dataclass(frozen=True, slots=True)
class OwnershipView:
    """The hub's partitions, and all rows. Of several rows of a partition, the newest counts."""

    partition_ids: tuple[str, ...]
    ownerships: tuple[Ownership, ...] = ()


@dataclass(frozen=True, slots=True)
class BalancingTimes:
    """In seconds. A row whose time is more than ``expire_seconds`` ahead was written before the
    store's clock was set back: its partition is free, and its owner renews it at once."""

    renew_seconds: float = 10
    expire_seconds: float = 30

    @property
    def hub_timeout_seconds(self) -> float:
        """The time limit for other requests of a cycle: half of what is left for a late renewal."""
        return (self.expire_seconds - self.renew_seconds) / 2


@dataclass(frozen=True, slots=True)
class BalancingPlan:
    """What a processor does in this cycle."""

    keep: tuple[Ownership, ...]
    """The partitions that the store assigns to this processor. Any other is lost."""
    renewals: tuple[Ownership, ...]
    claims: tuple[Ownership, ...]
    reason: str


Choice = Callable[[Iterable[str], str], str]
"""Chooses one of several names for a processor."""


def rendezvous(names: Iterable[str], me: str) -> str:
    """The name that ranks first for ``me``, in a pseudo-random ranking of its own."""
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
        """How many more partitions this processor should have: those up to the floor, then one more
        if fewer than P mod N processors have one more."""
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
    """The plan of the processor ``me`` for this cycle; ``now`` is the store's time. Own rows that
    are due are renewed. With too few partitions, free ones are claimed, or else one is stolen."""
    holdings = _holdings(view, me, now, times)
    keep = tuple(holdings.rows[p] for p in holdings.mine)
    fresh = timedelta(seconds=times.renew_seconds)
    renewals = tuple(
        replace(row, reason="still at work")
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


def _claims(holdings: _Holdings, choose: Choice) -> tuple[tuple[Ownership, ...], str]:
    free = holdings.free
    share = f"{len(holdings.partition_ids)} partitions, {len(holdings.held)} processors, "
    share += f"{len(holdings.mine)} mine"
    if not holdings.missing:
        return (), f"{share}: enough"
    if free:
        count = min(holdings.missing, len(free), max(len(holdings.mine), 1), CLAIMS_MAX)
        claims = list[Ownership]()
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
    """Who has the most partitions, if two more than this one, or one more if this is below the
    floor."""
    most = max(len(partitions) for partitions in holdings.held.values())
    least = holdings.floor + 1 if len(holdings.mine) < holdings.floor else holdings.floor + 2
    if most < least:
        return None
    return choose([o for o, held in holdings.held.items() if len(held) == most], holdings.me)


def _taking(holdings: _Holdings, partition_id: str, why: str, share: str) -> Ownership:
    row = holdings.rows.get(partition_id)
    epoch, version = (row.epoch + 1, row.version) if row else (1, None)
    reason = f"{share}: take {partition_id} ({why})"
    return Ownership(partition_id, holdings.me, epoch, version, reason)


def release(row: Ownership) -> Ownership:
    """Release a partition at once. The epoch stays in the row and is not used again."""
    return replace(row, owner="", reason="given up")
