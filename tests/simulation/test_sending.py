"""Simulates a broker that misbehaves: all messages arrive once, in order, in batches that it
accepts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from local.twins.messaging import Fault, MemoryLink, MemoryQueue
from shared.messaging.batch_sender import BatchSender
from shared.messaging.model import Progress
from shared.messaging.send_state import RetryBudget
from shared.values.messages import Message, Order, Result
from tests.simulation.seeds import seeds

ROOM_BESIDE_BODY = 200
"""The most bytes that a message alone in a batch takes besides its body."""

FAULTS = [fault for fault in Fault if fault not in {Fault.NONE, Fault.REFUSED}]


@dataclass
class World:
    """One seed's messages, broker and sender."""

    randomly: random.Random
    pauses: list[float] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)

    def __post_init__(self) -> None:
        choose = self.randomly.choice
        self.announced = choose([4096, 16_384, 65_536])
        self.queue = MemoryQueue(
            batch_bytes=int(self.announced * choose([1, 1, 0.9, 0.5])),
            batch_messages=40,
            counted_extra=choose([0, 0, 54]),
        )
        self.fault_rate = choose([0, 0.1, 0.4])
        self.spread = choose([1, 1.5])
        link = MemoryLink(
            self.queue,
            self.faults(),
            lambda: self.announced,
            busy_seconds=choose([None, 2.0]),
        )
        names = iter(f"call{n}" for n in range(100))
        budget = RetryBudget(failures_max=40)
        self.sender = BatchSender(link, self.sleep, lambda: next(names), budget)

    def faults(self) -> Iterator[Fault]:
        while True:
            bad = self.randomly.random() < self.fault_rate
            yield self.randomly.choice(FAULTS) if bad else Fault.NONE

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def messages(self, count: int) -> list[Message]:
        return [self._message(place) for place in range(count)]

    def _message(self, place: int) -> Message:
        largest = self.queue.batch_bytes - ROOM_BESIDE_BODY
        size = int(min(largest, self.randomly.lognormvariate(5, self.spread)))
        return Message(
            self.randomly.randbytes(size),
            session_id=self.randomly.choice([None, "red", "green"]),
            application_properties={"place": place},
        )

    async def send(self, messages: list[Message], order: Order) -> Result:
        return await self.sender.send(messages, order, self.progress.append)


def places(messages: list[Message]) -> list[object]:
    return [(message.application_properties or {})["place"] for message in messages]


def check_seed(seed: int) -> None:
    for order in Order:
        check_order(seed, order)


def check_order(seed: int, order: Order) -> None:
    world = World(random.Random(seed))
    messages = world.messages(world.randomly.choice([1, 30, 200]))
    result = asyncio.run(world.send(messages, order))
    arrived = world.queue.messages
    assert sorted(places(arrived), key=str) == sorted(places(messages), key=str), seed
    if order is Order.KEPT:
        assert places(arrived) == places(messages), seed
    if order is Order.KEPT_PER_KEY:
        for key in (None, "red", "green"):
            own = [m for m in arrived if m.session_id == key]
            assert places(own) == places([m for m in messages if m.session_id == key]), seed
    check_result(world, messages, result, seed)


def check_result(world: World, messages: list[Message], result: Result, seed: int) -> None:
    assert (result.sent, result.refused) == (len(messages), ()), seed
    assert world.progress[-1] == Progress(len(messages), len(messages), result.batches), seed
    for batch in world.queue.accepted:
        assert not world.queue.too_large(batch)
        keys = {item.message.batch_key for item in batch.encoded}
        assert len(keys) == 1, seed
    if world.fault_rate == 0:
        assert len(world.queue.accepted) == result.batches, seed
        assert sum(batch.wire_bytes for batch in world.queue.accepted) == result.bytes, seed
        assert result.resent_unknown == 0, seed
        assert world.pauses == [], seed


@pytest.mark.parametrize("seed", seeds(60))
def test_each_message_arrives_once_and_in_order_despite_faults(seed: int) -> None:
    check_seed(seed)
