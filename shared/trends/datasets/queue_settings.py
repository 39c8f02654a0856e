"""Reads the settings of the queues that process data sets."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.management import QueueProperties

from shared.azure.refusals import AccessRefused, service_bus_access
from shared.azure.service_bus import administration_client, described
from shared.settings.connections import ServiceBusConnection
from shared.trends.datasets.errors import ManageRightMissing
from shared.trends.datasets.queues import QueueDescription
from shared.values.messages import LinkFailed
from shared.values.redaction import redacting


@redacting
class ServiceBusQueueReader:
    """Reads the settings of queues."""

    def __init__(self, connection: ServiceBusConnection) -> None:
        self._client = administration_client(connection)
        self._connection = connection

    async def facts(self, queue: str) -> QueueDescription:
        """Raises LinkFailed if the queue does not exist, and ManageRightMissing."""
        access = service_bus_access(self._connection, f"queue {queue}", "Owner")
        try:
            with access.explained():
                return _facts(await self._client.get_queue(queue, cls=described))
        except ResourceNotFoundError as error:
            raise LinkFailed(
                f"queue {queue} does not exist in the namespace of {self._connection.name}"
            ) from error
        except AccessRefused as error:
            if error.status_code is None:  # without a token, it is unknown what the identity may do
                raise
            raise ManageRightMissing(
                f"{error}. Without the role, the settings of the queue are not checked"
            ) from None

    async def close(self) -> None:
        await self._client.close()


def _facts(queue: QueueProperties) -> QueueDescription:
    if queue.requires_session is None:
        raise LinkFailed(f"the namespace did not return the settings of queue {queue.name}")
    window = queue.duplicate_detection_history_time_window
    assert window is None or not isinstance(window, str), "the client parses durations"
    return QueueDescription(
        queue.name,
        window if queue.requires_duplicate_detection else None,
        bool(queue.requires_session),
        _path(queue.forward_to) if queue.forward_to else None,
    )


def _path(address: str) -> str:
    """The path of an entity that is given by its address (by the service) or its name (by people).
    The host is ignored, because it differs for an alias, and its domain between Azure clouds.
    """
    path = urlsplit(address).path if "://" in address else address
    return unquote(path).strip("/")
