"""Reads entities of Service Bus: through its administration API, or through Resource Manager."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit
from xml.etree.ElementTree import Element

from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError
from azure.core.pipeline.policies import AsyncRetryPolicy
from azure.core.rest import HttpRequest
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import QueueProperties, TopicProperties

from shared.azure.arm import arm_client
from shared.azure.budget import ArmBudget
from shared.azure.credentials import credential_for
from shared.azure.entity_reads import PAGE_SIZE
from shared.azure.refusals import Access, AccessRefused, service_bus_access
from shared.azure.transport import retry_after_seconds, server_time, transport_for
from shared.settings.connections import ServiceBusConnection
from shared.values.redaction import redacted, redacting
from shared.values.text import one_line, quoted

ATOM = "{http://www.w3.org/2005/Atom}"
SERVICE_BUS = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"
API_VERSION = "2021-11-01"
WINDOW_SECONDS_MAX = 5.0
RETRY_AFTER_SECONDS_MAX = 2.0
"""A client waits at most this long before it repeats a refused request. A longer wait would outlast
the reading."""


async def duplicate_window(
    connection: ServiceBusConnection, entity: str, *, topic: bool
) -> timedelta | str | None:
    """For how long the queue or topic recognizes duplicates, None if it does not, or why that could
    not be read, such as a missing right to manage the entity."""
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
    """The answer, if it describes an entity or is a feed, as for one that does not exist. The
    client takes any other XML, such as that of an error, for an entity that does not exist."""
    content = answer.iterfind(f"{ATOM}content/*")
    if answer.tag == f"{ATOM}feed" or any(each.tag.endswith("Description") for each in content):
        return answer
    text = one_line(" ".join(answer.itertext()))
    raise HttpResponseError(f"the answer describes no entity: {text}", response.http_response)


class _RetryPolicy(AsyncRetryPolicy[Any, Any]):
    def __init__(self, turn: Callable[[], Awaitable[None]] | None) -> None:
        super().__init__(retry_total=1)
        self._turn = turn

    async def sleep(self, *args: Any, **kwargs: Any) -> None:
        await super().sleep(*args, **kwargs)
        if self._turn:
            await self._turn()

    def get_retry_after(self, response: Any) -> float | None:
        return retry_after_seconds(response.http_response)

    def is_retry(self, settings: dict[str, Any], response: Any) -> bool:
        wait = self.get_retry_after(response) or 0
        return wait <= RETRY_AFTER_SECONDS_MAX and super().is_retry(settings, response)


def administration_client(
    connection: ServiceBusConnection, turn: Callable[[], Awaitable[None]] | None = None
) -> ServiceBusAdministrationClient:
    """A client of the administration API. It waits for a ``turn`` before it repeats a request."""
    host = connection.host
    options = {"transport": transport_for(host), "retry_policy": _RetryPolicy(turn)}
    if text := connection.connection_string:
        return ServiceBusAdministrationClient.from_connection_string(text, **options)
    credential = credential_for(host, connection.identity)
    return ServiceBusAdministrationClient(host, credential, **options)


class Entity:
    """What an answer says about an entity, at the server's ``time``."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        known = {name.lower(): value for name, value in facts.items() if value is not None}
        self._facts, self.counts, self.time = known, known.keys(), server_time()
        self.status = str(known.get("status", ""))

    def count(self, name: str) -> int | None:
        """The count with this lower-case name; None if the answer does not have it."""
        count = self._facts.get(name)
        if count is not None and (type(count) is not int or count < 0):
            raise ValueError(f"{name} is {quoted(count)}")
        return count


@redacting
class NamespaceEntities:
    """Reads entities at the address of their namespace. Requires the role Data Owner. It reads the
    answers itself, because the client leaves out the status."""

    def __init__(
        self, connection: ServiceBusConnection, turn: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._connection = connection
        self._client = administration_client(connection, turn)

    def access(self, entity: str) -> Access:
        return service_bus_access(self._connection, entity, "Owner")

    async def read(self, kind: str, path: Sequence[str]) -> Entity:
        found = Element("")

        def seen(response: Any, answer: Element, headers: object) -> Element:
            nonlocal found
            found = described(response, answer, headers)
            return found

        await getattr(self._client, f"get_{kind}_runtime_properties")(*path, cls=seen)
        return _of_entry(kind, found)

    async def pages(self, kind: str, *above: str) -> AsyncGenerator[Mapping[str, Entity], None]:
        """All entities of the kind, of subscriptions those of the topic, by lower-case name."""
        page: dict[str, Entity] = {}

        def seen(response: Any, answer: Element, headers: object) -> Element:
            page.clear()
            for entry in described(response, answer, headers).findall(f"{ATOM}entry"):
                page[entry.findtext(f"{ATOM}title", "").lower()] = _of_entry(kind, entry)
                answer.remove(entry)  # the client would parse it again, at 20 times the cost
            return answer

        listed = getattr(self._client, f"list_{kind}s_runtime_properties")(*above, cls=seen)
        async for _ in listed.by_page():
            yield page

    async def close(self) -> None:
        await self._client.close()


def _of_entry(kind: str, entry: Element) -> Entity:
    path = f"{ATOM}content/{SERVICE_BUS}{kind.capitalize()}Description"
    shown = [*entry.iterfind(f"{path}/*"), *entry.iterfind(f"{path}/{SERVICE_BUS}CountDetails/*")]
    texts = {each.tag.rpartition("}")[2]: each.text or "" for each in shown}
    return Entity({name: int(text) if text.isdecimal() else text for name, text in texts.items()})


@redacting
class ArmEntities:
    """Reads the entities of a namespace through Azure Resource Manager, for which Monitoring Reader
    on it is enough. In its addresses, a slash in a name is written as a tilde.

    https://learn.microsoft.com/rest/api/servicebus/controlplane-stable/subscriptions/get
    """

    def __init__(self, endpoint: str, namespace_id: str, budget: ArmBudget | None = None) -> None:
        self._namespace_id = namespace_id
        self._host = urlsplit(endpoint).hostname
        self._client = arm_client(endpoint, budget=budget)

    def access(self, entity: str) -> Access:
        return Access(f"{entity} of namespace {self._namespace_id}", "Monitoring Reader")

    async def read(self, kind: str, path: Sequence[str]) -> Entity:
        *above, name = path
        return _of_resource(await self._get(self._url(kind, above, f"/{_segment(name)}")))

    async def pages(self, kind: str, *above: str) -> AsyncGenerator[Mapping[str, Entity], None]:
        """See NamespaceEntities."""
        url = self._url(kind, above, further=f"&$top={PAGE_SIZE}")
        while urlsplit(url).hostname == self._host:
            answer = await self._get(url)
            page = dict[str, Entity]()
            for each in answer["value"]:
                with suppress(AttributeError, LookupError, TypeError):  # it is read by itself
                    page[each["name"].replace("~", "/").lower()] = _of_resource(each)
            yield page
            url = answer.get("nextLink") or ""

    def _url(self, kind: str, above: Sequence[str], name: str = "", further: str = "") -> str:
        topic = "".join(f"topics/{_segment(each)}/" for each in above)
        path = f"{self._namespace_id}/{topic}{kind}s{name}"
        return self._client.format_url(f"{path}?api-version={API_VERSION}{further}")

    async def _get(self, url: str) -> Any:
        response = await self._client.send_request(HttpRequest("GET", url))
        if response.status_code != 200:
            missing = response.status_code == 404
            raise (ResourceNotFoundError if missing else HttpResponseError)(response=response)
        return response.json()

    async def close(self) -> None:
        await self._client.close()


def _segment(name: str) -> str:
    return quote(name.replace("/", "~"), safe="~")


def _of_resource(resource: Any) -> Entity:
    properties = resource["properties"]
    return Entity({**properties, **(properties.get("countDetails") or {})})
