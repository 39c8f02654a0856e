"""Opens clients of the administration API of Service Bus, and checks their answers."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from xml.etree.ElementTree import Element

from azure.core.exceptions import AzureError, HttpResponseError
from azure.core.pipeline.policies import AsyncRetryPolicy
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import QueueProperties, TopicProperties

from shared.azure.credentials import credential_for
from shared.azure.refusals import AccessRefused
from shared.azure.transport import retry_after_seconds, transport_for
from shared.settings.connections import ServiceBusConnection
from shared.values.redaction import redacted
from shared.values.text import one_line

ATOM = "{http://www.w3.org/2005/Atom}"
WINDOW_SECONDS_MAX = 5.0
RETRY_AFTER_SECONDS_MAX = 2.0
"""A client waits at most this long before it repeats a refused request. A longer wait would outlast
the reading, and hide why it was refused.
"""


async def duplicate_window(
    connection: ServiceBusConnection, entity: str, *, topic: bool
) -> timedelta | str | None:
    """For how long the queue or topic recognizes duplicates, None if it does not, or the reason why
    that could not be read, such as a missing right to manage the entity."""
    try:
        async with asyncio.timeout(WINDOW_SECONDS_MAX), administration_client(connection) as client:
            get = client.get_topic if topic else client.get_queue
            facts: QueueProperties | TopicProperties = await get(entity, cls=described)
    except (AzureError, AccessRefused, TimeoutError) as error:
        return redacted(f"{type(error).__name__}: {one_line(error)}".rstrip(": "))
    window = facts.duplicate_detection_history_time_window
    assert window is None or not isinstance(window, str), "the client parses durations"
    return window if facts.requires_duplicate_detection else None


def described(response: Any, answer: Element, _headers: object) -> Element:
    """The answer, if it describes an entity or is a feed, as for an entity that does not exist.

    The client takes any other XML, such as that of an error, for an entity that does not exist.
    """
    content = answer.iterfind(f"{ATOM}content/*")
    if answer.tag == f"{ATOM}feed" or any(each.tag.endswith("Description") for each in content):
        return answer
    text = one_line(" ".join(answer.itertext()))
    raise HttpResponseError(f"the answer describes no entity: {text}", response.http_response)


class _RetryPolicy(AsyncRetryPolicy[Any, Any]):
    def get_retry_after(self, response: Any) -> float | None:
        return retry_after_seconds(response.http_response)

    def is_retry(self, settings: dict[str, Any], response: Any) -> bool:
        wait = self.get_retry_after(response) or 0
        return wait <= RETRY_AFTER_SECONDS_MAX and super().is_retry(settings, response)


def administration_client(connection: ServiceBusConnection) -> ServiceBusAdministrationClient:
    """A client of the administration API, with a connection string or the app's identity."""
    if connection.connection_string:
        return ServiceBusAdministrationClient.from_connection_string(
            connection.connection_string,
            transport=transport_for(connection.host),
            retry_policy=_RetryPolicy(retry_total=1),
        )
    namespace = connection.namespace
    return ServiceBusAdministrationClient(
        namespace,
        credential_for(namespace, connection.identity),
        transport=transport_for(namespace),
        retry_policy=_RetryPolicy(retry_total=1),
    )
