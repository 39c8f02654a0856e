"""Reads entities of Service Bus: through its administration API, or through Resource Manager."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element

from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError
from azure.core.pipeline.policies import AsyncRetryPolicy
from azure.core.rest import HttpRequest
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import QueueProperties, TopicProperties

from shared.azure.arm import arm_client
from shared.azure.budget import ArmBudget
from shared.azure.credentials import credential_for
from shared.azure.refusals import Access, AccessRefused, service_bus_access
from shared.azure.transport import retry_after_seconds, transport_for
from shared.settings.connections import ServiceBusConnection
from shared.values.redaction import redacted, redacting
from shared.values.text import one_line, quoted

ATOM = "{http://www.w3.org/2005/Atom}"
SERVICE_BUS = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"
API_VERSION = "2021-11-01"
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


@redacting
class NamespaceEntities:
    """Reads entities at the address of their namespace. Requires the role Data Owner."""

    def __init__(self, connection: ServiceBusConnection) -> None:
        self._connection = connection
        self._client = administration_client(connection)

    def access(self, entity: str) -> Access:
        return service_bus_access(self._connection, entity, "Owner")

    async def read(self, kind: str, path: Sequence[str], counted: str) -> tuple[int | None, str]:
        """The number, None if the answer does not have it, and the status of the entity, which is
        in the same answer but which the client does not return."""
        status = ""

        def seen(response: Any, answer: Element, headers: object) -> Element:
            nonlocal status
            status = answer.findtext(f"{ATOM}content/*/{SERVICE_BUS}Status", "")
            return described(response, answer, headers)

        properties = await getattr(self._client, f"get_{kind}_runtime_properties")(*path, cls=seen)
        try:
            return getattr(properties, counted), status
        except AttributeError:  # the client expects each answer to contain counts
            return None, status

    async def close(self) -> None:
        await self._client.close()


@redacting
class ArmEntities:
    """Reads the entities of a namespace through Azure Resource Manager. Requires a role with
    ``Microsoft.ServiceBus/namespaces/*/read``, such as Monitoring Reader. In its addresses, a slash
    in a name is written as a tilde.

    https://learn.microsoft.com/rest/api/servicebus/controlplane-stable/subscriptions/get
    """

    def __init__(self, endpoint: str, namespace_id: str, budget: ArmBudget | None = None) -> None:
        self._namespace_id = namespace_id
        self._client = arm_client(endpoint, budget=budget)

    def access(self, entity: str) -> Access:
        return Access(f"{entity} of namespace {self._namespace_id}", "Monitoring Reader")

    async def read(self, kind: str, path: Sequence[str], counted: str) -> tuple[int | None, str]:
        names = [quote(name.replace("/", "~"), safe="~") for name in path]
        below = (
            f"queues/{names[0]}" if kind == "queue" else f"topics/{'/subscriptions/'.join(names)}"
        )
        url = f"{self._namespace_id}/{below}?api-version={API_VERSION}"
        response = await self._client.send_request(HttpRequest("GET", self._client.format_url(url)))
        if response.status_code != 200:
            missing = response.status_code == 404
            raise (ResourceNotFoundError if missing else HttpResponseError)(response=response)
        properties = response.json()["properties"]
        found = {**properties, **(properties.get("countDetails") or {})}
        count = found.get(_camel_case(counted))
        if count is not None and (type(count) is not int or count < 0):
            raise ValueError(f"{counted} is {quoted(count)}")
        return count, str(properties.get("status") or "")

    async def close(self) -> None:
        await self._client.close()


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(each.capitalize() for each in others)
