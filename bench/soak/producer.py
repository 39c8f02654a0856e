"""Produces the events of the soak test: numbered within their key, a few of them poison."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient

from bench.soak.handler import POISON

KEYS = 32
BATCH = 50
POISON_RATE = 0.002


@dataclass(slots=True)
class Producer:
    """Sends batches with one partition key each, and records what it sent."""

    client: EventHubProducerClient
    chance: random.Random
    good: set[str] = field(default_factory=set)
    poison: int = 0
    _next: Counter[str] = field(default_factory=Counter)

    @property
    def sent(self) -> int:
        return len(self.good) + self.poison

    async def send(self, count: int) -> None:
        while count > 0:
            size = min(BATCH, count)
            count -= size
            key = f"key{self.chance.randrange(KEYS)}"
            batch = await self.client.create_batch(partition_key=key)
            for _ in range(size):
                batch.add(EventData(self._body(key)))
            await self.client.send_batch(batch)

    def _body(self, key: str) -> bytes:
        name = f"{key}:{self._next[key]}"
        self._next[key] += 1
        if self.chance.random() < POISON_RATE:
            self.poison += 1
            return POISON + name.encode()
        self.good.add(name)
        return name.encode()
