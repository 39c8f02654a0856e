"""Processes the messages of one Service Bus receiver: receive, run the function, settle, renew.

Only one coroutine uses the receiver, because the client does not allow concurrent calls.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver

from local.functions_host.functions import Function
from local.functions_host.logs import log_event
from local.functions_host.service_bus_invocation import service_bus_invocation
from local.functions_host.services import Services
from local.functions_host.worker import Outcome

IDLE_WAIT_SECONDS = 1.0
BUSY_WAIT_SECONDS = 0.1
"""How long one receive call waits while functions run. Messages are settled between calls."""


@dataclass(slots=True)
class _InWork:
    message: ServiceBusReceivedMessage
    renew_at: float
    renew_until: float


class MessagePump:
    """Runs until the host stops or, for a session, until it was idle for `idle_seconds`."""

    def __init__(
        self,
        services: Services,
        function: Function,
        receiver: ServiceBusReceiver,
        stopping: asyncio.Event,
        calls_max: int,
        idle_seconds: float | None = None,
    ) -> None:
        self._services = services
        self._options = services.config.service_bus
        self._function = function
        self._receiver = receiver
        self._stopping = stopping
        self._calls_max = calls_max
        self._idle_seconds = idle_seconds
        self._in_work: dict[asyncio.Task[Outcome], _InWork] = {}

    async def run(self) -> None:
        """Process messages. Raises the receiver's error after running functions have ended."""
        idle_since = _seconds()
        try:
            while self._in_work or not self._stopping.is_set():
                if await self._receive():
                    idle_since = _seconds()
                if self._in_work:
                    await self._look_after()
                    idle_since = _seconds()
                elif self._is_idle_since(idle_since):
                    return
        except Exception as error:  # Unsettled messages are delivered again.
            await asyncio.gather(*self._in_work)
            for held in self._in_work.values():
                self._log("completion_failed", held.message, error)
            raise
        finally:
            for task in self._in_work:
                task.cancel()
            await asyncio.gather(*self._in_work, return_exceptions=True)

    async def _receive(self) -> bool:
        """Receive as many messages as there is room for. Return whether any arrived."""
        room = self._calls_max - len(self._in_work)
        if room == 0 or self._stopping.is_set():
            return False
        seconds = BUSY_WAIT_SECONDS if self._in_work else IDLE_WAIT_SECONDS
        messages = await self._receiver.receive_messages(room, max_wait_time=seconds)
        for message in messages:
            self._begin(message)
        return bool(messages)

    def _begin(self, message: ServiceBusReceivedMessage) -> None:
        invocation = service_bus_invocation(self._function.trigger, message)
        task = asyncio.create_task(self._services.invoker.invoke(self._function, invocation))
        renew_until = _seconds() + self._options.max_auto_lock_renewal_seconds
        self._in_work[task] = _InWork(message, self._half_of_lock(message), renew_until)

    async def _look_after(self) -> None:
        await asyncio.wait(
            self._in_work, timeout=BUSY_WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        for task, held in list(self._in_work.items()):
            if task.done():
                del self._in_work[task]
                await self._settle(held.message, succeeded=task.result().succeeded)
            elif held.renew_at <= _seconds() < held.renew_until:
                await self._renew(held)

    async def _settle(self, message: ServiceBusReceivedMessage, *, succeeded: bool) -> None:
        try:
            if not succeeded:
                await self._receiver.abandon_message(message)
            elif self._completes:
                await self._receiver.complete_message(message)
        except Exception as error:  # It is delivered again later.
            self._log("completion_failed", message, error)

    async def _renew(self, held: _InWork) -> None:
        try:
            if self._receiver.session is not None:
                await self._receiver.session.renew_lock()
            else:
                await self._receiver.renew_message_lock(held.message)
            held.renew_at = self._half_of_lock(held.message)
        except Exception as error:
            self._log("lock_not_renewed", held.message, error)
            held.renew_at = held.renew_until

    def _half_of_lock(self, message: ServiceBusReceivedMessage) -> float:
        session = self._receiver.session
        until = message.locked_until_utc if session is None else session.locked_until_utc
        if until is None:
            return _seconds()
        return _seconds() + (until - self._services.now()).total_seconds() / 2

    def _is_idle_since(self, seconds: float) -> bool:
        return self._idle_seconds is not None and _seconds() - seconds >= self._idle_seconds

    @property
    def _completes(self) -> bool:
        default = self._options.auto_complete_messages
        return self._function.trigger.is_true("autoCompleteMessages", default=default)

    def _log(self, action: str, message: ServiceBusReceivedMessage, error: Exception) -> None:
        name = self._function.name
        fields: dict[str, Any] = {"function": name, "message_id": message.message_id}
        log_event(logging.WARNING, action, f"{name}: {error!r}", **fields)


def _seconds() -> float:
    return asyncio.get_running_loop().time()
