"""The deployed package in a host: indexed, scaling, keeping poison apart, and after a restart.

The same test runs in the local Functions host and, where Azure Functions Core Tools are installed,
under `func start`. The local host is thereby held to what the real one does.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.storage.queue.aio import QueueClient

from local.amqp_broker.administration import ServiceBusStandIn, service_bus
from local.azure_apis.arm import ArmStandIn
from local.azure_apis.plans import P1V3, Plan
from local.azurite import Azurite
from local.demo import profile
from tests.core_tools.host_process import HostProcess
from tests.local.polling import until

START_SECONDS_MAX = 120.0  # func downloads the extension bundle at its first start
SECONDS_MAX = 60.0
BACKLOG = 50

needs_func = pytest.mark.skipif(
    shutil.which("func") is None,
    reason="Azure Functions Core Tools are not installed (see CONTRIBUTING.md)",
)
each_host = pytest.mark.parametrize("kind", ["local", pytest.param("func", marks=needs_func)])


@dataclass
class Cloud:
    """The services around the host, all on this machine."""

    storage: str
    bus: ServiceBusStandIn
    arm: ArmStandIn

    @property
    def settings(self) -> dict[str, str]:
        chosen = profile.settings(10, self.storage, self.bus.connection_string, self.arm.base_url)
        return chosen | {"FUNCTIONS_WORKER_RUNTIME": "python", "MinimumSamples": "1"}

    async def send_backlog(self) -> None:
        messages = [ServiceBusMessage(b"order") for _ in range(BACKLOG)]
        async with (
            ServiceBusClient.from_connection_string(self.bus.connection_string) as client,
            client.get_topic_sender(profile.TOPIC) as sender,
        ):
            await sender.send_messages(messages)

    async def put(self, queue: str, text: str) -> None:
        async with QueueClient.from_connection_string(self.storage, queue) as client:
            await client.send_message(text)

    async def waiting(self, queue: str) -> int:
        async with QueueClient.from_connection_string(self.storage, queue) as client:
            try:
                found = await client.get_queue_properties()
            except ResourceNotFoundError:
                return 0
        return found.approximate_message_count or 0


@asynccontextmanager
async def cloud(azurite: Azurite) -> AsyncIterator[Cloud]:
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(service_bus())
        bus.amqp.namespace.declare_topic(profile.TOPIC)
        bus.amqp.namespace.declare_subscription(profile.TOPIC, profile.SUBSCRIPTION)
        plan = Plan(profile.PLAN, capacity=1, sku=P1V3)
        arm = await stack.enter_async_context(ArmStandIn([plan], operation_seconds=0.2))
        yield Cloud(azurite.connection_string, bus, arm)


async def wait_for(host: HostProcess, met: Callable[[], bool], seconds: float) -> None:
    """Wait, and show what the host printed if it ended or the time is over."""
    try:
        await until(lambda: met() or not host.running, seconds)
    except AssertionError as error:
        error.add_note(host.printed()[-5000:])
        raise
    assert host.running or met(), host.printed()[-5000:]


@each_host
@pytest.mark.timeout(600)
async def test_the_package_runs_in_a_host(kind: str, tmp_path: Path, unused_tcp_port: int) -> None:
    with Azurite() as azurite:  # another test may have paused the plan in the shared one
        await the_package_runs(kind, azurite, tmp_path, unused_tcp_port)


async def the_package_runs(
    kind: str, azurite: Azurite, tmp_path: Path, unused_tcp_port: int
) -> None:
    async with cloud(azurite) as around:
        host = HostProcess(kind, tmp_path / "app", around.settings, unused_tcp_port)
        declared = host.declared_functions()
        assert {"metric_collector", "scaling_logic", "scaler", "reconciler"} <= declared
        async with host:
            await wait_for(host, lambda: declared <= host.listed_functions(), START_SECONDS_MAX)
            assert host.listed_functions() == declared
            await the_backlog_scales_the_plan(host, around)
            await an_unreadable_message_becomes_poison(host, around)
        before = host.printed()
        async with host:
            await decisions_continue(host, before)
            assert (await around.waiting("metrics-poison"), await around.waiting("actions")) == (
                0,
                0,
            )


async def the_backlog_scales_the_plan(host: HostProcess, around: Cloud) -> None:
    """Timer → queue → decision → queue → scaler → Resource Manager."""
    await around.send_backlog()
    await wait_for(host, lambda: around.arm.plan(profile.PLAN).capacity > 1, SECONDS_MAX)
    assert all(put.accepted for put in around.arm.puts)


async def an_unreadable_message_becomes_poison(host: HostProcess, around: Cloud) -> None:
    """Five attempts, then the host moves it, and the app writes it into the decision log."""
    await around.put("metrics", "{")
    await wait_for(host, lambda: "[poison]" in host.printed(), SECONDS_MAX)


async def decisions_continue(host: HostProcess, before: str) -> None:
    """Within the minute in which a new host takes over the locks of the timers."""
    await wait_for(
        host, lambda: "[decided]" in host.printed().removeprefix(before), START_SECONDS_MAX
    )
