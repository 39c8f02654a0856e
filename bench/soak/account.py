"""What the stores say in the end: nothing lost, nothing twice, nothing out of order."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import cast

from azure.data.tables.aio import TableClient
from azure.storage.queue.aio import QueueClient

from bench.soak.handler import SENT_EVERY
from shared.adapters.table_values import time_of

PREFIXES = ("effect|", "dead|", "gap|", "outbox|")


@dataclass(slots=True)
class Account:
    """All rows of a hub. ``effects`` are (partition, sequence, time of the commit, value)."""

    effects: list[tuple[str, int, datetime, str]] = field(default_factory=list)
    dead_letters: int = 0
    gaps: int = 0
    unsent: int = 0
    queued: Counter[str] = field(default_factory=Counter)

    def verdict(self, good: set[str], poison: int) -> dict[str, int]:
        """All of these must be 0, but for ``sent_again``: an id that is known can be dropped."""
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


async def read_account(connection_string: str) -> Account:
    """Read the table ``Ingestion`` and the queue ``metrics`` to their ends."""
    account = Account()
    async with TableClient.from_connection_string(connection_string, "Ingestion") as table:
        async for row in table.list_entities():
            kind, _, rest = row["RowKey"].partition("|")
            if kind == "effect":
                partition = row["PartitionKey"].rpartition("|")[2]
                committed_at = time_of(cast("datetime", row.metadata["timestamp"]))
                account.effects.append((partition, int(rest), committed_at, row["value"]))
            account.dead_letters += kind == "dead"
            account.gaps += kind == "gap"
            account.unsent += kind == "outbox"
    async with QueueClient.from_connection_string(connection_string, "metrics") as queue:
        async for message in queue.receive_messages(messages_per_page=32, visibility_timeout=3600):
            account.queued[json.loads(message.content)["id"]] += 1
    return account


def _disorder(effects: Sequence[tuple[str, int, datetime, str]]) -> Iterable[str]:
    """Of each key the numbers grow with the sequence, and were committed in that order.

    By the millisecond: Azurite makes up the digits behind it.
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
