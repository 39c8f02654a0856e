"""The same scenario with the aio and the sync client of azure-servicebus, at the same time.

Each client has a stand-in of its own with a clock that a scenario moves. With the variable
SERVICE_BUS_EMULATOR set to the connection string of Microsoft's Service Bus emulator, the
scenarios run against that one; those that need to move the clock, to order faults or to look
inside are skipped then.
"""

import asyncio
import gc
import os
import re
import sys
import uuid
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from local.amqp_broker import AmqpStandIn, VirtualClock
from local.amqp_broker.model.properties import QueueProperties, TopicProperties
from local.azure_apis.entities import EntityCounts

EMULATOR = "SERVICE_BUS_EMULATOR"
EMULATOR_ADMINISTRATION_PORT = 5300
WAIT_SECONDS = 20
NOTHING_SECONDS = 0.3
"""How long to look for messages that should not be there."""

_ENDPOINT = re.compile(r"(sb://[^;:/]+)(?::\d+)?")
THREADS_MAX = 64
AT_ONCE = 8
SWITCH_SECONDS = 0.0002
"""How long a thread may keep the others waiting: a sync reader of an event hub spins while it has
no partition, and every step of the event loop would wait for Python's usual 5 ms beside it.
"""

Scenario = Callable[["Rig"], Awaitable[None]]
MakeRig = Callable[[AsyncExitStack, str], Awaitable[Any]]
Test = Callable[[], Awaitable[None]]
Run = Callable[[], Awaitable[None]]

LEAVES_SOCKETS_OPEN = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Marks of a module whose connections break: the clients leave their sockets open then."""
SIDE_BY_SIDE = [pytest.mark.asyncio(loop_scope="module"), *LEAVES_SOCKETS_OPEN]
"""Marks of a module of such tests, beside the use of the fixture `side_by_side`."""


class Threaded:
    """A sync object whose methods are awaited: each runs in a thread."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.wrapped, name)
        if name == "session":
            return Threaded(found)
        if not callable(found):
            return found

        async def call(*args: Any, **options: Any) -> Any:
            return await asyncio.to_thread(found, *args, **options)

        return call

    async def __aenter__(self) -> "Threaded":
        await asyncio.to_thread(self.wrapped.__enter__)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.wrapped.__exit__, *exception)


class ThreadedClient(Threaded):
    """A sync client that hands out threaded senders and receivers."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.wrapped, name)
        return lambda *args, **options: Threaded(found(*args, **options))


@dataclass
class Rig:
    """One client, and the broker that it talks to: a stand-in, or the emulator when None."""

    kind: str
    client: Any
    stand_in: AmqpStandIn | None
    clock: VirtualClock
    connection_string: str
    stack: AsyncExitStack

    async def queue(self, **properties: Any) -> str:
        """A new queue; properties as of `QueueProperties`."""
        name = f"queue-{uuid.uuid4().hex[:8]}"
        wanted = QueueProperties(**properties)
        if self.stand_in is not None:
            self.stand_in.namespace.declare_queue(name, wanted)
        else:
            async with self._administration() as administration:
                await administration.create_queue(name, **_as_created(wanted))
        return name

    async def topic(self, *subscriptions: str, **properties: Any) -> str:
        """A new topic; properties are those of every subscription."""
        name = f"topic-{uuid.uuid4().hex[:8]}"
        wanted = QueueProperties(**properties)
        if self.stand_in is not None:
            self.stand_in.namespace.declare_topic(name, TopicProperties())
            for subscription in subscriptions:
                self.stand_in.namespace.declare_subscription(name, subscription, wanted)
            return name
        async with self._administration() as administration:
            await administration.create_topic(name)
            for subscription in subscriptions:
                await administration.create_subscription(name, subscription, **_as_created(wanted))
        return name

    def inside(self) -> AmqpStandIn:
        """The stand-in; skips the test where there is none."""
        if self.stand_in is None:
            pytest.skip("needs the stand-in")
        return self.stand_in

    def advance(self, **by: float) -> None:
        """Move the clock, as `advance(hours=48)`."""
        self.inside()
        self.clock.advance(timedelta(**by))

    def counts(self, path: str) -> EntityCounts:
        return self.inside().namespace.counts(path, self.clock())

    async def open(self, *links: Any) -> None:
        """Open all at once; they are closed after the test, together with everything."""
        for link in links:
            self.stack.push_async_exit(link)
        await asyncio.gather(*(link.__aenter__() for link in links))

    async def links(self, queue: str, **options: Any) -> tuple[Any, Any]:
        """A sender to a queue and a receiver from it."""
        sender = self.client.get_queue_sender(queue)
        receiver = self.client.get_queue_receiver(queue, **options)
        await self.open(sender, receiver)
        return sender, receiver

    async def another_client(self, **options: Any) -> Any:
        """A client of the same kind with other options."""
        client = _client(self.kind, self.connection_string, keep_alive=0, **options)
        return await self.stack.enter_async_context(client)

    def _administration(self) -> ServiceBusAdministrationClient:
        string = _ENDPOINT.sub(rf"\g<1>:{EMULATOR_ADMINISTRATION_PORT}", self.connection_string)
        return ServiceBusAdministrationClient.from_connection_string(string, transport=_Http())


class _Http(AioHttpTransport):  # type: ignore[misc]
    """The administration client insists on https; the emulator speaks http."""

    async def send(self, request: Any, **config: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **config)


def both(scenario: Scenario) -> Test:
    """A test that runs a scenario with either client of Service Bus, both at once."""
    return side_by_side_test(scenario, rig)


def side_by_side_test(scenario: Callable[[Any], Awaitable[None]], make: MakeRig) -> Test:
    """A test that runs a scenario with clients of either kind at once.

    The scenarios of a module run side by side, started by the fixture `side_by_side`: they wait
    for the SDK most of the time, which takes half a second to open a link and one to close it.
    """

    async def test() -> None:
        await _running.pop(test)

    async def run() -> None:
        await asyncio.gather(*(_run(scenario, make, kind) for kind in ("aio", "sync")))

    test.__name__ = scenario.__name__
    test.__doc__ = scenario.__doc__
    test.__module__ = scenario.__module__
    _scenarios[test] = run
    return test


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def side_by_side(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Start all scenarios of the module that are to be tested."""
    patience = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS_MAX))
    limit = asyncio.Semaphore(AT_ONCE)
    for item in request.session.items:
        test = getattr(item, "function", None)
        if test in _scenarios and item.path == request.path:
            _running[test] = asyncio.create_task(_limited(limit, _scenarios[test]))
    yield
    for left in _running.values():  # of tests that were not run after all
        left.cancel()
    await asyncio.gather(*_running.values(), return_exceptions=True)
    _running.clear()
    sys.setswitchinterval(patience)
    forget_open_sockets()


def forget_open_sockets() -> None:
    """Here, lest they are found in somebody else's test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


async def _limited(limit: asyncio.Semaphore, run: Run) -> None:
    async with limit:
        await run()


_scenarios: dict[Test, Run] = {}
_running: dict[Test, asyncio.Task[None]] = {}


async def _run(scenario: Callable[[Any], Awaitable[None]], make: MakeRig, kind: str) -> None:
    async with AsyncExitStack() as stack:
        try:
            await scenario(await make(stack, kind))
        except Exception as error:
            error.add_note(f"with the {kind} client")
            raise


async def rig(stack: AsyncExitStack, kind: str) -> Rig:
    """A client of either kind, closed with the stack. Without keep-alives it closes quicker."""
    options = {"retry_total": 0, "keep_alive": 0}
    clock = VirtualClock()
    stand_in = None
    connection_string = os.environ.get(EMULATOR, "")
    if not connection_string:
        stand_in = await stack.enter_async_context(AmqpStandIn(clock=clock))
        connection_string = stand_in.connection_string
    client = await stack.enter_async_context(_client(kind, connection_string, **options))
    return Rig(kind, client, stand_in, clock, connection_string, stack)


def _client(kind: str, connection_string: str, **options: Any) -> Any:
    if kind == "aio":
        return AsyncServiceBusClient.from_connection_string(connection_string, **options)
    return ThreadedClient(ServiceBusClient.from_connection_string(connection_string, **options))


@asynccontextmanager
async def opened(*links: Any) -> AsyncIterator[None]:
    """Open all at once, and close all at once: either takes the SDK half a second."""
    await asyncio.gather(*(link.__aenter__() for link in links))
    try:
        yield
    finally:
        await asyncio.gather(*(link.__aexit__(None, None, None) for link in links))


async def received(receiver: Any, count: int) -> list[Any]:
    """Exactly so many messages, in as many calls as it takes."""
    messages: list[Any] = []
    while len(messages) < count:
        more = await receiver.receive_messages(count - len(messages), max_wait_time=WAIT_SECONDS)
        assert more, f"{len(messages)} of {count} messages came"
        messages += more
    return messages


async def first_message(rig: Rig, receiver: Any) -> None:
    """Open and receive: a link that is refused may look open until it is used."""
    await rig.open(receiver)
    await receiver.receive_messages(1, max_wait_time=1)


async def first_send(rig: Rig, sender: Any) -> None:
    """Open and send, likewise."""
    await rig.open(sender)
    await sender.send_messages(message())


async def nothing_comes(receiver: Any) -> None:
    found = await receiver.receive_messages(1, max_wait_time=NOTHING_SECONDS)
    assert [str(each) for each in found] == []


async def bodies(receiver: Any, count: int) -> list[str]:
    """Receive and complete."""
    messages = await received(receiver, count)
    for message in messages:
        await receiver.complete_message(message)
    return [str(message) for message in messages]


def message(body: str | bytes = "body", **properties: Any) -> ServiceBusMessage:
    return ServiceBusMessage(body, **properties)


def _as_created(properties: QueueProperties) -> dict[str, Any]:
    created = {
        "lock_duration": properties.lock_duration,
        "max_delivery_count": properties.max_delivery_count,
        "requires_session": properties.requires_session,
        "requires_duplicate_detection": properties.duplicate_window is not None or None,
        "duplicate_detection_history_time_window": properties.duplicate_window,
        "default_message_time_to_live": properties.time_to_live,
        "dead_lettering_on_message_expiration": properties.dead_letters_expired,
        "forward_to": properties.forward_to,
    }
    return {name: value for name, value in created.items() if value is not None}
