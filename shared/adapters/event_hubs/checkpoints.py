"""A checkpoint store for azure-eventhub's own EventHubConsumerClient in which no zombie writes.

The client's balancing is its own; what this store adds: ownership and checkpoint are one row, whose
epoch grows with each change of owner. A store remembers the epochs that it claimed, so a checkpoint
of who lost the partition meanwhile is refused, and none ever goes back. A claim that fails is no
claim. Give each client a store of its own, for a store is who it claims for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

from azure.eventhub.aio import CheckpointStore
from azure.eventhub.exceptions import OwnershipLostError

from shared.ingestion.errors import StoreUnavailable
from shared.values.redaction import redacting

RACES_MAX = 10
"""A row is written by its owner's renewals and checkpoints, and by who steals it: few at a time."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group of a hub. Their names do not tell capitals from small letters."""

    namespace: str
    hub: str
    consumer_group: str


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """Who owns a partition, and how far it was read. ``version`` is the store's mark of the row."""

    partition_id: str
    owner: str = ""
    epoch: int = 0
    claims: int = 0
    """Grows with each claim, renewals too, but with no checkpoint: what the client compares by."""
    sequence: int | None = None
    offset: str | None = None
    modified_at: datetime | None = None
    version: Any = None

    @property
    def etag(self) -> str | None:
        return f"{self.epoch}.{self.claims}" if self.claims else None


@dataclass(frozen=True, slots=True)
class SeenRows:
    rows: tuple[PartitionRow, ...]
    read_at: datetime


class RowChanged(Exception):
    """The row is not of the version that it is to replace."""


class PartitionRows(Protocol):
    """The rows of all groups, by compare-and-swap. All raise StoreUnavailable."""

    async def rows(self, group: Group) -> SeenRows: ...

    async def row(self, group: Group, partition_id: str) -> PartitionRow | None: ...

    async def write(self, group: Group, row: PartitionRow) -> PartitionRow:
        """Put the row in the place of that of its version (None: there is none), with a new one.

        Raises RowChanged.
        """
        ...


@redacting
class FencedCheckpointStore(CheckpointStore):
    """See azure.eventhub.aio.CheckpointStore.

    The client measures by its own clock how long ago an ownership was written; so it is told, on
    that clock (``local_time``, seconds), the age that the store's clock gives.
    """

    def __init__(
        self,
        rows: PartitionRows,
        local_time: Callable[[], float] = time.time,  # noqa: TID251  what the client looks at
    ) -> None:
        self._rows = rows
        self._local_time = local_time
        self._seen: dict[tuple[Group, str], PartitionRow] = {}
        self._mine: dict[tuple[Group, str], PartitionRow] = {}

    async def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **_: Any
    ) -> Sequence[dict[str, Any]]:
        group = _group(fully_qualified_namespace, eventhub_name, consumer_group)
        seen = await self._list(group)
        names = _names(fully_qualified_namespace, eventhub_name, consumer_group)
        now = self._local_time()
        return [
            {
                **names,
                "partition_id": row.partition_id,
                "owner_id": row.owner,
                "etag": row.etag,
                "last_modified_time": now - _age_seconds(row, seen.read_at),
            }
            for row in seen.rows
            if row.claims
        ]

    async def claim_ownership(
        self, ownership_list: Iterable[Mapping[str, Any]], **_: Any
    ) -> Sequence[dict[str, Any]]:
        claimed = await asyncio.gather(*[self._claim(each) for each in ownership_list])
        return [each for each in claimed if each is not None]

    async def update_checkpoint(self, checkpoint: Mapping[str, Any], **_: Any) -> None:
        """Move the checkpoint on; nothing is done where it is as far already.

        Raises OwnershipLostError where another owns the partition, StoreUnavailable.
        """
        key = _key(checkpoint)
        sequence, offset = int(checkpoint["sequence_number"]), str(checkpoint["offset"])
        row = self._seen.get(key)
        if row is None or not self._owns(key, row):  # what was seen last may be of long ago
            row = await self._read(key)
        for _attempt in range(RACES_MAX):
            if not self._owns(key, row):
                owner = row.owner or "nobody"
                raise OwnershipLostError(f"partition {row.partition_id} is owned by {owner}")
            if row.sequence is not None and row.sequence >= sequence:
                return
            try:
                await self._write(key, replace(row, sequence=sequence, offset=offset))
            except RowChanged:
                row = await self._read(key)
            else:
                return
        raise StoreUnavailable(f"partition {key[1]}: {RACES_MAX} races lost in a row")

    async def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **_: Any
    ) -> Sequence[dict[str, Any]]:
        group = _group(fully_qualified_namespace, eventhub_name, consumer_group)
        names = _names(fully_qualified_namespace, eventhub_name, consumer_group)
        return [
            {
                **names,
                "partition_id": row.partition_id,
                "sequence_number": row.sequence,
                "offset": row.offset,
            }
            for row in (await self._list(group)).rows
            if row.sequence is not None
        ]

    async def _list(self, group: Group) -> SeenRows:
        seen = await self._rows.rows(group)
        self._seen.update({(group, row.partition_id): row for row in seen.rows})
        return seen

    async def _claim(self, ownership: Mapping[str, Any]) -> dict[str, Any] | None:
        """The ownership as it is now; None where another was first, or nobody knows."""
        key, owner = _key(ownership), ownership["owner_id"]
        try:
            written = await self._claimed(key, owner, ownership.get("etag"))
        except StoreUnavailable as error:
            log.warning("partition %s was not claimed: %s", key[1], error)
            return None
        if written is None:
            self._mine.pop(key, None)
            return None
        self._mine[key] = written
        return {
            **ownership,
            "etag": written.etag,
            "last_modified_time": self._local_time(),
        }

    async def _claimed(
        self, key: tuple[Group, str], owner: str, etag: str | None
    ) -> PartitionRow | None:
        row = self._seen.get(key) or await self._read(key)
        for _attempt in range(RACES_MAX):
            if row.etag == etag:
                epoch = row.epoch + (row.owner != owner or not row.claims)
                claim = replace(row, owner=owner, epoch=epoch, claims=row.claims + 1)
                try:
                    return await self._write(key, claim)
                except RowChanged:  # maybe by a checkpoint alone
                    pass
            row, before = await self._read(key), row
            if row == before:
                return None
        return None

    def _owns(self, key: tuple[Group, str], row: PartitionRow) -> bool:
        """Without a claim of ours nobody else may have one: a reader of one fixed partition."""
        mine = self._mine.get(key)
        return (row.owner, row.epoch) == (mine.owner, mine.epoch) if mine else not row.owner

    async def _read(self, key: tuple[Group, str]) -> PartitionRow:
        row = await self._rows.row(*key) or PartitionRow(key[1])
        self._seen[key] = row
        return row

    async def _write(self, key: tuple[Group, str], row: PartitionRow) -> PartitionRow:
        written = await self._rows.write(key[0], row)
        self._seen[key] = written
        return written


def _age_seconds(row: PartitionRow, read_at: datetime) -> float:
    return (read_at - row.modified_at).total_seconds() if row.modified_at else 0


def _group(namespace: str, hub: str, consumer_group: str) -> Group:
    return Group(namespace.lower(), hub.lower(), consumer_group.lower())


def _names(namespace: str, hub: str, consumer_group: str) -> dict[str, Any]:
    return {
        "fully_qualified_namespace": namespace,
        "eventhub_name": hub,
        "consumer_group": consumer_group,
    }


def _key(named: Mapping[str, Any]) -> tuple[Group, str]:
    group = _group(
        named["fully_qualified_namespace"], named["eventhub_name"], named["consumer_group"]
    )
    return group, str(named["partition_id"])
