"""What the administration API of Service Bus says of queues and subscriptions."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from azure.core.exceptions import ClientAuthenticationError, ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import QueueProperties

from shared.adapters.azure.credentials import credential_for
from shared.adapters.azure.transport import server_time, transport_for
from shared.autoscaling.declaring import ServiceBusQueue, ServiceBusSubscription
from shared.autoscaling.errors import ReadFailed
from shared.autoscaling.measurements import MetricValue
from shared.datasets.entities import QueueFacts
from shared.datasets.errors import FactsHidden
from shared.messaging.errors import LinkFailed
from shared.settings.connections import ServiceBusConnection
from shared.values.redaction import redacting

Source = ServiceBusQueue | ServiceBusSubscription


@redacting
class ServiceBusReader:
    """Reads the counts of the entities of one namespace."""

    def __init__(self, connection: ServiceBusConnection) -> None:
        self._connection = connection
        self._client = _administration_client(connection)

    async def read(self, source: Source) -> MetricValue:
        try:
            count = await self._count(source)
        except ResourceNotFoundError as error:
            raise ReadFailed(f"{_named(source)} does not exist ({source.connection})") from error
        if count is None:
            raise ReadFailed(f"{_named(source)} answered without a {source.count} count")
        return MetricValue(server_time(), float(count))

    async def close(self) -> None:
        await self._client.close()

    async def _count(self, source: Source) -> int | None:
        name = f"{source.count}_message_count"
        if isinstance(source, ServiceBusQueue):
            queue = await self._client.get_queue_runtime_properties(source.queue)
            return _whole(queue, name)
        if source.count == "scheduled":
            topic = await self._client.get_topic_runtime_properties(source.topic)
            return _whole(topic, name)
        subscription = await self._client.get_subscription_runtime_properties(
            source.topic, source.subscription
        )
        return _whole(subscription, name)


def _whole(properties: object, name: str) -> int | None:
    value: int | None = getattr(properties, name)
    return value


def _named(source: Source) -> str:
    if isinstance(source, ServiceBusQueue):
        return f"queue {source.queue}"
    return f"subscription {source.topic}/{source.subscription}"


@redacting
class ServiceBusQueueReader:
    """See QueueReader."""

    def __init__(self, connection: ServiceBusConnection) -> None:
        self._client = _administration_client(connection)

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


def _administration_client(connection: ServiceBusConnection) -> ServiceBusAdministrationClient:
    if connection.connection_string:
        address = connection.connection_string.partition("//")[2].partition(";")[0]
        return ServiceBusAdministrationClient.from_connection_string(
            connection.connection_string, transport=transport_for(address), retry_total=1
        )
    namespace = connection.namespace
    return ServiceBusAdministrationClient(
        namespace,
        credential_for(namespace, connection.client_id),
        transport=transport_for(namespace),
        retry_total=1,
    )
