"""Checks the stores at the end: nothing lost, nothing duplicated, nothing out of order."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import cast

from azure.data.tables import TableEntity
from azure.data.tables.aio import TableClient
from azure.storage.queue.aio import QueueClient

from bench.soak.handler import SENT_EVERY

COLLECT_SECONDS = 2
TRANSACTION_ROWS_MAX = 100


@dataclass(slots=True)
class Account:
    """All rows of a hub. ``effects`` are (partition, sequence, time of the commit, value)."""

    effects: list[tuple[str, int, datetime, str]] = field(default_factory=list)
    dead_letters: int = 0
    gaps: int = 0
    unsent: int = 0
    queued: Counter[str] = field(default_factory=Counter)

    def verdict(self, good: set[str], poison: int) -> dict[str, int]:
        """Counts that must all be 0."""
        seen = Counter(value for _, _, _, value in self.effects)
        expected = {name for name, _ in self._expected_ids()}
        return {
            "lost": len(good - set(seen)) + abs(poison - self.dead_letters),
            "unknown": len(set(seen) - good),
            "duplicates": sum(count - 1 for count in seen.values()),
            "gaps": self.gaps,
            "out_of_order": sum(1 for _ in _disorder(self.effects)),
            "unsent": self.unsent,
            "messages_lost": len(expected - set(self.queued)),
            "messages_unknown": len(set(self.queued) - expected),
        }

    @property
    def sent_again(self) -> int:
        return sum(count - 1 for count in self.queued.values())

    def _expected_ids(self) -> Iterable[tuple[str, int]]:
        for partition, sequence, _, _ in self.effects:
            if sequence % SENT_EVERY == 0:
                yield f"metrics:{partition}:{sequence}", sequence


@dataclass(slots=True)
class Collector:
    """Removes rows from the table ``Ingestion`` while it grows, because the emulator scans the
    whole table at each call. An event that is handled again later is then seen twice."""

    table: TableClient
    account: Account
    stopping: bool = False
    """Set to stop the collector. Cancelling it would leave unknown which rows it deleted."""

    async def run(self) -> None:
        while not self.stopping:
            await self.collect()
            await asyncio.sleep(COLLECT_SECONDS)

    async def collect(self) -> None:
        """Take all current effects. Each is counted once its deletion is confirmed."""
        rows = defaultdict(list)
        async for row in self.table.query_entities("RowKey ge 'effect|' and RowKey lt 'effect}'"):
            rows[row["PartitionKey"]].append(row)
        for some in rows.values():
            for start in range(0, len(some), TRANSACTION_ROWS_MAX):
                part = some[start : start + TRANSACTION_ROWS_MAX]
                await self.table.submit_transaction([("delete", row) for row in part])
                self.account.effects += [_effect(row) for row in part]

    async def finish(self, connection_string: str) -> None:
        """Count what is left in the table and in the queue ``metrics``."""
        await self.collect()
        async for row in self.table.list_entities(select=["RowKey"]):
            kind = row["RowKey"].partition("|")[0]
            self.account.dead_letters += kind == "dead"
            self.account.gaps += kind == "gap"
            self.account.unsent += kind == "outbox"
        async with QueueClient.from_connection_string(connection_string, "metrics") as queue:
            messages = queue.receive_messages(messages_per_page=32, visibility_timeout=3600)
            async for message in messages:
                self.account.queued[json.loads(message.content)["id"]] += 1


def _effect(row: TableEntity) -> tuple[str, int, datetime, str]:
    partition = row["PartitionKey"].rpartition("|")[2]
    committed_at = cast("datetime", row.metadata["timestamp"]).astimezone(UTC)
    return partition, int(row["RowKey"].rpartition("|")[2]), committed_at, row["value"]


def _disorder(effects: Sequence[tuple[str, int, datetime, str]]) -> Iterable[str]:
    """For each key, numbers must grow with the sequence and must be committed in that order.

    Times are compared by the millisecond, because Azurite makes up the digits after it.
    """
    by_key: dict[str, list[tuple[int, datetime, int]]] = defaultdict(list)
    for _, sequence, committed_at, value in effects:
        key, _, number = value.partition(":")
        by_key[key].append((sequence, committed_at, int(number)))
    for key, rows in by_key.items():
        for before, after in pairwise(sorted(rows)):
            if after[2] <= before[2] or _milliseconds(after[1]) < _milliseconds(before[1]):
                yield f"{key}:{after[2]}"


def _milliseconds(time: datetime) -> int:
    return int(time.timestamp()) * 1000 + time.microsecond // 1000
