"""What a sender makes of each answer, and what it refuses before it sends anything."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable

import pytest

from shared.adapters.memory.messaging import Fault, MemoryLink, MemoryQueue
from shared.adapters.service_bus.encoder import encode_all
from shared.messaging.errors import LinkFailed, MessagesTooLarge, SendingStopped, UnsendableMessage
from shared.messaging.model import Batch, BatchLimits, Message, Order
from shared.messaging.packing import cargo_of
from shared.messaging.send import BatchSender
from shared.messaging.sending import Outcome, RetryBudget, SizeExceeded, advance, begin

LIMIT = 4096


class Bench:
    """A sender, its broker, and the pauses that it made."""

    def __init__(
        self,
        faults: Iterable[Fault] = (),
        queue: MemoryQueue | None = None,
        *,
        tells_headers: bool = False,
        busy_seconds: float | None = 2.0,
        announced: Iterable[int] = (),
    ) -> None:
        self.queue = queue or MemoryQueue(LIMIT)
        limits = iter(announced)
        self.link = MemoryLink(
            self.queue,
            faults,
            lambda: next(limits, LIMIT),
            tells_headers=tells_headers,
            busy_seconds=busy_seconds,
        )
        self.pauses: list[float] = []
        self.sender = BatchSender(
            self.link, self.sleep, lambda: "call", RetryBudget(failures_max=4)
        )

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    @property
    def bodies(self) -> list[object]:
        return [message.body for message in self.queue.messages]


def messages(count: int, size: int = 500) -> list[Message]:
    return [Message(bytes([place]) * size) for place in range(count)]


async def test_messages_without_an_id_get_one_so_that_they_can_be_sent_again() -> None:
    bench = Bench([Fault.DROP_AFTER])
    result = await bench.sender.send([*messages(2), Message(b"", message_id="mine")])
    ids = [message.message_id for message in bench.queue.messages]
    assert ids == ["call-0", "call-1", "mine"]
    assert (result.sent, result.retries, result.resent_unknown) == (3, 1, 3)


async def test_a_busy_service_is_left_alone_for_as_long_as_it_says() -> None:
    bench = Bench([Fault.BUSY, Fault.BUSY], busy_seconds=7.5)
    result = await bench.sender.send(messages(1))
    assert (bench.pauses, result.retries, result.resent_unknown) == ([7.5, 7.5], 2, 0)


@pytest.mark.parametrize("seconds", [3600.0, 1e12, math.inf])
async def test_a_busy_service_is_not_left_alone_for_longer_than_a_minute(seconds: float) -> None:
    bench = Bench([Fault.BUSY], busy_seconds=seconds)
    await bench.sender.send(messages(1))
    assert bench.pauses == [60]


async def test_a_busy_service_that_does_not_say_gets_ten_seconds() -> None:
    bench = Bench([Fault.BUSY], busy_seconds=None)
    await bench.sender.send(messages(1))
    assert bench.pauses == [10]


async def test_pauses_grow_while_failures_go_on_and_start_anew_after_success() -> None:
    down, up = Fault.DROP_BEFORE, Fault.NONE
    bench = Bench([down, down, down, up, down], queue=MemoryQueue(LIMIT))
    await bench.sender.send(messages(14))
    assert bench.pauses == [0.5, 1, 2, 0.5]
    assert bench.link.opened == 5


async def test_a_refused_batch_is_divided_and_what_was_sent_is_not_sent_again() -> None:
    bench = Bench(queue=MemoryQueue(3000))
    result = await bench.sender.send(messages(40))
    assert bench.bodies == [message.body for message in messages(40)]
    assert sum(len(batch.parcels) for batch in bench.queue.accepted) == 40
    assert bench.sender.limits is not None
    assert bench.sender.limits.batch_bytes <= 3800
    assert (await bench.sender.send(messages(3))).retries == 0
    assert 0 < result.retries < 8


@pytest.mark.parametrize("order", Order)
async def test_a_limit_learned_from_small_messages_refuses_no_large_one(order: Order) -> None:
    bench = Bench(queue=MemoryQueue(LIMIT, counted_extra=300))
    load = [*messages(40, 10), *messages(1, 3600), *messages(40, 10)]
    result = await bench.sender.send(load, order)
    assert (result.sent, result.refused) == (81, ())
    assert bench.sender.limits is not None
    assert bench.sender.limits.batch_bytes < 3600
    later = [Message(bytes(3600), message_id="later")]
    assert (await bench.sender.send(later, order)).retries == 0


def test_a_message_that_others_headers_would_make_too_large_is_tried_alone() -> None:
    load = encode_all([*messages(2, 10), *messages(1, LIMIT - 60)], 0)
    sending = begin(cargo_of(load), BatchLimits(LIMIT), Order.KEPT)
    wiser = advance(sending, SizeExceeded(header_bytes=54), RetryBudget())
    assert ([list(chunk.positions) for chunk in wiser.chunks], wiser.refused) == ([[0, 1], [2]], ())


class FussyQueue(MemoryQueue):
    """Finds every batch with one certain message too large."""

    def too_large(self, batch: Batch) -> bool:
        return any(parcel.message.message_id == "bad" for parcel in batch.parcels)


@pytest.mark.parametrize("place", [0, 1, 150, 299])
async def test_what_one_refused_message_taught_is_forgotten(place: int) -> None:
    bench = Bench(queue=FussyQueue())
    load = messages(100, 500) * 3
    load[place] = Message(b"bad", message_id="bad")
    result = await bench.sender.send(load)
    assert (result.sent, result.refused) == (299, (f"#{place} (bad)",))
    assert bench.sender.limits == BatchLimits(LIMIT)
    assert result.batches <= math.ceil(300 / 7) + 5


async def test_larger_headers_are_remembered_before_the_limit_is_lowered() -> None:
    bench = Bench(queue=MemoryQueue(LIMIT, counted_extra=54), tells_headers=True)
    result = await bench.sender.send(messages(100, 10))
    assert bench.sender.limits == BatchLimits(LIMIT, extra_bytes=54)
    assert result.retries == 1


async def test_a_message_that_no_batch_can_take_stops_all_before_anything_is_sent() -> None:
    bench = Bench()
    load = [*messages(2), Message(b"x" * LIMIT, message_id="big"), Message(b"y" * 9999)]
    with pytest.raises(MessagesTooLarge, match=r"2 message.*4096 bytes: #2 \(big\), #3 \(call-3\)"):
        await bench.sender.send(load)
    assert bench.queue.accepted == []


async def test_a_message_that_only_the_service_finds_too_large_is_named_in_the_result() -> None:
    bench = Bench(queue=MemoryQueue(2000))
    load = [*messages(2), Message(b"x" * 3000, message_id="big"), *messages(2)]
    load = [m._replace(message_id=f"m{n}") if n != 2 else m for n, m in enumerate(load)]
    result = await bench.sender.send(load)
    assert (result.sent, result.refused) == (4, ("#2 (big)",))
    assert [m.message_id for m in bench.queue.messages] == ["m0", "m1", "m3", "m4"]


async def test_messages_that_amqp_cannot_carry_are_named_together() -> None:
    bench = Bench()
    load = [Message("\ud800"), Message(b""), Message(b"", message_id="i" * 129)]
    with pytest.raises(UnsendableMessage, match=r"#0 \(call-0\).*surrogates.*#2 .*129 characters"):
        await bench.sender.send(load)
    assert bench.link.opened == 0


async def test_too_many_failures_in_a_row_tell_what_is_left() -> None:
    bench = Bench([Fault.NONE, *[Fault.DROP_AFTER] * 4])
    with pytest.raises(SendingStopped, match=r"7 message.*disconnected after") as stopped:
        await bench.sender.send(messages(14))
    assert stopped.value.result.sent == 7
    assert [m.message_id for m in stopped.value.unsent] == [f"call-{n}" for n in range(7, 14)]
    await bench.sender.send(stopped.value.unsent)
    assert len(bench.bodies) == 14


async def test_a_link_that_opens_with_a_smaller_limit_divides_what_is_left() -> None:
    bench = Bench([Fault.DROP_BEFORE], announced=[LIMIT, 1200])
    await bench.sender.send(messages(14))
    assert [len(batch.parcels) for batch in bench.queue.accepted] == [2] * 7


async def test_a_link_that_opens_with_a_larger_limit_takes_what_it_would_not_before() -> None:
    bench = Bench([Fault.DROP_BEFORE], announced=[LIMIT, 2 * LIMIT], queue=MemoryQueue(2 * LIMIT))
    await bench.sender.send(messages(14))
    await bench.sender.send([Message(bytes(LIMIT), message_id="large")])
    assert [len(batch.parcels) for batch in bench.queue.accepted] == [14, 1]


class DeadLink(MemoryLink):
    """Opens after some failures, and sends nothing."""

    def __init__(self, failures: int) -> None:
        super().__init__(MemoryQueue())
        self.failures = failures

    async def open(self) -> int:
        if self.opened < self.failures:
            self.opened += 1
            raise ConnectionError("no route")
        return await super().open()

    async def send(self, _batch: Batch) -> Outcome:
        raise LinkFailed("queue q does not exist")


async def test_a_link_that_does_not_open_is_tried_with_patience() -> None:
    bench = Bench()
    bench.sender.link = DeadLink(9)
    with pytest.raises(LinkFailed, match="no route"):
        await bench.sender.send(messages(1))
    assert bench.pauses == [0.5, 1, 2]


async def test_a_link_that_fails_for_good_tells_what_is_left() -> None:
    bench = Bench()
    bench.sender.link = DeadLink(0)
    with pytest.raises(SendingStopped, match="queue q does not exist") as stopped:
        await bench.sender.send(messages(3), Order.FREE)
    assert len(stopped.value.unsent) == 3


class NarrowLink(MemoryLink):
    """Takes its time, and one batch at a time."""

    busy = False

    async def send(self, batch: Batch) -> Outcome:
        assert not self.busy
        self.busy = True
        await asyncio.sleep(0)
        self.busy = False
        return await super().send(batch)


async def test_calls_at_the_same_time_take_turns() -> None:
    bench = Bench()
    bench.sender.link = NarrowLink(bench.queue)
    loads = [
        [
            message._replace(message_id=f"{load}-{place}")
            for place, message in enumerate(messages(20))
        ]
        for load in range(5)
    ]
    results = await asyncio.gather(*[bench.sender.send(load) for load in loads])
    assert [result.sent for result in results] == [20] * 5
    assert len(bench.queue.messages) == 100


async def test_nothing_to_send_is_sent_in_no_batch() -> None:
    assert (await Bench().sender.send([])).batches == 0
