"""The queue trigger, with the semantics of the storage queues extension."""

import asyncio
import json
import logging
import random
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError
from azure.storage.queue import QueueMessage
from azure.storage.queue.aio import QueueClient

from local.functions_host.functions import Function
from local.functions_host.logs import log_event
from local.functions_host.services import Services
from local.functions_host.storage_queues import UndecodableMessage, send
from local.functions_host.waiting import stops_within
from local.functions_host.worker import Invocation, json_datum, text_datum


class MessageLease:
    """Keeps a message invisible until `release`. The lease is renewed at half its time.

    Each renewal changes the pop receipt, so read `pop_receipt` only after `release`.
    """

    def __init__(self, queue: QueueClient, message: QueueMessage, lease_seconds: int) -> None:
        self._queue = queue
        self._message = message
        self._lease_seconds = lease_seconds
        self._over = asyncio.Event()
        self._renewing = asyncio.create_task(self._renew())

    @property
    def pop_receipt(self) -> str:
        """The receipt that proves this listener's ownership of the message."""
        return str(self._message.pop_receipt)

    async def release(self) -> None:
        """Stop renewing. Waits for a renewal under way, so that its receipt is not lost."""
        self._over.set()
        await self._renewing

    async def _renew(self) -> None:
        while not await stops_within(self._over, self._lease_seconds / 2):
            try:
                renewed = await self._queue.update_message(
                    self._message, visibility_timeout=self._lease_seconds
                )
            except AzureError as error:
                _log_lost_renewal(self._message, self._queue, error)
                if isinstance(error, HttpResponseError) and error.status_code in (400, 404):
                    return  # The message is gone or has another owner.
            else:
                self._message.pop_receipt = renewed.pop_receipt


def _log_lost_renewal(message: QueueMessage, queue: QueueClient, error: AzureError) -> None:
    log_event(
        logging.WARNING,
        "lease_not_renewed",
        f"the lease of message {message.id} of {queue.queue_name} was not renewed: {error}",
        queue=queue.queue_name,
        message_id=message.id,
    )


POISON_SUFFIX = "-poison"
MIN_POLLING_SECONDS = 0.1


def next_polling_seconds(seconds: float, maximum_seconds: float, spread: float) -> float:
    """The pause after an empty receive that followed a pause of `seconds`.

    The pause doubles up to the maximum. `spread` (0.8 to 1.2) makes idle hosts drift apart.
    """
    return min(max(seconds * 2 * spread, MIN_POLLING_SECONDS), maximum_seconds)


class QueueListener:
    """Receives the messages of one queue in batches and runs the function on each."""

    def __init__(self, services: Services, function: Function) -> None:
        connection = services.settings.connection(
            function.trigger.text("connection"), function=function.name
        )
        name = function.trigger.text("queueName")
        self._services = services
        self._options = services.config.queues
        self._function = function
        self._queue = services.queues.client(connection, name)
        self._poison: QueueClient | None = None
        if not name.lower().endswith(POISON_SUFFIX):
            self._poison = services.queues.client(connection, name + POISON_SUFFIX)
        self._running: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start receiving."""
        self._loop = asyncio.create_task(self._run(), name=f"queue {self._function.name}")

    async def stop(self) -> None:
        """Stop receiving, and wait for the messages in progress."""
        self._stopping.set()
        if self._loop is not None:
            await self._loop
        # A cancelled gather cancels the tasks. One cancelled task must not hide the others.
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _run(self) -> None:
        pause_seconds = 0.0
        while not self._stopping.is_set():
            messages = await self._receive()
            for message in messages:
                self._begin(message)
            if messages:
                pause_seconds = 0.0
                await self._wait_for_room()
                continue
            pause_seconds = next_polling_seconds(
                pause_seconds,
                self._options.max_polling_interval_seconds,
                random.uniform(0.8, 1.2),  # noqa: S311 - spreads polls, not a secret
            )
            await stops_within(self._stopping, pause_seconds)

    async def _receive(self) -> Sequence[QueueMessage]:
        pages = self._queue.receive_messages(
            messages_per_page=self._options.batch_size,
            visibility_timeout=self._services.options.lease_seconds,
        ).by_page()
        try:
            # One page is one call. Iterating over messages would make a call after a partial page.
            async for page in pages:
                return [message async for message in page]
        except ResourceNotFoundError:
            pass  # As in the extension, a missing queue is empty.
        except Exception as error:  # The next receive may succeed.
            self._log(logging.WARNING, "receive_failed", repr(error))
        return []

    def _begin(self, message: QueueMessage) -> None:
        task = asyncio.create_task(self._process(message))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _wait_for_room(self) -> None:
        while len(self._running) > self._options.new_batch_threshold:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)

    async def _process(self, message: QueueMessage) -> None:
        try:
            if (message.dequeue_count or 0) > self._options.max_dequeue_count:
                await self._move_to_poison_queue(message, str(message.pop_receipt))
            else:
                await self._run_function(message)
        except Exception as error:
            # The message is delivered again when its lease expires: at least once, as in Azure.
            self._log(logging.WARNING, "completion_failed", repr(error), message_id=message.id)

    async def _run_function(self, message: QueueMessage) -> None:
        try:
            body = self._options.message_encoding.decode(message.content)
        except UndecodableMessage as error:
            self._log(logging.ERROR, "message_undecodable", str(error), message_id=message.id)
            await self._move_to_poison_queue(message, str(message.pop_receipt))
            return
        lease = MessageLease(self._queue, message, self._services.options.lease_seconds)
        try:
            result = await self._services.invoker.invoke(
                self._function, queue_invocation(self._function, body, message)
            )
        finally:
            await lease.release()
        await self._complete(message, lease.pop_receipt, succeeded=result.succeeded)

    async def _complete(self, message: QueueMessage, receipt: str, *, succeeded: bool) -> None:
        if succeeded:
            await self._queue.delete_message(str(message.id), receipt)
        elif self._poison is None:
            return  # Releasing it would make it fail again at once.
        elif (message.dequeue_count or 0) >= self._options.max_dequeue_count:
            await self._move_to_poison_queue(message, receipt)
        else:
            await self._queue.update_message(
                str(message.id),
                receipt,
                visibility_timeout=self._options.visibility_timeout_seconds,
            )

    async def _move_to_poison_queue(self, message: QueueMessage, receipt: str) -> None:
        """Move a message to the poison queue unchanged. A poison queue itself has none."""
        if self._poison is None:
            return
        self._log(
            logging.WARNING,
            "message_poisoned",
            f"moved to {self._poison.queue_name}",
            message_id=message.id,
            dequeue_count=message.dequeue_count,
        )
        await send(self._poison, message.content)
        await self._queue.delete_message(str(message.id), receipt)

    def _log(self, level: int, action: str, reason: str, **fields: Any) -> None:
        function, queue = self._function.name, self._queue.queue_name
        message = f"{function}, queue {queue}: {reason}"
        log_event(level, action, message, function=function, queue=queue, **fields)


def queue_invocation(function: Function, body: str, message: QueueMessage) -> Invocation:
    """The invocation of a queue-triggered function with a decoded message."""
    return Invocation(function.trigger.name, text_datum(body), _metadata(body, message))


def _metadata(body: str, message: QueueMessage) -> Mapping[str, Any]:
    return {
        "Id": text_datum(str(message.id)),
        "PopReceipt": text_datum(str(message.pop_receipt)),
        "DequeueCount": json_datum(str(message.dequeue_count)),
        "ExpirationTime": _time(message.expires_on),
        "InsertionTime": _time(message.inserted_on),
        "NextVisibleTime": _time(message.next_visible_on),
        "QueueTrigger": text_datum(body),
    }


def _time(instant: datetime | None) -> Any:
    return json_datum(json.dumps(None if instant is None else instant.isoformat()))
