"""Storage that accepts requests and never answers: each function that sends ends, and an action is
sent later.

The functions send with the real client through a proxy that drops all bytes.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from azure.core.exceptions import ResourceExistsError
from azure.storage.queue.aio import QueueServiceClient

from local.azurite import Azurite
from local.demo.hosted_app import hosted_app
from local.demo.system import APP_DIR
from local.functions_host import FunctionsHost
from local.twins.autoscaling import MemoryCapacityControl, MemoryReader, MemoryStateStore
from shared.autoscaling.messages import decode_action
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from tests.builders import SOURCE, encode_metric, resource
from tests.local.half_open import HalfOpenProxy
from tests.settings.test_settings import SINGLE

SHORT_SECONDS = 0.3
ENDS_WITHIN_SECONDS = 30
"""Half the time after which the client itself would give up."""
RESOURCE = resource()
TICK = timedelta(seconds=15)


@dataclass
class World:
    """The app with its state in memory, and with its queues behind a proxy."""

    host: FunctionsHost
    proxy: HalfOpenProxy
    queues: QueueServiceClient
    control: MemoryCapacityControl
    now: datetime = datetime(2026, 3, 1, 12, tzinfo=UTC)

    async def run(self, name: str, text: str = "") -> None:
        outcome = await self.host.invoke(name, text)
        assert outcome.succeeded, outcome.error

    async def run_while_frozen(self, name: str, text: str = "") -> None:
        """The function has to fail in time. Afterwards, the queues answer again."""
        self.proxy.swallow(new=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys.modules["function_app"], "SEND_SECONDS_MAX", SHORT_SECONDS)
            async with asyncio.timeout(ENDS_WITHIN_SECONDS):
                outcome = await self.host.invoke(name, text)
        self.proxy.forward()
        assert (outcome.succeeded, "TimeoutError" in outcome.error) == (False, True)

    async def received(self, queue: str) -> list[str]:
        """The messages that arrived since the last call."""
        messages = self.queues.get_queue_client(queue).receive_messages(visibility_timeout=3600)
        return [message.content async for message in messages]

    async def sample_that_causes_a_scale_out(self) -> str:
        """Process samples of a high load except for the last one, which is returned."""
        capacity = encode_metric(Metric(RESOURCE.name, CAPACITY_METRIC, MetricValue(self.now, 2)))
        await self.run("scaling_logic", capacity)
        for last in (False, False, False, False, True):
            self.now += TICK
            body = encode_metric(Metric(RESOURCE.name, "backlog", MetricValue(self.now, 500)))
            if not last:
                await self.run("scaling_logic", body)
        return body


@pytest.fixture
async def world(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("scaling_rules.resources", lambda _settings: [RESOURCE])
    storage = azurite.connection_string
    port = re.search(r"QueueEndpoint=http://127.0.0.1:(\d+)", storage)
    assert port is not None
    async with (
        QueueServiceClient.from_connection_string(storage) as queues,
        HalfOpenProxy(int(port[1])) as proxy,
    ):
        for name in ("metrics", "actions"):
            queue = queues.get_queue_client(name)
            with suppress(ResourceExistsError):
                await queue.create_queue()
            await queue.clear_messages()
        behind_proxy = storage.replace(port[0], f"QueueEndpoint=http://127.0.0.1:{proxy.port}")
        settings = {**SINGLE, "AzureWebJobsStorage": behind_proxy}
        host = FunctionsHost(APP_DIR, settings=settings, listeners={})
        async with hosted_app(host) as app:

            def now() -> datetime:
                return there.now

            control = MemoryCapacityControl(now, {RESOURCE.name: 2})
            there = World(host, proxy, queues, control)
            app.scaling.store, app.scaling.control = MemoryStateStore(now), control
            app.scaling.reader = MemoryReader(now, {SOURCE: 500.0}, control)
            yield there


async def test_an_action_that_a_frozen_queue_did_not_take_is_sent_when_the_message_is_redelivered(
    world: World,
) -> None:
    body = await world.sample_that_causes_a_scale_out()
    await world.run_while_frozen("scaling_logic", body)
    assert await world.received("actions") == []
    await world.run("scaling_logic", body)
    (action,) = await world.received("actions")
    assert (decode_action(action).target, decode_action(action).epoch) == (3, 1)


async def test_an_action_that_the_reconciler_could_not_send_is_sent_by_a_later_run(
    world: World,
) -> None:
    await world.run("scaling_logic", await world.sample_that_causes_a_scale_out())
    (lost,) = await world.received("actions")
    world.now += timedelta(seconds=60)
    await world.run_while_frozen("reconciler")
    assert await world.received("actions") == []
    world.now += timedelta(seconds=60)
    await world.run("reconciler")
    (action,) = await world.received("actions")
    assert action == lost
    await world.run("scaler", action)
    await world.run("scaler", lost)  # it arrives after all
    assert world.control.changes == [(RESOURCE.name, 3)]
