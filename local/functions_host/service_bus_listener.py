"""The Service Bus trigger for queues and subscriptions, with and without sessions.

As in the extension, a message is completed after its function succeeded and abandoned after it
failed, and its lock is renewed meanwhile. The broker dead-letters a message that fails too often.
Batches (cardinality many) are not supported.

Source: learn.microsoft.com/azure/azure-functions/functions-bindings-service-bus.
"""

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
from azure.servicebus.exceptions import OperationTimeoutError

from local.functions_host.errors import HostStartFailed
from local.functions_host.functions import Function
from local.functions_host.logs import log_event
from local.functions_host.message_pump import MessagePump
from local.functions_host.services import Services
from local.functions_host.waiting import stops_within

DEFAULT_CONNECTION = "ServiceBus"
IDLE_SECONDS = 20.0
"""A connection that receives nothing for this long is broken, because brokers send empty frames at
least twice in the timeout that a client announces."""

PAUSE_SECONDS = 2.0
"""The pause between a failure to connect or receive and the next attempt."""

CANCEL_AGAIN_SECONDS = 0.1


class ServiceBusListener:
    """Receives the messages of one entity and runs the function on each."""

    def __init__(self, services: Services, function: Function) -> None:
        trigger = function.trigger
        if trigger.takes_many:
            raise HostStartFailed(
                f"function {function.name}: this host passes Service Bus messages one at a time. "
                "Remove cardinality many."
            )
        self._connection = services.settings.connection(
            trigger.text("connection", DEFAULT_CONNECTION), function=function.name
        )
        self._services = services
        self._options = services.config.service_bus
        self._function = function
        self._stopping = asyncio.Event()
        self._client: ServiceBusClient | None = None
        self._loop: asyncio.Task[None] | None = None
        self._sessions: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start receiving."""
        self._client = self._open()
        with_sessions = self._function.trigger.is_true("isSessionsEnabled")
        run = self._accept_sessions if with_sessions else self._receive
        name = f"service bus {self._function.name}"
        self._loop = asyncio.create_task(self._until_stopped(self._client, run), name=name)

    async def stop(self) -> None:
        """Stop receiving, and wait for the messages in progress."""
        self._stopping.set()
        try:
            if self._loop is not None:
                await self._loop
            await asyncio.gather(*self._sessions)
        finally:
            if self._client is not None:
                await self._client.close()

    def _open(self) -> ServiceBusClient:
        connection = self._connection
        if string := connection.connection_string:
            return ServiceBusClient.from_connection_string(string, retry_total=0)
        credential = self._services.identities.credential(connection)
        return ServiceBusClient(connection.namespace, credential, retry_total=0)

    async def _until_stopped(self, client: ServiceBusClient, run: Any) -> None:
        """Run until the host stops; start again after any failure."""
        while not self._stopping.is_set():
            try:
                await run(client)
            except Exception as error:
                self._log(logging.WARNING, "receive_failed", repr(error))
                await stops_within(self._stopping, PAUSE_SECONDS)

    async def _receive(self, client: ServiceBusClient) -> None:
        async with self._receiver(client) as receiver:
            await self._pump(receiver, self._options.max_concurrent_calls).run()

    async def _accept_sessions(self, client: ServiceBusClient) -> None:
        """Accept free sessions, up to host.json's limit of concurrent sessions."""
        while not self._stopping.is_set():
            if len(self._sessions) >= self._options.max_concurrent_sessions:
                await self._first_of(*self._sessions)
                continue
            receiver = self._receiver(client, session_id=NEXT_AVAILABLE_SESSION)
            if await self._opens(receiver):
                task = asyncio.create_task(self._serve(receiver))
                self._sessions.add(task)
                task.add_done_callback(self._sessions.discard)

    async def _opens(self, receiver: ServiceBusReceiver) -> bool:
        """Return whether a session was free before the client's timeout or the host's stop."""
        opening = asyncio.ensure_future(receiver.__aenter__())
        try:
            await self._first_of(opening)
            if opening.done():
                opening.result()
                return True
        except OperationTimeoutError:
            pass  # No free session has messages.
        except BaseException:
            await _quietly(receiver.close())
            raise
        await cancelled(opening)
        await _quietly(receiver.close())
        return False

    async def _serve(self, receiver: ServiceBusReceiver) -> None:
        """Process one session, one message at a time, until it is idle for long enough."""
        try:
            await self._pump(receiver, 1, self._options.session_idle_seconds).run()
        except Exception as error:  # Other sessions continue.
            self._log(logging.WARNING, "receive_failed", repr(error))
        finally:
            await _quietly(receiver.close())

    def _pump(
        self, receiver: ServiceBusReceiver, calls: int, idle_seconds: float | None = None
    ) -> MessagePump:
        return MessagePump(
            self._services, self._function, receiver, self._stopping, calls, idle_seconds
        )

    def _receiver(self, client: ServiceBusClient, **options: Any) -> ServiceBusReceiver:
        trigger = self._function.trigger
        if queue := trigger.text("queueName"):
            return _ended_when_idle(client.get_queue_receiver(queue, **options))
        topic, subscription = trigger.text("topicName"), trigger.text("subscriptionName")
        return _ended_when_idle(client.get_subscription_receiver(topic, subscription, **options))

    async def _first_of(self, *awaited: "asyncio.Future[Any]") -> None:
        """Wait until one of the futures is done, or the host stops."""
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([*awaited, stop], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()

    def _log(self, level: int, action: str, reason: str) -> None:
        name = self._function.name
        log_event(level, action, f"{name}: {reason}", function=name)


def _ended_when_idle(receiver: ServiceBusReceiver) -> ServiceBusReceiver:
    """Set the client's idle timeout, for which it has no option.

    ``try_timeout`` does not end the wait for messages.
    """
    internals: Any = receiver
    create = internals._create_handler

    def create_handler(auth: Any) -> None:
        create(auth)
        internals._handler._idle_timeout = IDLE_SECONDS

    internals._create_handler = create_handler
    return receiver


async def cancelled(opening: "asyncio.Future[Any]") -> None:
    """Cancel the opening of a receiver until it ends, because the client can swallow a cancellation
    and would then wait for a session for another minute.
    """
    while not opening.done():
        opening.cancel()
        await asyncio.wait([opening], timeout=CANCEL_AGAIN_SECONDS)
    with suppress(asyncio.CancelledError):
        opening.exception()


async def _quietly(closing: Awaitable[None]) -> None:
    """Close something that may already be broken."""
    with suppress(Exception):
        await closing
