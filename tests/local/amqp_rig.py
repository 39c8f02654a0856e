"""Runs the scenarios of a module side by side, each with a client of azure-servicebus.

Each client has its own stand-in with a clock that the scenario moves. If the environment variable
SERVICE_BUS_EMULATOR holds the connection string of Microsoft's Service Bus emulator, the scenarios
run against the emulator. Those that move the clock, arm faults or inspect the broker are then
skipped. The clients are the async ones: the app uses no others.
"""

import asyncio
import gc
import os
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from local.amqp_broker import AmqpStandIn, VirtualClock
from local.azure_apis.entities import EntityCounts
from tests.emulators.rig import EVENT_HUBS, SERVICE_BUS, Bus, running_bus

WAIT_SECONDS = 20
NOTHING_SECONDS = 0.3
"""How long to wait for messages that should not arrive."""

AT_ONCE = 8
AT_ONCE_IN_EMULATOR = 1
"""Microsoft's emulator accepts ten connections, and each sender or receiver opens one."""

MakeRig = Callable[[AsyncExitStack], Awaitable[Any]]
Test = Callable[[], Awaitable[None]]
Run = Callable[[], Awaitable[None]]

LEAVES_SOCKETS_OPEN = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Marks for a module whose connections break, because the clients then leave their sockets open."""
SIDE_BY_SIDE = [pytest.mark.asyncio(loop_scope="module"), *LEAVES_SOCKETS_OPEN]
"""Marks for a module of side-by-side tests, in addition to the fixture `side_by_side`."""


@dataclass
class Rig:
    """One client and its broker."""

    client: Any
    bus: Bus
    clock: VirtualClock
    stack: AsyncExitStack

    @property
    def connection_string(self) -> str:
        return self.bus.connection.connection_string

    async def queue(self, **properties: Any) -> str:
        """Create a queue with properties of `QueueProperties`."""
        return await self.bus.queue(**properties)

    async def topic(self, *subscriptions: str, **properties: Any) -> str:
        """Create a topic. The properties apply to every subscription."""
        return await self.bus.topic(*subscriptions, **properties)

    def inside(self) -> AmqpStandIn:
        """Return the stand-in, or skip the test if there is none."""
        return self.bus.inside()

    def advance(self, **by: float) -> None:
        """Advance the clock, for example `advance(hours=48)`."""
        self.inside()
        self.clock.advance(timedelta(**by))

    def counts(self, path: str) -> EntityCounts:
        return self.inside().namespace.counts(path, self.clock())

    async def open(self, *links: Any) -> None:
        """Open all links at once. They are closed after the test."""
        for link in links:
            self.stack.push_async_exit(link)
        await asyncio.gather(*(link.__aenter__() for link in links))

    async def links(self, queue: str, **options: Any) -> tuple[Any, Any]:
        """A sender to a queue and a receiver from it."""
        sender = self.client.get_queue_sender(queue)
        receiver = self.client.get_queue_receiver(queue, **options)
        await self.open(sender, receiver)
        return sender, receiver

    async def another_client(self, **options: Any) -> ServiceBusClient:
        """A client with other options."""
        client = ServiceBusClient.from_connection_string(
            self.connection_string, keep_alive=0, **options
        )
        return await self.stack.enter_async_context(client)


def scenario(work: Callable[["Rig"], Awaitable[None]]) -> Test:
    """A test that runs a scenario with a client of Service Bus."""
    return side_by_side_test(work, rig)


def side_by_side_test(work: Callable[[Any], Awaitable[None]], make: MakeRig) -> Test:
    """A test that runs a scenario with its own client and broker.

    The fixture `side_by_side` runs the scenarios of a module in parallel. They mostly wait for the
    SDK, which needs half a second to open a link and one second to close it.
    """

    async def test() -> None:
        await _running.pop(test)

    async def run() -> None:
        async with AsyncExitStack() as stack:
            await work(await make(stack))

    test.__name__ = work.__name__
    test.__doc__ = work.__doc__
    test.__module__ = work.__module__
    _scenarios[test] = run
    return test


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def side_by_side(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Start all scenarios of the module that are selected."""
    emulated = any(os.environ.get(name) for name in (SERVICE_BUS, EVENT_HUBS))
    limit = asyncio.Semaphore(AT_ONCE_IN_EMULATOR if emulated else AT_ONCE)
    for item in request.session.items:
        test = getattr(item, "function", None)
        if test in _scenarios and item.path == request.path:
            _running[test] = asyncio.create_task(_limited(limit, _scenarios[test]))
    yield
    left = set(_running.values())  # of tests that did not run, or run in another worker
    while left:
        for each in left:  # again and again, because the SDK may lose a cancellation
            each.cancel()
        _, left = await asyncio.wait(left, timeout=1)
    await asyncio.gather(*_running.values(), return_exceptions=True)
    _running.clear()
    forget_open_sockets()


def forget_open_sockets() -> None:
    """Collect them now, so that no other test gets their warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


async def _limited(limit: asyncio.Semaphore, run: Run) -> None:
    async with limit:
        await run()


_scenarios: dict[Test, Run] = {}
_running: dict[Test, asyncio.Task[None]] = {}


async def rig(stack: AsyncExitStack) -> Rig:
    """A client, closed with the stack. Without keep-alives it closes faster."""
    clock = VirtualClock()
    bus = await stack.enter_async_context(running_bus(clock))
    client = ServiceBusClient.from_connection_string(
        bus.connection.connection_string, retry_total=0, keep_alive=0
    )
    return Rig(await stack.enter_async_context(client), bus, clock, stack)


@asynccontextmanager
async def opened(*links: Any) -> AsyncIterator[None]:
    """Open all links at once and close them at once, because each takes the SDK half a second."""
    await asyncio.gather(*(link.__aenter__() for link in links))
    try:
        yield
    finally:
        await asyncio.gather(*(link.__aexit__(None, None, None) for link in links))


async def received(receiver: Any, count: int) -> list[Any]:
    """Receive exactly `count` messages, in as many calls as needed."""
    messages: list[Any] = []
    while len(messages) < count:
        more = await receiver.receive_messages(count - len(messages), max_wait_time=WAIT_SECONDS)
        assert more, f"only {len(messages)} of {count} messages arrived"
        messages += more
    return messages


async def first_message(rig: Rig, receiver: Any) -> None:
    """Open and receive, because a refused link may look open until it is used."""
    await rig.open(receiver)
    await receiver.receive_messages(1, max_wait_time=1)


async def first_send(rig: Rig, sender: Any) -> None:
    """Open and send, because a refused link may look open until it is used."""
    await rig.open(sender)
    await sender.send_messages(message())


async def nothing_comes(receiver: Any) -> None:
    messages = await receiver.receive_messages(1, max_wait_time=NOTHING_SECONDS)
    assert [str(each) for each in messages] == []


async def bodies(receiver: Any, count: int) -> list[str]:
    """Receive and complete messages, and return their bodies."""
    messages = await received(receiver, count)
    for message in messages:
        await receiver.complete_message(message)
    return [str(message) for message in messages]


def message(body: str | bytes = "body", **properties: Any) -> ServiceBusMessage:
    return ServiceBusMessage(body, **properties)
