"""Packing: batches stay within their limits, hold one key, keep the order if asked to, and are
few."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.messaging.model import BatchLimits, EncodedMessage
from shared.messaging.packing import Encoded, envelope_bytes, pack, section_bytes
from shared.messaging.send_state import begin
from shared.values.messages import Message, Order

LIMIT = 1000


def request_of(sizes: list[int], keys: list[str | None] | None = None) -> Encoded:
    named = keys or [None] * len(sizes)
    return [
        EncodedMessage(place, Message(None, message_id="m" * (1 + place % 3), session_id=key), size)
        for place, (size, key) in enumerate(zip(sizes, named, strict=True))
    ]


def sections(load: Encoded) -> list[int]:
    return [section_bytes(each.size_bytes) for each in load]


loads = st.lists(st.tuples(st.integers(0, 900), st.sampled_from([None, "a", "b"])), max_size=60)
limits = st.builds(
    BatchLimits,
    st.integers(980, 1300),
    st.integers(1, 9),
    learned_bytes=st.none() | st.integers(1, 1300),
)


@given(loads, limits, st.sampled_from(Order))
def test_each_message_is_in_exactly_one_batch_and_no_batch_exceeds_its_limits(
    load: list[tuple[int, str | None]], limits: BatchLimits, order: Order
) -> None:
    messages = request_of([size for size, _ in load], [key for _, key in load])
    batches = pack(messages, limits, order)
    assert sorted(place for batch in batches for place in batch.places) == list(range(len(load)))
    for batch in batches:
        first, count = batch.encoded[0], len(batch.encoded)
        several = sum(sections(batch.encoded)) + envelope_bytes(first.message)
        assert batch.wire_bytes == (first.size_bytes if count == 1 else several)
        assert batch.wire_bytes <= limits.batch_bytes or count == 1
        assert 1 <= count <= limits.batch_messages
        assert len({each.message.batch_key for each in batch.encoded}) == 1


@given(loads, limits)
def test_the_requested_order_is_kept(
    load: list[tuple[int, str | None]], limits: BatchLimits
) -> None:
    messages = request_of([size for size, _ in load], [key for _, key in load])
    kept = [place for batch in pack(messages, limits, Order.KEPT) for place in batch.places]
    assert kept == list(range(len(load)))
    per_key = pack(messages, limits, Order.KEPT_PER_KEY)
    for key in (None, "a", "b"):
        every = [each for batch in per_key for each in batch.encoded]
        own = [each.place for each in every if each.message.batch_key == key]
        assert own == sorted(own)


def fewest_in_order(sizes: list[int], room: int, count_max: int) -> int:
    """The fewest batches, found by trying each position of the last cut."""
    best = [0] + [10**9] * len(sizes)
    for end in range(1, len(sizes) + 1):
        for start in range(max(0, end - count_max), end):
            if sum(sizes[start:end]) <= room:
                best[end] = min(best[end], best[start] + 1)
    return best[-1]


@given(st.lists(st.integers(0, 900), max_size=25), st.integers(1, 6))
def test_no_other_division_in_order_needs_fewer_batches(sizes: list[int], most: int) -> None:
    load = request_of(sizes)
    batches = pack(load, BatchLimits(LIMIT, most), Order.KEPT)
    longest_id = envelope_bytes(Message(None, message_id="mmm"))
    assert len(batches) <= fewest_in_order(sections(load), LIMIT - longest_id, most)
    assert len(batches) >= fewest_in_order(sections(load), ROOM, most)


def test_batches_in_free_order_exceed_the_lower_bound_by_at_most_a_percent() -> None:
    randomly = random.Random(5)
    sizes = [min(200_000, int(randomly.lognormvariate(7.6, 1))) for _ in range(5000)]
    load = request_of(sizes)
    limits = BatchLimits(262_144)
    bound = math.ceil(sum(sections(load)) / limits.batch_bytes)
    free, kept = (len(pack(load, limits, order)) for order in (Order.FREE, Order.KEPT))
    assert bound <= free <= math.ceil(bound * 1.01)
    assert free <= kept


def test_a_batch_holds_at_most_4500_messages_however_small() -> None:
    batches = pack(request_of([10] * 10_000), BatchLimits(262_144), Order.FREE)
    assert [len(batch.encoded) for batch in batches] == [4500, 4500, 1000]


@pytest.mark.parametrize(("surplus", "refused"), [(0, []), (1, [1])])
def test_a_message_one_byte_over_the_limit_is_too_large(surplus: int, refused: list[int]) -> None:
    load = request_of([300, LIMIT + surplus])
    for limits in (
        BatchLimits(LIMIT),
        BatchLimits(9, message_bytes=LIMIT),
        BatchLimits(LIMIT, learned_bytes=99),
    ):
        planned = begin(load, limits, Order.KEPT)
        assert [each.position for each in planned.refused] == refused
        assert [each.place for each in planned.waiting] == [0, 1][: 2 - len(refused)]


@pytest.mark.parametrize("first", ["short", "long"])
def test_a_batch_in_free_order_has_room_for_the_largest_envelope_of_its_messages(
    first: str,
) -> None:
    """The service uses the first message's ids for the envelope, and ids differ in length."""
    short, long = Message(None, message_id="s"), Message(None, message_id="l" * 100)
    messages = [short, long] if first == "short" else [long, short]
    room = LIMIT - envelope_bytes(short) - 2 * 8
    load = [EncodedMessage(place, each, room // 2) for place, each in enumerate(messages)]
    batches = pack(load, BatchLimits(LIMIT), Order.FREE)
    assert [batch.places for batch in batches] == [[0], [1]]
    assert all(batch.wire_bytes <= LIMIT for batch in batches)
    alone = [EncodedMessage(0, short, room + 8), EncodedMessage(1, long, 10)]
    assert len(pack(alone, BatchLimits(LIMIT), Order.FREE)) == 2


def of_sizes(*sizes: int) -> Encoded:
    """Messages that take these numbers of bytes in a batch, all with an envelope of the same
    length."""
    return [
        EncodedMessage(place, Message(None, message_id="m"), size - 8)
        for place, size in enumerate(sizes)
    ]


ROOM = LIMIT - envelope_bytes(Message(None, message_id="m"))


@pytest.mark.parametrize("order", Order)
def test_a_batch_is_filled_to_the_byte(order: Order) -> None:
    (batch,) = pack(of_sizes(400, ROOM - 400), BatchLimits(LIMIT), order)
    assert batch.wire_bytes == LIMIT
    assert len(pack(of_sizes(401, ROOM - 400), BatchLimits(LIMIT), order)) == 2


def test_in_free_order_the_rest_of_a_batch_is_filled_with_smaller_messages() -> None:
    load = of_sizes(500, 300, 300, 100, 100, ROOM - 500 - 300)
    batches = pack(load, BatchLimits(LIMIT), Order.FREE)
    assert sum(len(batch.encoded) for batch in batches) == 6
    assert len(batches) == math.ceil(sum(sections(load)) / ROOM)


def test_in_free_order_the_message_limit_applies_across_sizes() -> None:
    load = of_sizes(400, *[100] * 5)
    batches = pack(load, BatchLimits(LIMIT, batch_messages=3), Order.FREE)
    assert [len(batch.encoded) for batch in batches] == [3, 3]


@pytest.mark.parametrize("order", Order)
def test_messages_of_different_sessions_or_partition_keys_never_share_a_batch(
    order: Order,
) -> None:
    messages = [
        Message(None, message_id="1", session_id="a"),
        Message(None, message_id="2", partition_key="b"),
        Message(None, message_id="3"),
    ]
    load = [EncodedMessage(place, each, 10) for place, each in enumerate(messages)]
    assert len(pack(load, BatchLimits(LIMIT), order)) == 3
