"""The worker dies while it runs functions: what fails, what is repeated, and when the host ends."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
from azure.core.exceptions import ResourceExistsError
from azure.storage.queue.aio import QueueClient

from local.azurite import Azurite
from local.clock import utc_now
from local.demo.hosted_app import hosted_app
from local.demo.system import APP_DIR, shrunk_host_json
from local.functions_host import FunctionsHost, InvocationCounts
from local.functions_host.functions import QUEUE_TRIGGER
from local.functions_host.host_json import read_host_json
from local.functions_host.queue_listener import QueueListener
from local.functions_host.worker_deaths import APART_MAX, WorkerDeaths
from local.twins.autoscaling import MemoryCapacityControl, MemoryStateStore
from shared.autoscaling.acting.actions import action_of
from shared.autoscaling.declaring import CapacityTarget
from shared.autoscaling.messages import encode_action
from shared.autoscaling.state import ActionStatus
from tests.builders import desired, resource
from tests.local.polling import until
from tests.local.test_functions_host import SAMPLE_APP, encoded, sample_settings
from tests.settings.test_settings import SINGLE

SECONDS_MAX = 40
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@asynccontextmanager
async def sample_host(azurite: Azurite) -> AsyncIterator[FunctionsHost]:
    """The sample app, which works on a message for a minute."""
    name = f"work-{uuid.uuid4().hex[:12]}"
    async with QueueClient.from_connection_string(azurite.connection_string, name) as queue:
        await queue.create_queue()
        await queue.send_message(encoded({"seconds": 60}))
    settings, config = sample_settings(azurite, name), read_host_json(SAMPLE_APP)
    async with FunctionsHost(SAMPLE_APP, settings=settings, config=config) as host:
        yield host


def counts(host: FunctionsHost, name: str) -> InvocationCounts:
    return host.counts.get(name, InvocationCounts())


async def test_a_message_in_work_is_redelivered_and_the_third_death_in_a_row_ends_the_host(
    azurite: Azurite,
) -> None:
    async with sample_host(azurite) as host:
        sample = sys.modules["function_app"]
        failed = asyncio.create_task(host.failed())
        for death in (1, 2, 3):
            await until(lambda: sample.running["now"] == 1, SECONDS_MAX)
            assert not failed.done()
            await host.kill_worker()
            await until(lambda: counts(host, "work").failures == death, SECONDS_MAX)  # noqa: B023
        assert await failed == "the worker has died 3 times in a row"
        deliveries = [each["dequeue_count"] for each in sample.journal if "body" in each]
    assert deliveries == [1, 2, 3]


async def test_a_request_in_work_fails_at_once(azurite: Azurite) -> None:
    async with sample_host(azurite) as host:
        sample = sys.modules["function_app"]
        key = {"x-functions-key": host.keys.host}
        async with aiohttp.ClientSession(host.url, headers=key) as http:
            request = asyncio.create_task(http.get("/api/sleep/60"))
            await until(lambda: {"asleep": "60"} in sample.journal, SECONDS_MAX)
            await host.kill_worker()
            async with asyncio.timeout(SECONDS_MAX):
                assert (await request).status == 500


def test_only_deaths_within_half_an_hour_of_one_another_end_the_host() -> None:
    deaths = WorkerDeaths()
    assert not deaths.end_the_host(NOW)
    assert not deaths.end_the_host(NOW + APART_MAX)
    late = NOW + 2 * APART_MAX + timedelta(seconds=1)
    assert not deaths.end_the_host(late)
    assert not deaths.end_the_host(late + APART_MAX)
    assert deaths.end_the_host(late + 2 * APART_MAX)


class DiesAfterTheChange(MemoryCapacityControl):
    """Changes the capacity. The first time, no answer arrives."""

    changed = False

    async def change(self, target: CapacityTarget, capacity: int) -> None:
        await super().change(target, capacity)
        if not self.changed:
            self.changed = True
            await asyncio.Event().wait()


async def test_an_action_that_a_death_interrupts_after_the_change_is_confirmed_and_not_repeated(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaling_rules.resources", lambda _settings: [resource()])
    async with QueueClient.from_connection_string(azurite.connection_string, "actions") as queue:
        with suppress(ResourceExistsError):
            await queue.create_queue()
        await queue.clear_messages()
        host = FunctionsHost(
            APP_DIR,
            settings={**SINGLE, "AzureWebJobsStorage": azurite.connection_string},
            config=shrunk_host_json(),
            listeners={QUEUE_TRIGGER: QueueListener},
        )
        async with hosted_app(host) as app:
            store, control = MemoryStateStore(utc_now), DiesAfterTheChange(utc_now, {"plan-1": 2})
            app.scaling.store, app.scaling.control = store, control
            pending = desired(requested_at=utc_now(), sent_at=utc_now())
            snapshot = await store.load("plan-1")
            await store.commit(snapshot, snapshot.state.with_desired(pending), [])
            await queue.send_message(encode_action(action_of("plan-1", pending)))
            await until(lambda: control.changed, SECONDS_MAX)
            await host.kill_worker()
            await until(lambda: counts(host, "scaler").invocations == 2, SECONDS_MAX)
            settled = (await store.load("plan-1")).state.desired
    assert host.counts["scaler"].failures == 1
    assert control.changes == [("plan-1", pending.target)]
    assert settled is not None
    assert (settled.status, settled.epoch) == (ActionStatus.CONFIRMED, pending.epoch)
