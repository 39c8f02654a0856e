"""The outbox is sent to a storage queue, in messages that scaling_logic can decode."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from math import ceil

import pytest
from azure.storage.queue.aio import QueueClient

from local.azurite import Azurite
from shared.autoscaling.messages import decode_samples
from shared.azure.queues import StorageQueueSender
from shared.ingestion.decoding.readings import Decoded, to_effect
from shared.ingestion.errors import DependencyDown, SentInPart
from shared.ingestion.events import outbox
from shared.ingestion.events.process_batch import process_batch
from shared.ingestion.model import OutboxMessage, Stream, split
from shared.settings.connections import StorageConnection
from shared.values.measurements import Metric, MetricValue
from shared.values.samples import METRICS_OF_A_MESSAGE_MAX
from tests.ingestion.events.test_process_batch import Rig
from tests.ingestion.flows import STREAM, events
from tests.storage.faulty_network import Fault, Network

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
READINGS = [Metric(f"plan-{n % 2}", f"m{n}", MetricValue(AT, n)) for n in range(40)]


def queue_sender(azurite: Azurite) -> tuple[StorageQueueSender, str]:
    """The sender to a queue that does not exist yet, and its name."""
    name = f"metrics-{uuid.uuid4().hex[:8]}"
    return StorageQueueSender(StorageConnection("S", azurite.connection_string), name), name


async def received(azurite: Azurite, name: str) -> list[str]:
    async with QueueClient.from_connection_string(azurite.connection_string, name) as queue:
        return [m.content async for m in queue.receive_messages(max_messages=500)]


async def test_each_resource_gets_as_few_messages_as_possible_on_a_queue_that_is_created(
    azurite: Azurite,
) -> None:
    sender, name = queue_sender(azurite)
    stream = Stream("ns", "hub", "$Default", "0")
    effects = [
        to_effect(stream, 7, Decoded(tuple(READINGS[:1]))),
        to_effect(stream, 8, Decoded(tuple(READINGS[1:]))),
    ]
    messages = [message for effect in effects for message in effect.messages]
    await outbox.send_to_queue(sender.send_texts, messages)
    await sender.close()
    texts = await received(azurite, name)
    # The first effect has one metric of plan-0. The second has 19 of plan-0 and 20 of plan-1.
    assert len(texts) == 1 + sum(ceil(n / METRICS_OF_A_MESSAGE_MAX) for n in (19, 20))
    metrics = [metric for text in texts for metric in decode_samples(text).metrics]
    assert sorted(m.value.value for m in metrics) == list(range(40))
    assert {m.name for m in metrics} == {reading.name for reading in READINGS}


async def test_while_the_queue_fails_at_times_each_message_of_the_outbox_is_sent_once(
    azurite: Azurite,
) -> None:
    (sender, name), rig, network, failures = queue_sender(azurite), Rig(), Network(), 0
    send = partial(outbox.send_to_queue, sender.send_texts)
    await process_batch(events(0, 79), rig.consumer)
    with network.installed():
        for works in range(1, 200, 20):  # and then no request for as long as the call lasts
            network.arm(Fault("throttled", ("not sent",) * 500, after=works))
            try:
                await outbox.send_messages(STREAM, rig.store, send, rig.consumer.leases)
            except SentInPart:
                failures += 1
        network.disarm()
    await sender.close()
    assert failures > 2
    assert Counter(await received(azurite, name)) == Counter(str(n) for n in range(80))


@pytest.mark.parametrize(
    ("bodies", "sent"),
    [
        (["{}", "x" * 70_000, "{}"], {0, 2}),
        (["{}", f'[{{}}, "{"x" * 70_000}"]', "{}"], {0, 2}),
        (["[]", "x" * 70_000], {0}),
    ],
)
async def test_a_text_that_the_queue_refuses_stops_no_other(
    azurite: Azurite, bodies: list[str], sent: set[int]
) -> None:
    sender, name = queue_sender(azurite)
    messages = [OutboxMessage(str(n), body) for n, body in enumerate(bodies)]
    with pytest.raises(SentInPart, match=f"sending to queue {name} failed: ") as caught:
        await outbox.send_to_queue(sender.send_texts, messages)
    assert caught.value.sent == sent
    await sender.close()


async def test_an_unreachable_queue_holds_the_partition() -> None:
    endpoint = "QueueEndpoint=http://127.0.0.1:9/a;TableEndpoint=http://127.0.0.1:9/a;"
    string = f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey=eA==;{endpoint}"
    sender = StorageQueueSender(StorageConnection("S", string), "metrics")
    effect = to_effect(Stream("n", "h", "g", "0"), 1, Decoded(tuple(READINGS[:3])))
    with pytest.raises(DependencyDown, match="sending to queue metrics failed: "):
        await outbox.send_to_queue(sender.send_texts, effect.messages)
    await sender.close()


def test_a_body_that_is_not_an_array_is_one_message() -> None:
    assert list(split('{"a": 1}')) == ['{"a": 1}']
    assert list(split('[{"a": 1}, {"b": 2}]')) == ['{"a":1}', '{"b":2}']
