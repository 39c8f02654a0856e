"""The adapters take the time from the server, even if its clock differs from this machine's.

All instances of the app share the server's clock, because the clock of any instance may be wrong.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from azure.storage.queue import QueueClient
from yarl import URL

from local.azure_apis.arm import ArmStandIn
from local.azure_apis.loopback_server import HOST
from local.azure_apis.plans import P1V3, Plan
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn
from local.azurite import Azurite
from local.twins.autoscaling import MemoryCapacityControl
from shared.autoscaling import Mode, ServiceBusQueue, StorageQueue
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.flows.scaler import Scaler
from shared.autoscaling.plans.app_service import AppServiceControl
from shared.autoscaling.services.clients import ServiceBusReader, StorageQueueReader
from shared.autoscaling.state import Override, ScaleAction, ScalingState
from shared.autoscaling.store.tables import TableStateStore
from shared.ingestion.store.breakers import BreakerStore
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.owners import OwnershipStore
from shared.ingestion.store.tables import TableRows
from shared.notifications.store import TableNotificationStore
from shared.settings.connections import ServiceBusConnection, StorageConnection
from shared.trends.store.runs import TableRunStore
from tests.builders import TIMING, desired, plan, resource
from tests.contract.ingestion import new_stream
from tests.contract.test_azure_adapters import GIVEN, ID, Given, loaded

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date"}
TOLERANCE = timedelta(seconds=10)


@pytest.fixture(params=[timedelta(hours=2), timedelta(hours=-2)], ids=["ahead", "behind"])
def skew(request: pytest.FixtureRequest) -> timedelta:
    """How far the server's clock is ahead of this machine's."""
    skew: timedelta = request.param
    return skew


@pytest.fixture
def clock(skew: timedelta) -> Callable[[], datetime]:
    return lambda: datetime.now(UTC) + skew


def agrees(time: datetime, clock: Callable[[], datetime]) -> bool:
    return abs(time - clock()) < TOLERANCE


class Proxy:
    """A proxy that forwards requests to storage and replaces the ``Date`` of the responses."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._session = aiohttp.ClientSession(auto_decompress=False)
        self._runners: list[web.ServerRunner] = []

    async def front(self, target: str) -> str:
        """Start to forward requests to ``target``. Returns the address of the proxy."""

        async def forward(request: web.BaseRequest) -> web.Response:
            url = URL(target + request.raw_path, encoded=True)
            headers, sent = request.headers, await request.read() or None
            async with self._session.request(
                request.method, url, headers=headers, data=sent, skip_auto_headers=["Content-Type"]
            ) as answer:
                kept = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_BY_HOP}
                date = format_datetime(self._clock().replace(microsecond=0), usegmt=True)
                body = await answer.read()
                return web.Response(status=answer.status, body=body, headers={**kept, "Date": date})

        runner = web.ServerRunner(web.Server(forward))
        self._runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, HOST, 0).start()
        return f"http://{HOST}:{runner.addresses[0][1]}"

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()
        await self._session.close()


@pytest.fixture
async def storage(
    azurite: Azurite, clock: Callable[[], datetime]
) -> AsyncIterator[StorageConnection]:
    """A connection to Azurite through proxies whose clock differs."""
    proxy = Proxy(clock)
    string = azurite.connection_string
    for service in ("Table", "Queue"):
        start = string.partition(f"{service}Endpoint=")[2].partition("/devstoreaccount1")[0]
        string = string.replace(start, await proxy.front(start))
    yield StorageConnection("Storage", string)
    await proxy.close()


# --- the time that each adapter returns ---


def name() -> str:
    return uuid.uuid4().hex


async def scaling_state(store: TableStateStore) -> datetime:
    return (await store.load(name())).read_at


async def events(store: EventStore) -> datetime:
    return (await store.load(new_stream())).read_at


async def owners(store: OwnershipStore) -> datetime:
    return (await store.owners()).read_at


async def breaker(store: BreakerStore) -> datetime:
    return (await store.load()).read_at


async def notifications(store: TableNotificationStore) -> datetime:
    return (await store.read()).read_at


async def nightly_runs(store: TableRunStore) -> datetime:
    return (await store.read(name())).now


@pytest.mark.parametrize(
    ("adapter", "read"),
    [
        (TableStateStore, scaling_state),
        (lambda storage: EventStore(TableRows(storage)), events),
        (lambda storage: OwnershipStore(TableRows(storage), "ns", name(), "$Default"), owners),
        (lambda storage: BreakerStore(TableRows(storage), name()), breaker),
        (TableNotificationStore, notifications),
        (TableRunStore, nightly_runs),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_every_table_returns_the_servers_time_with_its_rows(
    storage: StorageConnection,
    clock: Callable[[], datetime],
    adapter: Callable[[StorageConnection], Any],
    read: Callable[[Any], Awaitable[datetime]],
) -> None:
    store = adapter(storage)
    try:
        assert agrees(await read(store), clock)
    finally:
        await store.close()


async def test_a_sample_has_the_time_of_the_server_that_it_was_read_from(
    storage: StorageConnection, azurite: Azurite, clock: Callable[[], datetime]
) -> None:
    waiting = f"queue-{name()}"
    with QueueClient.from_connection_string(azurite.connection_string, waiting) as queue:
        queue.create_queue()
    reader = StorageQueueReader(storage)
    assert agrees((await reader.read(StorageQueue(waiting))).time, clock)
    await reader.close()
    async with ServiceBusAdminStandIn(Given(), clock=clock) as bus:
        bus.declare_queue("work")
        messages = ServiceBusReader(ServiceBusConnection("Bus", bus.connection_string))
        reading = await messages.read(ServiceBusQueue("work"))
        assert (reading.value, agrees(reading.time, clock)) == (GIVEN["active"], True)
        await messages.close()


async def test_a_plans_capacity_has_the_time_of_azure_resource_manager(
    clock: Callable[[], datetime],
) -> None:
    async with ArmStandIn([Plan(ID, capacity=2, sku=P1V3)], clock=clock) as arm:
        control = AppServiceControl(loaded(ArmEndpoint=arm.base_url))
        assert agrees((await control.read(plan())).time, clock)
        await control.close()


# --- a decision that depends on the time ---


async def test_an_override_expires_by_the_servers_clock_and_not_by_the_local_one(
    storage: StorageConnection, skew: timedelta
) -> None:
    """The override expires in an hour by this machine's clock. It has expired on a server that is
    two hours ahead, and is in force on a server that is behind."""
    store, declared = TableStateStore(storage), resource(name())
    here = datetime.now(UTC)
    pause = Override(Mode.PAUSED, "incident", expires_at=here + timedelta(hours=1))
    pending = desired(requested_at=here + skew, sent_at=here + skew)
    await store.commit(await store.load(declared.name), ScalingState(desired=pending))
    entry = LogEntry(declared.name, here, EntryKind.OVERRIDE, "pause", "incident")
    await store.put_override(await store.load(declared.name), pause, entry)
    control = MemoryCapacityControl(lambda: here, {declared.target.name: 2})
    action = ScaleAction(declared.name, pending.target, pending.epoch, "why", pending.requested_at)
    ended = await Scaler({declared.name: declared}, store, control, TIMING).execute(action)
    await store.close()
    paused = skew < timedelta(0)
    assert ended is (EntryKind.IGNORED if paused else EntryKind.CONFIRMED)
    assert control.capacities[declared.target.name] == (2 if paused else 3)
