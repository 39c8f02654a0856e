"""Sizes and bytes of messages, as azure-servicebus decodes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import BatchMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messaging.encoder import (
    ID_LENGTH_MAX,
    TTL_SECONDS_MAX,
    client_message,
    encode,
    encode_all,
)
from shared.messaging.model import UnsendableMessage
from shared.messaging.packing import envelope_bytes, section_bytes
from shared.values.messages import Message

CREATED_MS = 1_700_000_000_000

texts = st.text(max_size=40) | st.sampled_from(["", "a" * 255, "a" * 256, "é" * 128, "😀" * 64])
ids = st.text(max_size=30) | st.sampled_from(["x" * ID_LENGTH_MAX, "ü" * ID_LENGTH_MAX])
wholes = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [-129, -128, 127, 128, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1]
)
times = st.datetimes(datetime(1901, 1, 1), datetime(9000, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
scalars = st.one_of(
    texts,
    texts.map(str.encode),
    wholes,
    st.floats(allow_nan=False),
    st.booleans(),
    st.uuids(),
    times,
    st.none(),
)
bodies = st.binary(max_size=600) | st.sampled_from([b"", b"x" * 255, b"x" * 256, b"x" * 70_000])
ascii_texts = st.text(st.characters(codec="ascii"), max_size=300)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    session_id = draw(st.none() | ids)
    partition_key = session_id if session_id is not None else draw(st.none() | ids)
    return Message(
        body=draw(st.one_of(bodies, texts, st.none())),
        message_id=draw(st.none() | ids),
        session_id=session_id,
        partition_key=draw(st.none() | st.just(partition_key)),
        correlation_id=draw(st.none() | texts),
        content_type=draw(st.none() | ascii_texts),
        subject=draw(st.none() | texts),
        to=draw(st.none() | texts),
        reply_to=draw(st.none() | texts),
        reply_to_session_id=draw(st.none() | ids),
        time_to_live=draw(
            st.none() | st.integers(1, TTL_SECONDS_MAX).map(lambda s: timedelta(seconds=s))
        ),
        scheduled_at=draw(st.none() | times),
        application_properties=draw(st.none() | st.dictionaries(texts, scalars, max_size=9)),
    )


def message_bytes(message: Message) -> int:
    """The size by which batches are planned."""
    (item,) = encode_all([message], CREATED_MS)
    return item.size_bytes


@settings(max_examples=100)
@given(messages())
def test_an_encoded_message_has_all_its_fields(message: Message) -> None:
    encoded = encode(message, CREATED_MS)
    assert_decoded_equals(message, decode_payload(memoryview(encoded)))


def assert_decoded_equals(message: Message, decoded: Any) -> None:
    fields = [
        text.encode() if text is not None else None
        for text in (
            message.message_id,
            message.to,
            message.subject,
            message.reply_to,
            message.correlation_id,
            message.content_type,
            message.session_id,
            message.reply_to_session_id,
        )
    ]
    properties = decoded.properties or [None] * 13
    assert [properties[place] for place in (0, 2, 3, 4, 5, 6, 10, 12)] == fields
    if isinstance(message.body, bytes):
        assert [bytes(section) for section in decoded.data] == [message.body]
    if message.time_to_live is not None:
        assert decoded.header.ttl == message.time_to_live.total_seconds() * 1000
        assert properties[8] - properties[9] == decoded.header.ttl
        assert properties[9] == CREATED_MS
    values = message.application_properties or {}
    expected = {key.encode(): as_read(value) for key, value in values.items()}
    assert (decoded.application_properties or {}) == expected


def as_read(value: Any) -> Any:
    """The value of a property after the client has decoded it."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, datetime):
        return int((value - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1))
    return value


@settings(max_examples=40)
@given(st.lists(messages(), min_size=1, max_size=6))
def test_a_batch_has_the_predicted_size_although_the_client_undercounts(
    batch: list[Message],
) -> None:
    clients = ServiceBusMessageBatch(10**9)
    for message in batch:
        clients.add_message(client_message(message))
    on_the_wire = len(encode_payload(bytearray(), BatchMessage(*clients._message)))
    sections = sum(section_bytes(message_bytes(message)) for message in batch)
    assert envelope_bytes(batch[0]) + sections == on_the_wire
    assert clients.size_in_bytes == sections


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (Message(b"", message_id="m" * 129), "129 characters"),
        (Message(b"", session_id="a", partition_key="b"), "partition_key must be the session_id"),
        (Message(b"", time_to_live=timedelta(days=60)), "time_to_live is 5184000 s: must be 1 to"),
        (Message(b"", time_to_live=timedelta(0)), "must be 1 to"),
        (Message(b"", application_properties={"n": 2**63}), "64 bits"),
        (Message(b"", application_properties={"o": object()}), "no type for object"),  # type: ignore[dict-item]
        (Message(b"", application_properties={"b": b"\xff"}), "UTF-8"),
        (Message(b"", scheduled_at=datetime(2026, 3, 1)), "no time zone"),  # noqa: DTZ001
        (Message(b"", content_type="text/ü"), "'text/ü' must be ASCII"),
    ],
)
def test_a_message_that_service_bus_cannot_take_is_refused(
    message: Message, complaint: str
) -> None:
    with pytest.raises(UnsendableMessage, match=complaint):
        encode(message, CREATED_MS)
