"""Service Bus administration over HTTP for `ServiceBusAdministrationClient`: the properties and
message counts of one queue, topic or subscription, and lists of them in pages.

Each request costs credits of the namespace. Changes and rules are refused. The status of an entity
is only told: the broker goes on delivering. As in Azure, the answer for an entity that does not
exist is status 200 with a feed without entries.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from local.azure_apis import atom
from local.azure_apis.entities import CountsProvider, Entity, EntityCounts, Kind
from local.azure_apis.limits import MANAGEMENT_CREDITS, Credits
from local.azure_apis.loopback_server import (
    HOST,
    Fault,
    LoopbackServer,
    Reply,
    Request,
)
from local.azure_apis.pages import page
from local.clock import Clock, utc_now

_RULES = re.compile(r".+/subscriptions/[^/]+/rules(/.*)?", re.IGNORECASE)
_LIST = re.compile(r"\$resources/(queues|topics)|(.+)/subscriptions", re.IGNORECASE)
_THROTTLED_SECONDS = 2
_THROTTLED = (
    "The request was terminated because the namespace is being throttled. Error code: 50009. "
    f"Please wait {_THROTTLED_SECONDS} seconds and try again."
)


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
        self.credits = Credits()
        self.may_list = True
        """A right on one entity allows no list."""
        self.left_out_of_lists: set[str] = set()
        """The lower-case paths of entities that lists leave out, as lists of many entities do in
        Azure: https://github.com/Azure/azure-sdk-for-net/issues/37985"""

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

    def listed(
        self, kind: Kind, topic: str, query: Mapping[str, str], url: str
    ) -> tuple[Sequence[Entity], str | None]:
        """One page of the entities of a kind, in alphabetical order, and the address of the next.

        Subscriptions are those of the topic. KeyError if the topic does not exist, ValueError if
        the query is not valid.
        """
        if kind is Kind.SUBSCRIPTION and self.find(topic) is None:
            raise KeyError(topic)
        below = f"{topic}/subscriptions/".lower() if kind is Kind.SUBSCRIPTION else ""
        named = set(self.paths(kind)) - self.left_out_of_lists
        some, next_url = page(sorted(p for p in named if p.startswith(below)), query, url)
        return [each for path in some if (each := self.described(path))], next_url

    def paths(self, kind: Kind) -> Iterator[str]:
        """The lower-case paths of all entities of a kind."""
        return (path for path, entity in self.entities.items() if entity.kind is kind)

    def unauthorized(self, reason: str) -> Reply:
        return _error(401, f"MalformedToken: {reason}")

    def handle(self, request: Request) -> Reply:
        path = request.path.strip("/")
        if _RULES.fullmatch(path):
            return _error(501, "rules are not supported here: a subscription gets every message")
        if request.method != "GET":
            return _error(405, f"{request.method} is not supported here: declare entities in code")
        if not self.credits.take(MANAGEMENT_CREDITS, request.time):
            return _error(429, _THROTTLED, _THROTTLED_SECONDS)
        if match := _LIST.fullmatch(path):
            return self._list(request, match[1], match[2] or "")
        entity = self.described(path)
        if entity is None:
            return _xml(atom.feed(f"{self.base_url}/{path}"), "feed")
        return _xml(atom.entry(entity, request.time, self.base_url), "entry")

    def _list(self, request: Request, name: str | None, topic: str) -> Reply:
        if not self.may_list:
            return _error(401, "Manage,EntityRead claims required for this operation.")
        kind = Kind.SUBSCRIPTION if name is None else Kind[name.upper().removesuffix("S")]
        url = f"{self.base_url}{request.path}"
        try:
            some, next_url = self.listed(kind, topic, request.query, url)
        except KeyError:
            return _error(404, f"No such topic: {topic}")
        except ValueError as error:
            return _error(400, f"The query is not valid: {error}")
        entries = [atom.entry(each, request.time, self.base_url) for each in some]
        return _xml(atom.feed(url, entries, next_url), "feed")

    def _declare(self, entity: Entity) -> None:
        self.entities[entity.path.lower()] = entity


def _xml(body: str, form: str) -> Reply:
    return Reply(200, body, content_type=f"application/atom+xml;type={form}")


def _error(status: int, detail: str, retry_after_seconds: int | None = None) -> Reply:
    headers = {} if retry_after_seconds is None else {"Retry-After": str(retry_after_seconds)}
    return Reply(status, atom.error(status, detail), "application/xml", headers)
