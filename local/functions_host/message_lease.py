"""Holding a queue message while its function runs."""

import asyncio
import logging

from azure.core.exceptions import AzureError, HttpResponseError
from azure.storage.queue import QueueMessage
from azure.storage.queue.aio import QueueClient

from local.functions_host.logs import log_event
from local.functions_host.stopping import stops_within


class MessageLease:
    """Keeps a message invisible until `release`, renewing at half time.

    Each renewal changes the pop receipt: read `pop_receipt` only after `release`.
    """

    def __init__(self, queue: QueueClient, message: QueueMessage, lease_seconds: int) -> None:
        self._queue = queue
        self._message = message
        self._lease_seconds = lease_seconds
        self._over = asyncio.Event()
        self._renewing = asyncio.create_task(self._renew())

    @property
    def pop_receipt(self) -> str:
        """What proves that the message is ours."""
        return str(self._message.pop_receipt)

    async def release(self) -> None:
        """Stop renewing; a renewal under way is awaited, so that its receipt is not lost."""
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
                    return  # the message is gone, or another host's
            else:
                self._message.pop_receipt = renewed.pop_receipt


def _log_lost_renewal(message: QueueMessage, queue: QueueClient, error: AzureError) -> None:
    log_event(
        logging.WARNING,
        "lease_not_renewed",
        f"message {message.id} of {queue.queue_name} was not renewed: {error}",
        queue=queue.queue_name,
        message_id=message.id,
    )
