"""Texts that are sent to a queue arrive unchanged, each as one message."""

from __future__ import annotations

import uuid

from azure.storage.queue.aio import QueueClient

from local.azurite import Azurite
from shared.azure.queues import StorageQueueSender
from shared.settings.connections import StorageConnection

TEXTS = ['{"target": 3}', "[1, 2]", "grüße <&>", *(f"text {n}" for n in range(40))]


async def test_each_text_arrives_unchanged_as_one_message_on_a_queue_that_is_created(
    azurite: Azurite,
) -> None:
    name = f"actions-{uuid.uuid4().hex[:8]}"
    sender = StorageQueueSender(StorageConnection("S", azurite.connection_string), name)
    for texts in (TEXTS, TEXTS[:1], []):
        await sender.send_texts(texts)
    await sender.close()
    async with QueueClient.from_connection_string(azurite.connection_string, name) as queue:
        received = [message.content async for message in queue.receive_messages()]
    assert sorted(received) == sorted([*TEXTS, TEXTS[0]])
