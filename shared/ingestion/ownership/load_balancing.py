"""Who reads which partition: every processor decides alone, from the same list of owners.

After "Event Processor Load balancing" (github.com/srnagar, gist 7ef8566c): one claim per cycle,
and in the end each of N processors has ⌊P/N⌋ of the P partitions or one more. Two additions make
it settle: only P mod N may have one more, also where a partition is free; and a claim starts a
new epoch, by which a store tells a late owner from the present one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any


@dataclass(frozen=True, slots=True)
class Ownership:
    """The row of one partition. ``modified_at`` is the store's clock, ``version`` its mark."""

    partition_id: str
    owner: str
    """Empty where the last owner gave it up."""
    epoch: int
    modified_at: datetime
    version: Any = None


@dataclass(frozen=True, slots=True)
class OwnershipView:
    """The hub's partitions as they are now, and all ownership rows."""

    partition_ids: tuple[str, ...]
    ownerships: tuple[Ownership, ...] = ()


@dataclass(frozen=True, slots=True)
class BalancingTimes:
    """An ownership that was not renewed for ``expire_seconds`` is free.

    It is renewed from ``renew_seconds`` on; a younger one is fresh and not written again.

    A row that is further ahead of now than ``expire_seconds`` was written before the store's clock
    was set back, and not renewed since. It is free for others, and its owner renews it at once.
    """

    renew_seconds: float = 10
    expire_seconds: float = 30

    @property
    def hub_timeout_seconds(self) -> float:
        """With what else a cycle has to ask: the time that a late renewal has left, halved."""
        return (self.expire_seconds - self.renew_seconds) / 2


@dataclass(frozen=True, slots=True)
class OwnershipClaim:
    """Write this owner and epoch if the row still has ``expected_version`` (None: no row yet)."""

    partition_id: str
    owner: str
    epoch: int
    expected_version: Any
    reason: str


@dataclass(frozen=True, slots=True)
class BalancingPlan:
    """What a processor does in this cycle."""

    keep: tuple[Ownership, ...]
    """Mine, as the store has them; whatever else I read from I have lost."""
    renewals: tuple[OwnershipClaim, ...]
    claim: OwnershipClaim | None
    reason: str


Choice = Callable[[Iterable[str], str], str]
"""Takes one of several names, for a processor."""


def rendezvous(names: Iterable[str], me: str) -> str:
    """The name that ranks first for ``me``: as good as random, different for each processor."""
    return max(names, key=lambda n: hashlib.blake2b(f"{me}|{n}".encode()).digest())


@dataclass(frozen=True, slots=True)
class _Board:
    """The view as one processor weighs it."""

    me: str
    partition_ids: tuple[str, ...]
    rows: Mapping[str, Ownership]
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The partitions of each living processor, of ``me`` also where there are none."""

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
    def wants(self) -> bool:
        """Less than the floor; or just the floor, and not all that may have one more do."""
        if len(self.mine) < self.floor:
            return True
        above = sum([len(partitions) > self.floor for partitions in self.held.values()])
        return len(self.mine) == self.floor and above < len(self.partition_ids) % len(self.held)


def plan(
    view: OwnershipView,
    me: str,
    now: datetime,
    times: BalancingTimes = BalancingTimes(),
    choose: Choice = rendezvous,
) -> BalancingPlan:
    """What ``me`` does in this cycle. ``now`` must be the store's clock, like the rows' times.

    1. Drop what expired, was given up, or is of no partition any more. 2. Renew mine that are not
    fresh. 3. If I have too few: claim a free partition, or else steal one from whom has the most.
    """
    board = _board(view, me, now, times)
    keep = tuple(board.rows[p] for p in board.mine)
    fresh = timedelta(seconds=times.renew_seconds)
    renewals = tuple(
        _renewal(row)
        for row in keep
        if _is_ahead(row, now, times) or now - row.modified_at >= fresh
    )
    claim, reason = _claim(board, choose)
    return BalancingPlan(keep, renewals, claim, reason)


def _board(view: OwnershipView, me: str, now: datetime, times: BalancingTimes) -> _Board:
    expires = timedelta(seconds=times.expire_seconds)
    held: dict[str, tuple[str, ...]] = {me: ()}
    for row in view.ownerships:
        renewed = row.owner == me or not _is_ahead(row, now, times)
        living = row.owner and renewed and now - row.modified_at < expires
        if living and row.partition_id in view.partition_ids:
            held[row.owner] = (*held.get(row.owner, ()), row.partition_id)
    rows = {row.partition_id: row for row in view.ownerships}
    return _Board(me, view.partition_ids, rows, held)


def _is_ahead(row: Ownership, now: datetime, times: BalancingTimes) -> bool:
    return row.modified_at - now > timedelta(seconds=times.expire_seconds)


def _renewal(row: Ownership) -> OwnershipClaim:
    return OwnershipClaim(row.partition_id, row.owner, row.epoch, row.version, "still at work")


def _claim(board: _Board, choose: Choice) -> tuple[OwnershipClaim | None, str]:
    free = board.free
    share = f"{len(board.partition_ids)} partitions, {len(board.held)} processors, "
    share += f"{len(board.mine)} mine"
    if not board.wants:
        return None, f"{share}: enough"
    if free:
        return _taking(board, choose(free, board.me), "free", share)
    owner = _richest(board, choose)
    if owner is None:
        return None, f"{share}: nothing to steal"
    taken = choose(board.held[owner], board.me)
    return _taking(board, taken, f"{owner} has {len(board.held[owner])}", share)


def _richest(board: _Board, choose: Choice) -> str | None:
    """Who has the most, if that is two more than I have, or one more while I am under the floor."""
    most = max(len(partitions) for partitions in board.held.values())
    least = board.floor + 1 if len(board.mine) < board.floor else board.floor + 2
    if most < least:
        return None
    return choose([o for o, held in board.held.items() if len(held) == most], board.me)


def _taking(board: _Board, partition_id: str, why: str, share: str) -> tuple[OwnershipClaim, str]:
    row = board.rows.get(partition_id)
    epoch, version = (row.epoch + 1, row.version) if row else (1, None)
    reason = f"{share}: take {partition_id} ({why})"
    return OwnershipClaim(partition_id, board.me, epoch, version, reason), reason


def release(row: Ownership) -> OwnershipClaim:
    """Give a partition up at once instead of letting it expire; the epoch stays and is over."""
    return OwnershipClaim(row.partition_id, "", row.epoch, row.version, "given up")


def applied(claim: OwnershipClaim, row: Ownership | None) -> bool:
    """Whether a claim whose reply was lost stands, by the row as it is now.

    A claim that failed and was not found to stand is no claim.
    """
    return row is not None and (row.owner, row.epoch) == (claim.owner, claim.epoch)
