"""The outbox is sent to a storage queue, in messages that scaling_logic can decode."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from math import ceil

import pytest
from azure.storage.queue.aio import QueueClient

from local.azurite import Azurite
from shared.adapters.queues.outbox_sender import StorageQueueSender
from shared.autoscaling.messages import METRICS_OF_A_MESSAGE_MAX, decode_samples
from shared.ingestion.decoding.readings import Decoded, Reading, to_effect
from shared.ingestion.errors import DependencyDown
from shared.ingestion.model import Stream, split
from shared.settings.connections import StorageConnection

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
READINGS = [Reading(f"plan-{n % 2}", f"m{n}", AT, n) for n in range(40)]


async def test_each_resource_gets_as_few_messages_as_possible_on_a_queue_that_is_created(
    azurite: Azurite,
) -> None:
    name = f"metrics-{uuid.uuid4().hex[:8]}"
    stream = Stream("ns", "hub", "$Default", "0")
    effects = [
        to_effect(stream, 7, Decoded(tuple(READINGS[:1]))),
        to_effect(stream, 8, Decoded(tuple(READINGS[1:]))),
    ]
    sender = StorageQueueSender(StorageConnection("S", azurite.connection_string), name)
    await sender.send([message for effect in effects for message in effect.messages])
    await sender.close()
    async with QueueClient.from_connection_string(azurite.connection_string, name) as queue:
        texts = [m.content async for m in queue.receive_messages(max_messages=50)]
    # The first effect has one metric of plan-0. The second has 19 of plan-0 and 20 of plan-1.
    assert len(texts) == 1 + sum(ceil(n / METRICS_OF_A_MESSAGE_MAX) for n in (19, 20))
    metrics = [metric for text in texts for metric in decode_samples(text).metrics]
    assert sorted(m.value.value for m in metrics) == list(range(40))
    assert {m.name for m in metrics} == {reading.name for reading in READINGS}


async def test_an_unreachable_queue_holds_the_partition() -> None:
    endpoint = "QueueEndpoint=http://127.0.0.1:9/a;TableEndpoint=http://127.0.0.1:9/a;"
    string = f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey=eA==;{endpoint}"
    sender = StorageQueueSender(StorageConnection("S", string), "metrics")
    effect = to_effect(Stream("n", "h", "g", "0"), 1, Decoded(tuple(READINGS[:3])))
    with pytest.raises(DependencyDown, match="sending to queue metrics failed: "):
        await sender.send(effect.messages)
    await sender.close()


def test_a_body_that_is_not_an_array_is_one_message() -> None:
    assert list(split('{"a": 1}')) == ['{"a": 1}']
    assert list(split('[{"a": 1}, {"b": 2}]')) == ['{"a":1}', '{"b":2}']
