"""The adapters take the time from the server, even if its clock differs from this machine's.

All instances of the app share the server's clock, because the clock of any instance may be wrong.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.storage.queue import QueueClient

from local.azure_apis.arm import ArmStandIn
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
from tests.autoscaling.services.test_azure_adapters import GIVEN, ID, Given, loaded
from tests.builders import TIMING, desired, plan, resource
from tests.ingestion.commits import new_stream
from tests.storage.faulty_network import Network

A_SECOND = timedelta(seconds=1)
"""The ``Date`` of a response has whole seconds."""


@pytest.fixture(params=[timedelta(hours=2), timedelta(hours=-2)], ids=["ahead", "behind"])
def skew(request: pytest.FixtureRequest) -> timedelta:
    """How far the server's clock is ahead of this machine's."""
    skew: timedelta = request.param
    return skew


@pytest.fixture
def servers_time(skew: timedelta) -> datetime:
    return datetime.now(UTC) + skew


@pytest.fixture
def storage(azurite: Azurite, servers_time: datetime) -> Iterator[StorageConnection]:
    """A connection to Azurite through a network that replaces the ``Date`` of the responses."""
    network = Network()
    network.now = servers_time
    with network.installed():
        yield StorageConnection("Storage", azurite.connection_string)


# --- the time that each adapter returns ---


def name() -> str:
    return uuid.uuid4().hex


ADAPTERS: dict[str, tuple[Callable[[StorageConnection], Any], Callable[[Any], Awaitable[Any]]]] = {
    "scaling state": (TableStateStore, lambda store: store.load(name())),
    "events": (lambda s: EventStore(TableRows(s)), lambda store: store.load(new_stream())),
    "owners": (
        lambda s: OwnershipStore(TableRows(s), "ns", name(), "$Default"),
        lambda store: store.owners(),
    ),
    "breaker": (lambda s: BreakerStore(TableRows(s), name()), lambda store: store.load()),
    "notifications": (TableNotificationStore, lambda store: store.read()),
    "nightly runs": (TableRunStore, lambda store: store.read(name())),
}


async def test_every_table_returns_the_servers_time_with_its_rows(
    storage: StorageConnection, servers_time: datetime
) -> None:
    for adapter, (opened, read) in ADAPTERS.items():
        store = opened(storage)
        answer = await read(store)
        await store.close()
        time = answer.now if adapter == "nightly runs" else answer.read_at
        assert abs(time - servers_time) <= A_SECOND, adapter


async def test_a_sample_has_the_time_of_the_server_that_it_was_read_from(
    storage: StorageConnection, azurite: Azurite, servers_time: datetime
) -> None:
    waiting = f"queue-{name()}"
    with QueueClient.from_connection_string(azurite.connection_string, waiting) as queue:
        queue.create_queue()
    reader = StorageQueueReader(storage)
    times = [(await reader.read(StorageQueue(waiting))).time]
    await reader.close()
    async with ServiceBusAdminStandIn(Given(), clock=lambda: servers_time) as bus:
        bus.declare_queue("work")
        messages = ServiceBusReader(ServiceBusConnection("Bus", bus.connection_string))
        reading = await messages.read(ServiceBusQueue("work"))
        await messages.close()
    assert reading.value == GIVEN["active"]
    assert all(abs(time - servers_time) <= A_SECOND for time in (*times, reading.time))


async def test_a_plans_capacity_has_the_time_of_azure_resource_manager(
    servers_time: datetime,
) -> None:
    plans = [Plan(ID, capacity=2, sku=P1V3)]
    async with ArmStandIn(plans, clock=lambda: servers_time) as arm:
        control = AppServiceControl(loaded(ArmEndpoint=arm.base_url))
        assert abs((await control.read(plan())).time - servers_time) <= A_SECOND
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
