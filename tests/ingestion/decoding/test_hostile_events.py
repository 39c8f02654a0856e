"""Hostile event bodies: each costs little memory and time, and becomes one dead letter."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import subprocess
import sys
import time

import pytest

from bench.hostile_events import HOSTILE, INTERESTS, MIB, RESOURCE, filled, reading
from shared.ingestion.decoding import decode as decoding
from shared.ingestion.decoding.decode import decode
from shared.ingestion.decoding.metric_handler import MetricHandler
from shared.ingestion.decoding.readings import REJECTIONS_KEPT
from shared.ingestion.errors import BadEvent
from shared.ingestion.model import Event, Stream
from shared.values.text import SHOWN_CHARACTERS_MAX, quoted
from tests.builders import NOW

SECONDS_MAX = 1.0
MEGABYTES_MAX = 150
STREAM = Stream("ns", "hub", "$Default", "3")
LARGE = ("gzip_bomb", "plain_16_mib", "numbers", "empty_objects", "small_objects", "bad_readings")


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_body_is_refused_within_a_second_of_processor_time(name: str) -> None:
    body = HOSTILE[name]()
    began = time.process_time()
    try:
        refused = decode(body, INTERESTS).set_aside
    except BadEvent as error:
        refused = str(error)
    assert time.process_time() - began < SECONDS_MAX
    assert 0 < len(refused) < 10_000


@pytest.mark.parametrize("name", LARGE)
def test_a_hostile_event_takes_little_memory_and_becomes_one_dead_letter(name: str) -> None:
    command = [sys.executable, "-m", "bench.hostile_process"]
    done = subprocess.run(command, input=HOSTILE[name](), stdout=subprocess.PIPE, check=True)
    measured = json.loads(done.stdout)
    assert measured["megabytes"] < MEGABYTES_MAX
    assert measured["cpu_seconds"] < SECONDS_MAX
    assert (measured["dead_letters"], measured["messages"]) == (1, 0)


def test_a_body_larger_than_allowed_is_rejected_before_and_after_unpacking() -> None:
    for body in (b" " * 2000, gzip.compress(b" " * 2000)):
        with pytest.raises(BadEvent, match=r"EventBytesMaximum.*1000"):
            decode(body, INTERESTS, bytes_max=1000)
    decode(b" " * 800 + reading().encode(), INTERESTS, bytes_max=1000)


def test_an_event_with_too_many_elements_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "ELEMENTS_MAX", 3)
    two = [json.loads(reading())] * 2
    assert len(decode(json.dumps(two).encode(), INTERESTS).readings) == 2
    for document in (two * 2, {"records": two * 2}):
        with pytest.raises(BadEvent, match="4 elements; send at most 3"):
            decode(json.dumps(document).encode(), INTERESTS)


def test_a_gzip_body_with_too_many_members_is_rejected() -> None:
    with pytest.raises(BadEvent, match="gzip members"):
        decode(gzip.compress(b"") * (decoding.MEMBERS_MAX + 1), INTERESTS)
    each = [gzip.compress(part.encode()) for part in reading()]
    assert len(decode(b"".join(each), INTERESTS).readings) == 1


async def test_only_the_first_rejections_are_kept_but_all_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    elements = [json.loads(reading()), *[json.loads(reading(value=-1))] * 500]
    body = json.dumps(elements).encode()
    decoded = decode(body, INTERESTS)
    assert (len(decoded.rejected), decoded.rejected_count) == (REJECTIONS_KEPT, 500)
    with caplog.at_level(logging.WARNING):
        effect = await MetricHandler(STREAM, INTERESTS)(Event(1, "@", NOW, body))
    kept = json.loads(effect.value or "")
    assert (len(kept["rejected"]), kept["rejected_count"]) == (REJECTIONS_KEPT, 500)
    assert "500" in caplog.text


async def test_other_tasks_run_between_large_events() -> None:
    handler, turns = MetricHandler(STREAM, INTERESTS), 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(others())
    for body in [gzip.compress(reading().encode()), b" " * 20_000 + reading().encode()] * 5:
        await handler(Event(1, "@", NOW, body))
    working.cancel()
    assert turns >= 9


def test_a_value_in_an_error_is_shown_in_pythons_notation_and_truncated() -> None:
    for value in (None, 5, -1.5, "text", b"bytes", [1, "a", {"b": None}], {"k": [True]}):
        assert quoted(value) == repr(value)
    large: object
    for large in ("x" * MIB, [[]] * MIB, {str(n): n for n in range(1000)}, 10**100_000):
        assert len(quoted(large)) <= SHOWN_CHARACTERS_MAX


def test_a_deeply_nested_value_is_shown_in_an_error() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert quoted(deep).startswith("[[[[")
    while deep:  # unwrap it level by level, because freeing it at once would overflow the stack
        deep = deep[0]  # type: ignore[assignment]


def test_the_catalogues_resource_yields_a_reading() -> None:
    assert decode(filled(reading(), 1000), INTERESTS).readings[0].resource_name == RESOURCE
