"""What queues are like, read through the administration API of Service Bus."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from azure.core.exceptions import ClientAuthenticationError, ResourceNotFoundError
from azure.servicebus.management import QueueProperties

from shared.adapters.service_bus.backlog import administration_client
from shared.datasets.entities import QueueFacts
from shared.datasets.errors import FactsHidden
from shared.messaging.errors import LinkFailed
from shared.settings.connections import ServiceBusConnection
from shared.values.redaction import redacting


@redacting
class ServiceBusQueueReader:
    """See QueueReader."""

    def __init__(self, connection: ServiceBusConnection) -> None:
        self._client = administration_client(connection)

    async def facts(self, queue: str) -> QueueFacts:
        try:
            return _facts(await self._client.get_queue(queue))
        except ResourceNotFoundError as error:
            raise LinkFailed(f"queue {queue} does not exist") from error
        except ClientAuthenticationError as error:
            raise FactsHidden(f"queue {queue}: no right to manage the namespace") from error

    async def close(self) -> None:
        await self._client.close()


def _facts(found: QueueProperties) -> QueueFacts:
    window = found.duplicate_detection_history_time_window
    assert window is None or not isinstance(window, str), "the client reads durations"
    return QueueFacts(
        found.name,
        window if found.requires_duplicate_detection else None,
        bool(found.requires_session),
        _path(found.forward_to) if found.forward_to else None,
    )


def _path(address: str) -> str:
    """Of an entity that the service names by its address, or people by its name.

    The host is not looked at: it is the namespace's own, also where it is reached by an alias,
    and its domain differs from cloud to cloud.
    """
    path = urlsplit(address).path if "://" in address else address
    return unquote(path).strip("/")
