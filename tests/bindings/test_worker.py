"""Runs every function in the official worker library, with real bindings, Azurite and stand-ins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import aiohttp
import pytest

from local.azure_apis.arm import ArmStandIn
from local.azure_apis.entities import EntityCounts
from local.azure_apis.plans import P1V3, Plan
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn
from local.azurite import Azurite
from local.demo import profile
from local.demo.hosted_app import hosted_app
from local.demo.system import APP_DIR, shrunk_host_json
from local.functions_host.host import FunctionsHost
from shared.autoscaling.deciding.decide import EntryKind
from shared.autoscaling.declaring import Mode
from shared.autoscaling.messages import encode_action
from shared.autoscaling.state import ScaleAction
from shared.autoscaling.store.tables import TableStateStore
from shared.settings.connections import StorageConnection

NAMES = {
    "metric_collector",
    "scaling_logic",
    "scaler",
    "reconciler",
    "metrics_poison",
    "actions_poison",
    "log_retention",
    "notifier",
    "dashboard",
    "resources",
    "override",
    "trends",
}
ONCE_A_YEAR = "0 0 0 1 1 *"
WAIT_SECONDS = 60


class Busy:
    def counts(self, _entity_path: str, /) -> EntityCounts | None:
        return EntityCounts(active=500)


@pytest.fixture
async def arm() -> AsyncIterator[ArmStandIn]:
    async with ArmStandIn([Plan(profile.PLAN, capacity=2, sku=P1V3)]) as stand_in:
        yield stand_in


@pytest.fixture
async def host(arm: ArmStandIn, azurite: Azurite) -> AsyncIterator[FunctionsHost]:
    bus = ServiceBusAdminStandIn(Busy())
    bus.declare_topic(profile.TOPIC)
    bus.declare_subscription(profile.TOPIC, profile.SUBSCRIPTION)
    async with bus:
        settings = {
            **profile.settings(10, azurite.connection_string, bus.connection_string, arm.base_url),
            "MetricCollectorSchedule": ONCE_A_YEAR,
            "ReconcilerSchedule": ONCE_A_YEAR,
            "LogRetentionSchedule": ONCE_A_YEAR,
            "NotifierSchedule": ONCE_A_YEAR,
            "MinimumSamples": "1",
            "InstanceRatePerMinute": "",  # without it, the thresholds decide, one step at a time
        }
        host = FunctionsHost(APP_DIR, settings=settings, config=shrunk_host_json())
        async with hosted_app(host):
            yield host


@pytest.fixture
async def store(azurite: Azurite) -> AsyncIterator[TableStateStore]:
    store = TableStateStore(StorageConnection("Storage", azurite.connection_string))
    yield store
    await store.close()


async def until(met: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not await met():
        assert time.monotonic() < deadline, "the condition was not met in time"
        await asyncio.sleep(0.05)


async def test_every_function_is_indexed_and_runs_once(
    host: FunctionsHost, arm: ArmStandIn, store: TableStateStore
) -> None:
    assert {function.name for function in host.functions} == NAMES

    async def scaled() -> bool:
        assert (await host.invoke("metric_collector")).succeeded
        kinds = [line.kind for line in await store.log(profile.PLAN.name)]
        return EntryKind.CONFIRMED in kinds

    await until(scaled)  # through the queues: metrics → scaling_logic → actions → scaler
    assert arm.plan(profile.PLAN).capacity == 3

    arm.set_capacity_by_hand(profile.PLAN, 6)
    assert (await host.invoke("reconciler")).succeeded  # which has nothing to do

    async def noticed() -> bool:
        assert (await host.invoke("metric_collector")).succeeded
        kinds = [line.kind for line in await store.log(profile.PLAN.name)]
        return EntryKind.MANUAL_CHANGE in kinds

    await until(noticed)

    assert (await host.invoke("metrics_poison", "not json")).succeeded
    stale = ScaleAction(profile.PLAN.name, 9, 99, "never decided", datetime.now(UTC))
    assert (await host.invoke("actions_poison", encode_action(stale))).succeeded
    assert (await host.invoke("scaler", encode_action(stale))).succeeded
    assert (await host.invoke("log_retention")).succeeded
    assert (await host.invoke("notifier")).succeeded
    assert arm.plan(profile.PLAN).capacity == 6
    await check_http_functions(f"{host.url}/api", host.keys.host, store)


async def check_http_functions(api: str, key: str, store: TableStateStore) -> None:
    """Call the HTTP functions over HTTP."""
    name = profile.PLAN.name
    async with aiohttp.ClientSession(headers={"x-functions-key": key}) as client:
        async with client.get(f"{api}/dashboard") as page:
            assert (page.status, page.content_type) == (200, "text/html")
            assert name in await page.text()
        async with client.get(f"{api}/resources/{name}/decisions", params={"limit": 2}) as answer:
            assert len(await answer.json()) == 2
        async with client.get(f"{api}/resources/nobody") as answer:
            assert answer.status == 404
        body = {"mode": "paused", "reason": "test", "by": "anna"}
        async with client.post(f"{api}/resources/{name}/override", json=body) as answer:
            assert (await answer.json())["said"] == "paused by anna: test"
    override = (await store.load(name)).state.override
    assert override
    assert override.mode is Mode.PAUSED
