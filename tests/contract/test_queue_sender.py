"""Texts that are sent to a queue arrive unchanged, each as one message."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import pytest
from azure.storage.queue.aio import QueueClient

from local.azurite import Azurite
from local.twins.autoscaling import MemoryQueueSender
from shared.autoscaling.ports import QueueSender
from shared.azure.queues import StorageQueueSender
from shared.settings.connections import StorageConnection


@dataclass
class Rig:
    sender: QueueSender
    received: Callable[[], Awaitable[Sequence[str]]]


@pytest.fixture(params=["memory", "storage"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    if request.param == "memory":
        memory = MemoryQueueSender()

        async def remembered() -> Sequence[str]:
            return memory.texts

        yield Rig(memory, remembered)
        return
    azurite: Azurite = request.getfixturevalue("azurite")
    name = f"actions-{uuid.uuid4().hex[:8]}"
    sender = StorageQueueSender(StorageConnection("S", azurite.connection_string), name)
    async with QueueClient.from_connection_string(azurite.connection_string, name) as queue:

        async def received() -> Sequence[str]:
            return [message.content async for message in queue.receive_messages()]

        yield Rig(sender, received)
    await sender.close()


TEXTS = ['{"target": 3}', "[1, 2]", "grüße <&>", *(f"text {n}" for n in range(40))]


async def test_each_text_arrives_unchanged_as_one_message_on_a_queue_that_is_created(
    rig: Rig,
) -> None:
    await rig.sender.send_texts(TEXTS)
    await rig.sender.send_texts(TEXTS[:1])
    await rig.sender.send_texts([])
    assert sorted(await rig.received()) == sorted([*TEXTS, TEXTS[0]])
