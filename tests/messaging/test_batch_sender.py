"""The sender's reaction to each reply of the link, and the messages that it refuses before
sending."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest

from local.twins.messaging import Fault, MemoryLink, MemoryQueue
from shared.messaging.batch_sender import BatchSender
from shared.messaging.encoder import encode_all
from shared.messaging.model import Batch, BatchLimits, SendingStopped, UnsendableMessage
from shared.messaging.send_state import (
    Accepted,
    BatchRefused,
    Disconnected,
    Outcome,
    RetryBudget,
    advance,
    begin,
    exhausted,
)
from shared.values.messages import (
    LinkFailed,
    Message,
    MessagesRefused,
    Order,
    Result,
    check_all_sent,
)

LIMIT = 4096


class SenderRig:
    """A sender, its broker, and the pauses that it made."""

    def __init__(
        self,
        faults: Iterable[Fault] = (),
        queue: MemoryQueue | None = None,
        *,
        busy_seconds: float | None = 2.0,
        announced: Iterable[int] = (),
    ) -> None:
        self.queue = queue or MemoryQueue(LIMIT)
        limits = iter(announced)
        self.link = MemoryLink(
            self.queue,
            faults,
            lambda: next(limits, LIMIT),
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


def places(result: Result) -> list[int]:
    return [refusal.position for refusal in result.refused]


async def test_a_message_without_an_id_gets_one() -> None:
    rig = SenderRig([Fault.DROP_AFTER])
    result = await rig.sender.send([*messages(2), Message(b"", message_id="mine")])
    ids = [message.message_id for message in rig.queue.messages]
    assert ids == ["call-0", "call-1", "mine"]
    assert (result.sent, result.retries, result.resent_unknown) == (3, 1, 3)


@pytest.mark.parametrize(
    ("asked", "pause"), [(7.5, 7.5), (None, 10), (3600.0, 60), (1e12, 60), (math.inf, 60)]
)
async def test_the_sender_pauses_as_long_as_a_busy_service_asks_but_at_most_a_minute(
    asked: float | None, pause: float
) -> None:
    rig = SenderRig([Fault.BUSY, Fault.BUSY], busy_seconds=asked)
    result = await rig.sender.send(messages(1))
    assert (rig.pauses, result.retries, result.resent_unknown) == ([pause, pause], 2, 0)


async def test_pauses_double_with_each_failure_and_start_anew_after_a_success() -> None:
    down, up = Fault.DROP_BEFORE, Fault.NONE
    rig = SenderRig([down, down, down, up, down], queue=MemoryQueue(LIMIT))
    await rig.sender.send(messages(14))
    assert rig.pauses == [0.5, 1, 2, 0.5]
    assert rig.link.opened == 5


@pytest.mark.parametrize("order", Order)
async def test_a_limit_learned_from_small_messages_does_not_refuse_a_large_one(
    order: Order,
) -> None:
    rig = SenderRig(queue=MemoryQueue(LIMIT, counted_extra=300))
    load = [*messages(40, 10), *messages(1, 3600), *messages(40, 10)]
    result = await rig.sender.send(load, order)
    assert (result.sent, result.refused) == (81, ())
    assert rig.sender.limits is not None
    assert rig.sender.limits.batch_bytes < 3600
    later = [Message(bytes(3600), message_id="later")]
    assert (await rig.sender.send(later, order)).retries == 0


class RefusingQueue(MemoryQueue):
    """Refuses each batch that contains one particular message as too large."""

    def too_large(self, batch: Batch) -> bool:
        return any(item.message.message_id == "bad" for item in batch.encoded)


@pytest.mark.parametrize("place", [0, 1, 150, 299])
async def test_a_limit_learned_from_a_message_that_is_refused_alone_is_forgotten(
    place: int,
) -> None:
    rig = SenderRig(queue=RefusingQueue())
    load = messages(100, 500) * 3
    load[place] = Message(b"bad", message_id="bad")
    result = await rig.sender.send(load)
    assert (result.sent, places(result)) == (299, [place])
    assert rig.sender.limits == BatchLimits(LIMIT)
    assert result.batches <= math.ceil(300 / 7) + 5


@pytest.mark.parametrize("order", Order)
async def test_a_message_too_large_for_the_link_is_named_and_the_others_are_sent(
    order: Order,
) -> None:
    rig = SenderRig()
    load = [*messages(2), Message(b"x" * LIMIT, message_id="big"), Message(b"y"), Message(b"z")]
    result = await rig.sender.send(load, order)
    assert (result.sent, places(result), result.retries) == (4, [2], 0)
    with pytest.raises(MessagesRefused, match=r"#2 \(big\): 41.. bytes; .* at most 4096 bytes"):
        check_all_sent(result)


@pytest.mark.parametrize("order", Order)
async def test_a_message_larger_than_a_batch_is_sent_alone_if_the_link_accepts_it(
    order: Order,
) -> None:
    rig = SenderRig(queue=MemoryQueue(LIMIT, message_bytes=20_000))
    sizes = [1000, 19_000, 1000, 21_000, 5000, 1000]
    load = [Message(bytes(size), message_id=f"m{size}") for size in sizes]
    result = await rig.sender.send(load, order)
    assert (result.sent, places(result), result.retries) == (5, [3], 0)
    assert result.bytes == sum(batch.wire_bytes for batch in rig.queue.accepted)
    assert all(len(b.encoded) == 1 or b.wire_bytes <= LIMIT for b in rig.queue.accepted)


@pytest.mark.parametrize("bad", [{0}, {6}, {3, 4}, {0, 1, 2, 3, 4, 5, 6}, set()])
async def test_wrong_messages_are_refused_by_name_and_the_others_arrive_once_in_order(
    bad: set[int],
) -> None:
    """The key of a batch is the partition key where a message has no session."""
    rig = SenderRig(queue=MemoryQueue(LIMIT, requires_session=True))
    right, wrong = Message(b"", session_id="s"), Message(b"", partition_key="s")
    load = [(wrong if n in bad else right)._replace(message_id=f"m{n}") for n in range(7)]
    result = await rig.sender.send(load)
    assert places(result) == sorted(bad)
    assert [m.message_id for m in rig.queue.messages] == [f"m{n}" for n in range(7) if n not in bad]
    assert (result.sent, result.resent_unknown, rig.pauses) == (7 - len(bad), 0, [])


async def test_sending_stops_if_the_service_refuses_very_many_messages_in_a_row() -> None:
    rig = SenderRig(queue=MemoryQueue(LIMIT, requires_session=True))
    rig.sender.budget = RetryBudget(refusals_max=3)
    good = [Message(b"", session_id="s"), Message(b"", session_id="s")]
    with pytest.raises(SendingStopped, match="3 messages in a row were refused: a message has no"):
        await rig.sender.send([*messages(2), *good, *messages(5), *good])
    assert len(rig.queue.messages) == 2
    result = await rig.sender.send([*messages(2), *good] * 3)
    assert (result.sent, len(result.refused)) == (6, 6)


async def test_a_message_that_only_the_service_refuses_is_named_in_the_result() -> None:
    rig = SenderRig(queue=MemoryQueue(2000))
    load = [*messages(2), Message(b"x" * 3000, message_id="big"), *messages(2)]
    load = [m._replace(message_id=f"m{n}") if n != 2 else m for n, m in enumerate(load)]
    result = await rig.sender.send(load)
    assert (result.sent, places(result)) == (4, [2])
    assert [m.message_id for m in rig.queue.messages] == ["m0", "m1", "m3", "m4"]


async def test_all_messages_that_amqp_cannot_carry_are_named_together() -> None:
    rig = SenderRig()
    load = [Message("\ud800"), Message(b""), Message(b"", message_id="i" * 129)]
    with pytest.raises(UnsendableMessage, match=r"#0 \(call-0\).*surrogates.*#2 .*129 characters"):
        await rig.sender.send(load)
    assert rig.link.opened == 0


@pytest.mark.parametrize("window", [None, 2.4, 100.0])
async def test_a_batch_is_not_sent_again_once_the_queue_may_have_forgotten_it(
    window: float | None,
) -> None:
    """The second batch arrives without a reply; then the link fails again after 0.5 s and 1.5 s."""
    rig = SenderRig([Fault.NONE, Fault.DROP_AFTER, *[Fault.DROP_BEFORE] * 2])
    rig.sender.seconds = lambda: sum(rig.pauses)
    rig.sender.duplicate_window = None if window is None else timedelta(seconds=window)
    load = [m._replace(message_id=f"m{n}") for n, m in enumerate(messages(21))]
    if window != 2.4:
        assert (await rig.sender.send(load)).sent == 21
        assert (len(rig.queue.accepted), rig.pauses) == (4, [0.5, 1, 2])
        return
    with pytest.raises(SendingStopped, match=r"only for 0:00:02.4.*arrived: #7 \(m7\)") as by:
        await rig.sender.send(load)
    assert by.value.unknown == tuple(f"#{n} (m{n})" for n in range(7, 14))
    assert [m.message_id for m in by.value.unsent] == [f"m{n}" for n in range(7, 21)]
    assert (len(rig.queue.accepted), rig.pauses) == (2, [0.5, 1])
    assert by.value.result.resent_unknown == 7  # of the two failures, one was of a second attempt


async def test_the_window_begins_anew_once_all_outcomes_are_known() -> None:
    faults = [Fault.DROP_AFTER, Fault.NONE, Fault.BUSY, Fault.DROP_AFTER]
    rig = SenderRig(faults, busy_seconds=60)
    rig.sender.seconds = lambda: sum(rig.pauses)
    rig.sender.duplicate_window = timedelta(seconds=20)
    result = await rig.sender.send(messages(14))
    assert (result.sent, result.resent_unknown, len(rig.bodies)) == (14, 14, 14)


async def test_a_batch_that_certainly_did_not_arrive_is_sent_after_the_window_too() -> None:
    rig = SenderRig([Fault.BUSY] * 3, busy_seconds=60)
    rig.sender.seconds = lambda: sum(rig.pauses)
    rig.sender.duplicate_window = timedelta(seconds=20)
    assert (await rig.sender.send(messages(1))).sent == 1


async def test_too_many_failures_in_a_row_stop_the_call_and_return_the_unsent_messages() -> None:
    rig = SenderRig([Fault.NONE, *[Fault.DROP_AFTER] * 4])
    with pytest.raises(SendingStopped, match=r"7 message.*disconnected after") as stopped:
        await rig.sender.send(messages(14))
    assert stopped.value.result.sent == 7
    assert [m.message_id for m in stopped.value.unsent] == [f"call-{n}" for n in range(7, 14)]
    await rig.sender.send(stopped.value.unsent)
    assert len(rig.bodies) == 14


@pytest.mark.parametrize(("limit", "batches"), [(1200, [2] * 7), (2 * LIMIT, [14])])
async def test_unsent_messages_are_divided_again_if_the_link_reopens_with_another_limit(
    limit: int, batches: list[int]
) -> None:
    rig = SenderRig([Fault.DROP_BEFORE], MemoryQueue(2 * LIMIT), announced=[LIMIT, limit])
    await rig.sender.send(messages(14))
    assert [len(batch.encoded) for batch in rig.queue.accepted] == batches
    if limit > LIMIT:
        await rig.sender.send([Message(bytes(LIMIT), message_id="large")])
        assert len(rig.queue.accepted) == 2


async def test_a_link_that_cannot_be_opened_again_at_once_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = SenderRig([Fault.DROP_BEFORE])
    opened, errors = rig.link.open, [ConnectionError("no route"), None]

    async def open_again() -> BatchLimits:
        if rig.pauses and errors and (error := errors.pop(0)):
            raise error
        return await opened()

    monkeypatch.setattr(rig.link, "open", open_again)
    result = await rig.sender.send(messages(2))
    assert (result.sent, len(rig.bodies), errors) == (2, 2, [])


class DeadLink(MemoryLink):
    """Opens after some failures, and sends nothing."""

    def __init__(self, failures: int) -> None:
        super().__init__(MemoryQueue())
        self.failures = failures

    async def open(self) -> BatchLimits:
        if self.opened < self.failures:
            self.opened += 1
            raise ConnectionError("no route")
        return await super().open()

    async def send(self, _batch: Batch) -> Outcome:
        raise LinkFailed("queue q does not exist")


async def test_opening_a_link_is_retried_but_a_permanent_failure_is_not() -> None:
    rig = SenderRig()
    rig.sender.link = DeadLink(9)
    with pytest.raises(LinkFailed, match="no route"):
        await rig.sender.send(messages(1))
    assert rig.pauses == [0.5, 1, 2]
    rig.sender.link = DeadLink(0)
    with pytest.raises(SendingStopped, match="queue q does not exist") as stopped:
        await rig.sender.send(messages(3), Order.FREE)
    assert len(stopped.value.unsent) == 3


class NarrowLink(MemoryLink):
    """Fails if a batch is sent while another one is being sent."""

    busy = False

    async def send(self, batch: Batch) -> Outcome:
        assert not self.busy
        self.busy = True
        await asyncio.sleep(0)
        self.busy = False
        return await super().send(batch)


async def test_concurrent_calls_take_turns() -> None:
    rig = SenderRig()
    rig.sender.link = NarrowLink(rig.queue)
    loads = [
        [m._replace(message_id=f"{n}-{place}") for place, m in enumerate(messages(20))]
        for n in range(5)
    ]
    results = await asyncio.gather(*[rig.sender.send(load) for load in [*loads, []]])
    assert [result.sent for result in results] == [*[20] * 5, 0]
    assert results[-1].batches == 0
    assert len(rig.queue.messages) == 100


@pytest.mark.parametrize("outcome", [Accepted(), BatchRefused("no")])
def test_a_message_whose_fate_is_known_is_named_as_unknown_no_longer(outcome: Outcome) -> None:
    messages = [Message(b"a", message_id="a"), Message(b"b", message_id="b")]
    state = begin(encode_all(messages, 0), BatchLimits(LIMIT, 1), Order.KEPT)
    assert len(state.planned) == 2
    lost = advance(state, Disconnected("gone"), RetryBudget(), began=5)
    assert (lost.unknown_names, lost.unknown_since) == (["#0 (a)"], 5)
    known = advance(lost, outcome, RetryBudget())
    assert known.unknown_names == []
    again = advance(known, Disconnected("gone"), RetryBudget(), began=90)
    assert (again.unknown_names, again.unknown_since) == (["#1 (b)"], 90)
    assert advance(again, Disconnected("gone"), RetryBudget(), began=95).unknown_since == 90


@pytest.mark.parametrize(
    ("refused", "failures", "stops"), [(2, 3, False), (3, 0, True), (0, 4, True), (4, 5, True)]
)
def test_sending_stops_with_the_last_refusal_or_failure_that_is_allowed(
    refused: int, failures: int, stops: bool
) -> None:
    state = begin(encode_all(messages(1, 10), 0), BatchLimits(LIMIT), Order.KEPT)
    tried = replace(state, refused_in_a_row=refused, failures=failures)
    assert exhausted(tried, RetryBudget(failures_max=4, refusals_max=3)) is stops
