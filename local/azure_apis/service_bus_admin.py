"""Service Bus administration over HTTP for `ServiceBusAdministrationClient`: the properties and
message counts of one queue, topic or subscription.

Lists, changes and rules are refused. The status of an entity is only told: the broker goes on
delivering. As in Azure, the answer for an entity that does not exist is
status 200 with a feed without entries.
"""

import re
from dataclasses import replace

from local.azure_apis import atom
from local.azure_apis.entities import CountsProvider, Entity, EntityCounts, Kind
from local.azure_apis.loopback_server import (
    HOST,
    Fault,
    LoopbackServer,
    Reply,
    Request,
)
from local.clock import Clock, utc_now

_RULES = re.compile(r".+/subscriptions/[^/]+/rules(/.*)?", re.IGNORECASE)
_LIST = re.compile(r"\$resources/.*|.+/subscriptions", re.IGNORECASE)


def refusal(status: int, detail: str = "refused", retry_after_seconds: int | None = None) -> Fault:
    """A fault that answers with a status, such as 401, 429 or 500."""
    return Fault(_error(status, detail, retry_after_seconds))


class ServiceBusAdminStandIn(LoopbackServer):
    """The administration endpoint of one namespace on 127.0.0.1."""

    def __init__(
        self, counts: CountsProvider | None = None, *, port: int = 0, clock: Clock = utc_now
    ) -> None:
        super().__init__(port=port, clock=clock)
        self._counts = counts
        self.entities: dict[str, Entity] = {}
        """The entities declared here, by lower-case path: Service Bus ignores case."""
        self._statuses: dict[str, str] = {}

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://{HOST}:{self.port};SharedAccessKeyName=stand-in;"
            "SharedAccessKey=stand-in;UseDevelopmentEmulator=true"
        )

    def declare_queue(self, name: str, **properties: str) -> None:
        """Properties have the names and the form of the XML: `LockDuration="PT1M"`."""
        self._declare(Entity(name, Kind.QUEUE, properties))

    def declare_topic(self, name: str, **properties: str) -> None:
        self._declare(Entity(name, Kind.TOPIC, properties))

    def declare_subscription(self, topic: str, name: str, **properties: str) -> None:
        self._declare(Entity(f"{topic}/subscriptions/{name}", Kind.SUBSCRIPTION, properties))

    def set_status(self, path: str, status: str) -> None:
        """Disable an entity, or make it active again. A topic does not change its subscriptions."""
        self._statuses[path.lower()] = status

    def described(self, path: str) -> Entity | None:
        """The entity with its current counts and its status; None if it does not exist."""
        entity, status = self.find(path), self._statuses.get(path.lower())
        if entity is None or status is None:
            return entity
        return replace(entity, properties={**entity.properties, "Status": status})

    def find(self, path: str) -> Entity | None:
        """The entity with its current counts; None if it does not exist."""
        entity = self.entities.get(path.lower())
        if entity is None:
            return None
        counts = self._counts and self._counts.counts(entity.path)
        below = f"{path.lower()}/subscriptions/"
        subscription_count = sum(each.startswith(below) for each in self.entities)
        return replace(
            entity, counts=counts or EntityCounts(), subscription_count=subscription_count
        )

    def unauthorized(self, reason: str) -> Reply:
        return _error(401, f"MalformedToken: {reason}")

    def handle(self, request: Request) -> Reply:
        path = request.path.strip("/")
        if _RULES.fullmatch(path):
            return _error(501, "rules are not supported here: a subscription gets every message")
        if request.method != "GET":
            return _error(405, f"{request.method} is not supported here: declare entities in code")
        if _LIST.fullmatch(path):
            return _error(501, "lists are not supported here")
        entity = self.described(path)
        if entity is None:
            return _xml(atom.empty_feed(f"{self.base_url}/{path}"), "feed")
        return _xml(atom.entry(entity, request.time, self.base_url), "entry")

    def _declare(self, entity: Entity) -> None:
        self.entities[entity.path.lower()] = entity


def _xml(body: str, form: str) -> Reply:
    return Reply(200, body, content_type=f"application/atom+xml;type={form}")


def _error(status: int, detail: str, retry_after_seconds: int | None = None) -> Reply:
    headers = {} if retry_after_seconds is None else {"Retry-After": str(retry_after_seconds)}
    return Reply(status, atom.error(status, detail), "application/xml", headers)
