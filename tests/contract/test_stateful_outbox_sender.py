"""Random outbox messages to a storage queue: each arrives unchanged and at least once.

This port has no in-memory adapter. The test compares with the texts that must be in the queue.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from typing import Any
from unittest.mock import patch

from azure.storage.queue.aio import QueueClient
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from local.azurite import Azurite
from shared.azure.queues import StorageQueueSender, queue_service
from shared.azure.transport import STORAGE_RETRIES
from shared.ingestion.errors import DependencyDown, SentInPart
from shared.ingestion.events.outbox import OutboxQueue
from shared.ingestion.model import OutboxMessage
from shared.settings.connections import StorageConnection
from tests.contract.faulty_network import LOST, NO_FAULT, SERVER_ERROR, Fault, Network
from tests.contract.stateful import SideBySide, run_machine, texts

objects = st.dictionaries(
    texts, st.one_of(texts, st.none(), st.booleans(), st.integers()), max_size=3
)
bodies = st.one_of(objects, st.lists(objects, max_size=4))
FAULTS = st.sampled_from((*[NO_FAULT] * 5, LOST, SERVER_ERROR))


class OutboxMachine(SideBySide):
    errors = (DependencyDown,)

    def __init__(
        self, runner: asyncio.Runner, network: Network, connection: StorageConnection
    ) -> None:
        super().__init__(runner, network)
        name = f"metrics-{uuid.uuid4().hex[:8]}"
        self.real = StorageQueueSender(connection, name)
        self.service = queue_service(connection)
        self.queue: QueueClient = self.service.get_queue_client(name)
        self.due, self.maybe = Counter[str](), Counter[str]()
        self.sent = False

    def teardown(self) -> None:
        self.run(self.real.close)
        self.run(self.service.close)

    @rule(contents=st.lists(bodies, min_size=1, max_size=3), fault=FAULTS)
    def send(self, contents: list[Any], fault: Fault) -> None:
        messages = [OutboxMessage(str(n), json.dumps(body)) for n, body in enumerate(contents)]
        parts = [part for body in contents for part in (body if isinstance(body, list) else [body])]
        expected = Counter(json.dumps(part, sort_keys=True) for part in parts)
        sent_in_part = list[int]()

        async def send() -> None:
            try:
                await OutboxQueue(self.real.send_texts).send(messages)
            except SentInPart as error:
                sent_in_part.extend(error.sent)
                raise

        self.network.arm(fault)
        answer = self.run(lambda: self._answer(send))
        struck = self.network.disarm()
        if answer.error is None:
            self.due += expected
        else:
            assert struck, answer
            for place in sent_in_part:
                body = contents[place]
                sent = body if isinstance(body, list) else [body]
                self.due += Counter(json.dumps(part, sort_keys=True) for part in sent)
        if fault is not NO_FAULT:
            self.maybe += expected

    @invariant()
    def each_message_has_arrived_and_no_other(self) -> None:
        async def received() -> Counter[str]:
            # The timeout is so long that no message reappears, even if the emulator is slow.
            messages = self.queue.receive_messages(max_messages=2000, visibility_timeout=3600)
            received_texts = [message.content async for message in messages]
            await self.queue.clear_messages()
            return Counter(json.dumps(json.loads(text), sort_keys=True) for text in received_texts)

        if self.due or self.maybe:
            there = self.run(received)
            assert there >= self.due, f"lost: {self.due - there}"
            assert there <= self.due + self.maybe, f"too many: {there - self.due - self.maybe}"
            self.due, self.maybe = Counter(), Counter()


def test_each_message_of_the_outbox_is_sent_at_least_once(azurite: Azurite) -> None:
    """There are at most 20 examples. Azurite does not answer while it removes the messages of
    cleared queues, which takes more than a minute after 200 examples."""
    network = Network()
    connection = StorageConnection("Storage", azurite.connection_string)
    at_once = patch.dict(STORAGE_RETRIES, {"initial_backoff": 0, "increment_base": 0})
    with asyncio.Runner() as runner, network.installed(), at_once:
        run_machine(lambda: OutboxMachine(runner, network, connection), examples=3, examples_max=20)
