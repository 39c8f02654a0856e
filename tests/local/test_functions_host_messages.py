"""Encoding and decoding of queue messages, output values, polling, and ending a client."""

import asyncio
import json
from contextlib import suppress
from types import SimpleNamespace

import pytest

from local.functions_host.outputs import message_bodies
from local.functions_host.queue_listener import next_polling_seconds
from local.functions_host.service_bus_listener import cancelled
from local.functions_host.storage_queues import MessageEncoding, UndecodableMessage


@pytest.mark.parametrize("encoding", list(MessageEncoding))
def test_encoding_and_decoding_are_inverse(encoding: MessageEncoding) -> None:
    assert encoding.decode(encoding.encode("grüße".encode())) == "grüße"


def test_base64_decoding_skips_white_space_and_replaces_invalid_utf8() -> None:
    assert MessageEncoding.BASE64.decode("aGVs\r\nbG8=") == "hello"
    assert MessageEncoding.BASE64.decode("/w==") == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("text", ["hello!", "aGVsbG8", '{"a": 1}', "grüße"])
def test_a_text_that_is_not_base64_is_undecodable(text: str) -> None:
    with pytest.raises(UndecodableMessage):
        MessageEncoding.BASE64.decode(text)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("string", "plain", [b"plain"]),
        ("string", '{"a":1}', [b'{"a":1}']),
        ("string", ' ["a", {"b": 1}] ', [b"a", b'{"b": 1}']),
        ("json", '["a", "b"]', [b"a", b"b"]),
        ("list", ["a", {"b": 1}, 2], [b"a", b'{"b": 1}', b"2"]),
        ("list", [], []),
        ("dict", {"b": 1}, [b'{"b": 1}']),
        ("bytes", b'["a"]', [b'["a"]']),
        ("int", 5, [b"5"]),
        (None, None, []),
    ],
)
def test_output_values_become_messages(kind: str, value: object, expected: list[bytes]) -> None:
    assert message_bodies(SimpleNamespace(type=kind, value=value)) == expected


@pytest.mark.parametrize("text", ["[not json]", "{not json}"])
def test_a_text_that_only_looks_like_json_fails(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        message_bodies(SimpleNamespace(type="string", value=text))


def test_polling_slows_down_to_its_maximum() -> None:
    seconds, pauses = 0.0, []
    for _ in range(6):
        seconds = next_polling_seconds(seconds, 1.0, spread=1.0)
        pauses.append(seconds)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


async def test_a_client_that_swallows_a_cancellation_is_cancelled_again() -> None:
    """Otherwise, the stop of the host would wait for the client's own time limit of a minute."""
    began = asyncio.Event()

    async def opens() -> None:
        with suppress(asyncio.CancelledError):
            began.set()
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    opening = asyncio.create_task(opens())
    await began.wait()
    async with asyncio.timeout(30):
        await cancelled(opening)
    assert opening.cancelled()
