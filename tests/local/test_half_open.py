"""Half-open connections to Service Bus: they stay open but carry no bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from azure.core.exceptions import ServiceResponseTimeoutError

from local.amqp_broker import AmqpStandIn, in_thread
from local.amqp_broker.administration import service_bus
from local.amqp_broker.model.properties import QueueProperties
from local.azurite import Azurite
from local.functions_host import FunctionsHost, InvocationCounts, service_bus_listener
from shared.azure import transport
from shared.messaging.batch_sender import BatchSender
from shared.messaging.link import ServiceBusLink
from shared.messaging.model import SendingStopped
from shared.messaging.send_state import RetryBudget
from shared.settings.connections import ServiceBusConnection
from shared.trends.datasets.queues import QueueCheck
from shared.values.messages import LinkFailed, Message, Result
from shared.wiring.batch_sender import batch_sender
from tests.local.amqp_rig import LEAVES_SOCKETS_OPEN, forget_open_sockets
from tests.local.half_open import HalfOpenProxy
from tests.local.polling import until
from tests.local.test_functions_host_messaging import APP, LISTENING

pytestmark = LEAVES_SOCKETS_OPEN
SECONDS = 1.0
"""The timeout of one attempt. The app waits longer; see ATTEMPT_SECONDS."""

BOUND_SECONDS = 20.0
"""An upper limit that is much longer than all attempts together."""


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture(scope="module")
def bus() -> Iterator[AmqpStandIn]:
    with in_thread(AmqpStandIn()) as running:
        running.namespace.declare_queue(
            "jobs", QueueProperties(duplicate_window=timedelta(minutes=10))
        )
        yield running


@pytest.fixture
async def proxy(bus: AmqpStandIn) -> AsyncIterator[HalfOpenProxy]:
    async with HalfOpenProxy(bus.port) as running:
        yield running


class Program:
    """A program that sends like the app, but pauses shortly and gives up sooner. On a slow machine,
    an attempt over a working connection may time out, too.
    """

    def __init__(self, connection_string: str) -> None:
        connection = ServiceBusConnection("Bus", connection_string)
        link = ServiceBusLink(connection, "jobs", now, attempt_seconds=SECONDS)
        budget = RetryBudget(failures_max=10, pause_seconds=0.01)
        self.sender = BatchSender(link, asyncio.sleep, lambda: "unused", budget)

    async def send(self, message_id: str) -> Result:
        return await self.sender.send([Message(b"", message_id)])


@pytest.fixture
async def program(bus: AmqpStandIn, proxy: HalfOpenProxy) -> AsyncIterator[Program]:
    string = proxy.through(bus.connection_string)
    running = Program(string)
    yield running
    async with asyncio.timeout(BOUND_SECONDS):
        await running.sender.link.close()
    del running
    forget_open_sockets()


async def test_a_sender_opens_a_new_connection_when_its_connection_is_silent(
    program: Program, proxy: HalfOpenProxy, bus: AmqpStandIn
) -> None:
    before = bus.namespace.counts("jobs", now()).active
    await program.send(f"first of {id(program)}")
    proxy.swallow()
    async with asyncio.timeout(BOUND_SECONDS):
        result = await program.send(f"second of {id(program)}")
    assert (result.sent, result.retries >= 1, proxy.accepted >= 2) == (1, True, True)
    assert bus.namespace.counts("jobs", now()).active == before + 2


async def test_a_sender_that_gave_up_starts_with_a_new_connection(
    program: Program, proxy: HalfOpenProxy
) -> None:
    await program.send(f"one of {id(program)}")
    proxy.swallow()
    budget, program.sender.budget = program.sender.budget, RetryBudget(failures_max=1)
    with pytest.raises(SendingStopped, match="timed out"):
        async with asyncio.timeout(BOUND_SECONDS):
            await program.send(f"two of {id(program)}")
    program.sender.budget = budget
    async with asyncio.timeout(BOUND_SECONDS):
        assert (await program.send(f"two of {id(program)}")).sent == 1
    assert proxy.accepted >= 2


async def test_a_silent_administration_request_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "READ_SECONDS", SECONDS)
    async with service_bus() as there, HalfOpenProxy(there.administration.port) as proxy:
        string = proxy.through(there.administration.connection_string)
        there.amqp.namespace.declare_queue("jobs")
        reader = QueueCheck(ServiceBusConnection("Bus", string), "jobs", "", [])
        assert (await reader.facts("jobs")).name == "jobs"
        proxy.swallow(new=True)
        with pytest.raises(ServiceResponseTimeoutError):
            async with asyncio.timeout(BOUND_SECONDS):
                await reader.facts("jobs")
        await reader.close()


async def test_sending_is_given_up_if_the_service_accepts_connections_but_never_answers(
    program: Program, proxy: HalfOpenProxy
) -> None:
    program.sender.budget = RetryBudget(failures_max=3, pause_seconds=0.01)
    proxy.swallow(new=True)
    with pytest.raises(LinkFailed, match="no connection"):
        async with asyncio.timeout(BOUND_SECONDS):
            await program.send("never")
    assert proxy.accepted == 3


async def test_a_receiver_of_the_local_host_opens_a_new_connection_when_its_own_is_silent(
    proxy: HalfOpenProxy, bus: AmqpStandIn, azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_bus_listener, "IDLE_SECONDS", 2.0)
    monkeypatch.setattr(service_bus_listener, "PAUSE_SECONDS", 0.1)
    soon = QueueProperties(lock_duration=timedelta(seconds=1))
    bus.namespace.declare_queue("received", soon)
    settings = {
        "AzureWebJobsStorage": azurite.connection_string,
        "Bus": proxy.through(bus.connection_string),
        "PlainQueue": "received",
        **{f"AzureWebJobs.{name}.Disabled": "true" for name in LISTENING if name != "plain"},
    }
    connection = ServiceBusConnection("Bus", bus.connection_string)
    sender = batch_sender(connection, "received", now)
    try:
        async with FunctionsHost(APP, settings=settings) as host:
            await until(lambda: proxy.accepted >= 1, BOUND_SECONDS)
            await sender.send([Message(b"one")])
            await until(
                lambda: host.counts.get("plain", InvocationCounts()).invocations == 1, BOUND_SECONDS
            )
            proxy.swallow()
            await sender.send([Message(b"two")])
            await until(lambda: bus.namespace.counts("received", now()).active == 0, BOUND_SECONDS)
            assert proxy.accepted >= 2
    finally:
        await sender.link.close()
    forget_open_sockets()
