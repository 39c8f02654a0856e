"""Frames as bytes: what the stand-in writes in full, and what ends a connection."""

import asyncio

import pytest

from local.amqp_broker import AmqpStandIn
from local.amqp_broker.frames import padded

HEADER = b"AMQP\x00\x01\x00\x00"


def frame(performative: bytes, kind: int = 0) -> bytes:
    body = bytes((2, kind, 0, 0)) + performative
    return (len(body) + 4).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("short", "full"),
    [
        (b"\x00\x53\x18\x45", b"\x00\x53\x18\xd0" + bytes((0, 0, 0, 5, 0, 0, 0, 1)) + b"\x40"),
        (b"\x00\x53\x17\xc0\x02\x01\x43", b"\x00\x53\x17\xc0\x02\x01\x43"),
        (
            b"\x00\x53\x16\xc0\x02\x01\x43",
            b"\x00\x53\x16\xd0" + bytes((0, 0, 0, 7, 0, 0, 0, 3)) + b"\x43\x40\x40",
        ),
    ],
)
def test_omitted_trailing_fields_are_written_as_nulls(short: bytes, full: bytes) -> None:
    assert padded(frame(short)) == frame(full)
    assert padded(padded(frame(short))) == frame(full)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        HEADER + frame(b"\x00\x53\x14\xc0"),
        HEADER + frame(b"\x00\x53\x10\xd0" + b"\xff" * 8),
    ],
)
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
