"""messaging: how fast batches are filled, compared with the client, and how few are needed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import MessageSizeExceededError

from bench.measurement import Measurement
from bench.repeats import calls_per_second
from shared.messaging.encoder import encode_all, fill
from shared.messaging.model import BatchLimits, EncodedMessage
from shared.messaging.packing import Encoded, pack, section_bytes
from shared.values.messages import Message, Order

LIMITS = BatchLimits(256 * 1024)
BODY_BYTES = (100, 1024, 10_240)
SEED = 7
NOW_MS = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
ADD_MESSAGE = (
    "baseline: ServiceBusMessage and add_message, the same messages into equally full batches"
)
BOUND = "bytes of all messages over the limit, rounded up"
FEWEST = "a property test shows that no division in this order has fewer batches"

Row = tuple[bytes, str, dict[str, str | int]]
"""Body, message id and properties: what a program has before it builds a message."""

SHAPES: dict[str, Callable[[random.Random], int]] = {
    "uniform_100B_2KB": lambda r: r.randint(100, 2000),
    "lognormal_2KB": lambda r: min(200_000, int(r.lognormvariate(7.6, 1))),
    "lognormal_20KB": lambda r: min(200_000, int(r.lognormvariate(9.9, 1))),
}


def measure(repeats: int = 5, count: int = 4_000) -> Iterator[Measurement]:
    """Messages a second into full batches, and numbers of batches with their lower bound."""
    for body_bytes in BODY_BYTES:
        yield _filling(body_bytes, repeats, count)
    for name, shape in SHAPES.items():
        request = _request(shape, 5 * count)
        yield _number_of_batches(f"free_{name}", request, Order.FREE, "ratio ≤ 1.01")
        yield _number_of_batches(f"kept_{name}", request, Order.KEPT, "", f"{BOUND}; {FEWEST}")


def _filling(body_bytes: int, repeats: int, count: int) -> Measurement:
    rows = _rows(body_bytes, count)
    assert 0 <= _direct(rows) - _by_add_message(rows) <= 1, "not the same work"
    direct, by_client = calls_per_second(
        (lambda: _direct(rows), lambda: _by_add_message(rows)), repeats=repeats, calls=1
    )
    return Measurement(
        f"messaging.fill_{body_bytes}B",
        direct * count,
        "messages/s",
        by_client * count,
        "ratio ≥ 1.5",
        ADD_MESSAGE,
    )


def _direct(rows: Sequence[Row]) -> int:
    """Fill batches and return their number. Each batch is dropped when full, as after sending."""
    messages = [
        Message(body, message_id, content_type="application/json", application_properties=values)
        for body, message_id, values in rows
    ]
    encoded = encode_all(messages, NOW_MS)
    packed = pack(encoded, LIMITS, Order.KEPT)
    for batch in packed:
        fill(ServiceBusMessageBatch(LIMITS.batch_bytes), batch)
    return len(packed)


def _by_add_message(rows: Sequence[Row]) -> int:
    batch, count = ServiceBusMessageBatch(LIMITS.batch_bytes), 1
    for body, message_id, values in rows:
        message = ServiceBusMessage(
            body,
            message_id=message_id,
            content_type="application/json",
            application_properties=dict(values.items()),
        )
        try:
            batch.add_message(message)
        except MessageSizeExceededError:
            batch, count = ServiceBusMessageBatch(LIMITS.batch_bytes), count + 1
            batch.add_message(message)
    return count


def _number_of_batches(
    name: str, request: Encoded, order: Order, aim: str, note: str = BOUND
) -> Measurement:
    batches = pack(request, LIMITS, order)
    bound = math.ceil(sum(section_bytes(each.size_bytes) for each in request) / LIMITS.batch_bytes)
    return Measurement(f"messaging.batches_{name}", len(batches), "batches", bound, aim, note)


def _rows(body_bytes: int, count: int) -> list[Row]:
    body = random.Random(SEED).randbytes(body_bytes)
    return [(body, f"m-{number:08d}", {"kind": "v", "number": number}) for number in range(count)]


def _request(shape: Callable[[random.Random], int], count: int) -> Encoded:
    randomly = random.Random(SEED)
    return [EncodedMessage(n, Message(None, f"m{n}"), shape(randomly)) for n in range(count)]
