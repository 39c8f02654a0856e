"""Frames and messages as bytes: what the stand-in forwards, pads and refuses."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from proton import Message as ProtonMessage
from proton import symbol

from local.amqp_broker import AmqpStandIn, sections
from local.amqp_broker.addresses import (
    ReaderAddress,
    path_of,
    position,
    reader_address,
    writer_address,
)
from local.amqp_broker.frames import (
    BATCH_FORMAT,
    BadFrame,
    FrameBuffer,
    message_format,
    padded,
    skip_value,
)
from local.amqp_broker.messages import content_of, delivered, event_contents, unpack
from local.amqp_broker.model.errors import InvalidArgument
from local.amqp_broker.model.hub import START, Position, PositionKind
from local.amqp_broker.model.message import Message

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TEXT = st.text(max_size=20)
VALUES = st.one_of(TEXT, st.integers(-(2**63), 2**63 - 1), st.booleans(), st.binary(max_size=20))


@st.composite
def encoded_messages(draw: st.DrawFn) -> bytes:
    message: Any = ProtonMessage(body=draw(st.binary(max_size=300)), inferred=True)
    message.id = draw(st.none() | TEXT)
    message.group_id = draw(st.none() | TEXT)
    message.ttl = draw(st.integers(0, 4_000_000))
    message.properties = draw(st.none() | st.dictionaries(TEXT, VALUES, max_size=4))
    if draw(st.booleans()):
        message.annotations = {symbol("x-opt-partition-key"): draw(TEXT)}
    return bytes(message.encode())


def frame(performative: bytes, kind: int = 0) -> bytes:
    body = bytes((2, kind, 0, 0)) + performative
    return (len(body) + 4).to_bytes(4, "big") + body


class TestFrames:
    @given(st.lists(st.binary(max_size=40), max_size=5), st.data())
    def test_frames_are_the_same_however_the_stream_is_split(
        self, performatives: list[bytes], data: st.DataObject
    ) -> None:
        frames = [b"AMQP\x00\x01\x00\x00", *map(frame, performatives)]
        stream = b"".join(frames)
        buffer, received, at = FrameBuffer(), [], 0
        while at < len(stream):
            end = data.draw(st.integers(at + 1, len(stream)))
            received += list(buffer.feed(stream[at:end]))
            at = end
        assert received == frames

    @pytest.mark.parametrize("size", [0, 7, 2**31])
    def test_an_impossible_frame_size_is_refused(self, size: int) -> None:
        with pytest.raises(BadFrame):
            list(FrameBuffer().feed(size.to_bytes(4, "big") + bytes(4)))

    @pytest.mark.parametrize(
        ("short", "full"),
        [
            (b"\x00\x53\x18\x45", b"\x00\x53\x18\xd0" + bytes((0, 0, 0, 5, 0, 0, 0, 1)) + b"\x40"),
            (
                b"\x00\x53\x17\xc0\x02\x01\x43",
                b"\x00\x53\x17\xc0\x02\x01\x43",
            ),
            (
                b"\x00\x53\x16\xc0\x02\x01\x43",
                b"\x00\x53\x16\xd0" + bytes((0, 0, 0, 7, 0, 0, 0, 3)) + b"\x43\x40\x40",
            ),
        ],
    )
    def test_omitted_trailing_fields_are_written_as_nulls(self, short: bytes, full: bytes) -> None:
        assert padded(frame(short)) == frame(full)
        assert padded(padded(frame(short))) == frame(full)

    def test_a_payload_after_the_performative_is_kept(self) -> None:
        short = frame(b"\x00\x53\x14\xc0\x02\x01\x43" + b"payload")
        assert padded(short).endswith(b"\x43" + b"\x40" * 10 + b"payload")

    @pytest.mark.parametrize("other", [b"AMQP\x00\x01\x00\x00", frame(b"\x00\x53\x41\x45", kind=1)])
    def test_protocol_headers_and_sasl_frames_are_unchanged(self, other: bytes) -> None:
        assert padded(other) == other
        assert message_format(other) is None

    @pytest.mark.parametrize(
        ("field", "value"),
        [(b"\x43", 0), (b"\x52\x07", 7), (b"\x70\x80\x01\x37\x00", BATCH_FORMAT), (b"\x40", None)],
    )
    def test_the_message_format_is_read_from_a_transfer(
        self, field: bytes, value: int | None
    ) -> None:
        fields = b"\x43" + b"\x52\x05" + b"\xa0\x02ab" + field
        listed = bytes((0xC0, len(fields) + 1, 4)) + fields
        assert message_format(frame(b"\x00\x53\x14" + listed)) == value


class TestMessages:
    @given(encoded_messages())
    def test_parsing_and_assembling_a_message_does_not_change_it(self, encoded: bytes) -> None:
        assert sections.assemble(sections.parse(encoded), {}) == encoded

    @given(encoded_messages(), st.integers(0, 9))
    def test_the_bare_message_is_delivered_unchanged(self, encoded: bytes, failures: int) -> None:
        content = content_of(encoded)
        arrived = delivered(Message(content, 5, 4, NOW, delivery_count=failures))
        before, after = sections.parse(encoded), sections.parse(arrived)
        assert after.body == before.body
        for code in (sections.PROPERTIES, sections.APPLICATION_PROPERTIES):
            assert after.by_code.get(code) == before.by_code.get(code)
        decoded = ProtonMessage()
        decoded.decode(arrived)
        assert decoded.delivery_count == failures
        assert decoded.annotations is not None
        assert decoded.annotations[symbol("x-opt-sequence-number")] == 5

    @given(encoded_messages())
    def test_the_broker_reads_the_message_id_and_the_session_id(self, encoded: bytes) -> None:
        original = ProtonMessage()
        original.decode(encoded)
        content = content_of(encoded)
        assert content.message_id == original.id
        assert content.session_id == original.group_id

    @given(st.lists(encoded_messages(), min_size=1, max_size=4))
    def test_only_the_batch_format_is_unpacked_into_several_messages(
        self, messages: list[bytes]
    ) -> None:
        envelope = b"".join(
            b"\x00\x53\x75\xb0" + len(each).to_bytes(4, "big") + each for each in messages
        )
        assert unpack(envelope, BATCH_FORMAT) == messages
        assert unpack(envelope, 0) == [envelope]
        assert [each.payload for each in event_contents(envelope, BATCH_FORMAT)] == messages

    @given(st.binary(max_size=60))
    def test_bytes_that_are_not_a_message_are_refused_as_invalid(self, noise: bytes) -> None:
        for read in (content_of, lambda data: unpack(data, BATCH_FORMAT)):
            try:
                read(noise)
            except InvalidArgument:
                continue

    @given(encoded_messages(), st.data())
    def test_a_truncated_message_is_refused_as_invalid(
        self, encoded: bytes, data: st.DataObject
    ) -> None:
        cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
        try:
            content_of(cut)
        except InvalidArgument:
            return
        assert sections.assemble(sections.parse(cut), {}) == cut  # It was cut between two sections.

    @pytest.mark.parametrize(
        ("code", "value"),
        [
            (sections.HEADER, {"a": 1}),
            (sections.HEADER, [True, 999]),
            (sections.HEADER, [True, "high"]),
            (sections.PROPERTIES, "id"),
            (sections.APPLICATION_PROPERTIES, ["a"]),
        ],
    )
    def test_sections_of_the_wrong_type_are_refused(self, code: int, value: object) -> None:
        with pytest.raises(InvalidArgument):
            content_of(bytes((0, 0x53, code)) + sections.encode(value))

    @pytest.mark.parametrize("code", [0x01, 0x1F, 0x30])
    def test_an_unknown_amqp_type_is_refused(self, code: int) -> None:
        with pytest.raises(BadFrame):
            skip_value(bytes((code, 0, 0)), 0)


class TestAddresses:
    @pytest.mark.parametrize(
        ("address", "path"),
        [
            (None, ""),
            ("jobs", "jobs"),
            ("/jobs/", "jobs"),
            ("amqps://127.0.0.1:5672/news/Subscriptions/mail", "news/Subscriptions/mail"),
            ("amqp://host/a%20b", "a b"),
        ],
    )
    def test_the_entity_path_is_read_from_paths_and_urls(
        self, address: str | None, path: str
    ) -> None:
        assert path_of(address) == path

    def test_partition_addresses_are_parsed_for_readers_and_writers(self) -> None:
        path = "hub/ConsumerGroups/$Default/Partitions/3"
        assert reader_address(path) == ReaderAddress("hub", "$Default", "3")
        assert reader_address("jobs") is None
        assert writer_address("hub/Partitions/3") == ("hub", "3")
        assert writer_address("hub") == ("hub", None)

    @pytest.mark.parametrize(
        ("selector", "expected"),
        [
            (None, START),
            ("amqp.annotation.x-opt-offset > '-1'", START),
            (b"amqp.annotation.x-opt-offset > '@latest'", Position(PositionKind.LATEST)),
            (
                "amqp.annotation.x-opt-sequence-number >= '7'",
                Position(PositionKind.SEQUENCE_NUMBER, 7, inclusive=True),
            ),
            (
                "amqp.annotation.x-opt-enqueued-time > '1772366400000'",
                Position(PositionKind.ENQUEUED_TIME, NOW),
            ),
        ],
    )
    def test_a_selector_is_parsed_into_a_position(
        self, selector: object, expected: Position
    ) -> None:
        assert position(selector) == expected

    @pytest.mark.parametrize(
        "wrong",
        [
            "",
            "x > 1",
            "amqp.annotation.x-opt-offset > 'x'",
            "amqp.annotation.x-opt-enqueued-time > '99999999999999999999'",
        ],
    )
    def test_an_invalid_selector_is_refused(self, wrong: str) -> None:
        with pytest.raises(InvalidArgument):
            position(wrong)


HEADER = b"AMQP\x00\x01\x00\x00"
NOISE = [
    b"GET / HTTP/1.1\r\n\r\n",
    bytes(8),
    b"\xff" * 64,
    HEADER + frame(b"\x00\x53\x14\xc0"),
    HEADER + frame(b"\x00\x53\x99\x45"),
    HEADER + frame(b"\x00\x53\x10\xd0" + b"\xff" * 8),
]


@pytest.mark.parametrize("sent", NOISE)
async def test_invalid_bytes_end_only_their_own_connection(sent: bytes) -> None:
    async with AmqpStandIn() as stand_in:
        reader, writer = await asyncio.open_connection("127.0.0.1", stand_in.port)
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", stand_in.port)
        writer.write(sent)
        writer.write_eof()
        try:
            async with asyncio.timeout(60):
                await reader.read()
        except ConnectionError:
            pass
        other_writer.write(HEADER)
        async with asyncio.timeout(60):
            assert await other_reader.readexactly(8) == HEADER
        for each in (writer, other_writer):
            each.close()
