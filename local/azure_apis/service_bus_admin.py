"""Service Bus administration over HTTP, for `ServiceBusAdministrationClient`.

Queues, topics and subscriptions: get, list, create, update, delete. Rules are refused. An entity
that is not there is a feed without entries and status 200, as the real service answers.
"""

import re
from collections.abc import Sequence

from local.azure_apis import atom
from local.azure_apis.entities import (
    CountsProvider,
    Entity,
    EntityCounts,
    EntityRefused,
    EntityStore,
    Kind,
    NoCounts,
    topic_of,
)
from local.azure_apis.loopback_server import (
    HOST,
    Fault,
    LoopbackServer,
    Reply,
    Request,
)
from local.clock import Clock, utc_now

PAGE_SIZE = 100
_RULES = re.compile(r".+/subscriptions/[^/]+/rules(/.*)?", re.IGNORECASE)
_LISTS = {"$resources/queues": Kind.QUEUE, "$resources/topics": Kind.TOPIC}


def refusal(status: int, detail: str = "refused", retry_after_seconds: int | None = None) -> Fault:
    """A fault that answers with a status, such as 401, 429 or 500."""
    return Fault(_error(status, detail, retry_after_seconds))


class ServiceBusAdminStandIn(LoopbackServer):
    """The administration endpoint of one namespace on 127.0.0.1."""

    def __init__(
        self,
        counts: CountsProvider | None = None,
        *,
        port: int = 0,
        clock: Clock = utc_now,
        entities: EntityStore | None = None,
    ) -> None:
        super().__init__(port=port, clock=clock)
        self.counts: CountsProvider = counts or NoCounts()
        self.entities = entities or EntityStore()

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://{HOST}:{self.port};SharedAccessKeyName=stand-in;"
            "SharedAccessKey=stand-in;UseDevelopmentEmulator=true"
        )

    def declare_queue(self, name: str, **properties: str) -> None:
        """Properties are named and written as in the XML: `LockDuration="PT1M"`."""
        self._declare(name, Kind.QUEUE, properties)

    def declare_topic(self, name: str, **properties: str) -> None:
        self._declare(name, Kind.TOPIC, properties)

    def declare_subscription(self, topic: str, name: str, **properties: str) -> None:
        self._declare(f"{topic}/subscriptions/{name}", Kind.SUBSCRIPTION, properties)

    def unauthorized(self) -> Reply:
        return _error(401, "MalformedToken: The credentials contained in the request are missing.")

    def handle(self, request: Request) -> Reply:
        path = request.path.strip("/")
        if _RULES.fullmatch(path):
            return _error(501, "rules are not supported here: a subscription gets every message")
        if request.method == "GET":
            return self._get(request, path)
        if request.method == "PUT":
            return self._put(request, path)
        if request.method == "DELETE":
            return self._delete(path)
        return _error(405, f"{request.method} is not supported here")

    def _declare(self, path: str, kind: Kind, properties: dict[str, str]) -> None:
        now = self.clock()
        self.entities.put(Entity(path, kind, atom.new_description(kind, properties), now, now))

    def _get(self, request: Request, path: str) -> Reply:
        if kind := _LISTS.get(path.lower()):
            return self._page(request, path, self.entities.of_kind(kind))
        topic, _, rest = path.rpartition("/")
        if topic and rest.lower() == "subscriptions":
            if self.entities.get(topic) is None:
                return _error(404, f"The messaging entity '{topic}' could not be found.")
            return self._page(request, path, self.entities.subscriptions(topic))
        entity = self.entities.get(path)
        if entity is None:
            return _feed("Publicly Listed Services", f"{self.base_url}/{path}")
        return _xml(200, self._entry(entity), "entry")

    def _page(self, request: Request, path: str, entities: Sequence[Entity]) -> Reply:
        try:
            skip = max(0, int(request.query.get("$skip", 0)))
            top = max(1, min(PAGE_SIZE, int(request.query.get("$top", PAGE_SIZE))))
        except ValueError:
            return _error(400, "$skip and $top must be whole numbers")
        entries = [self._entry(entity) for entity in entities[skip : skip + top]]
        url = f"{self.base_url}/{path}"
        after = skip + top
        more = after < len(entities)
        return _feed(path, url, entries, f"{url}?$skip={after}&$top={top}" if more else None)

    def _entry(self, entity: Entity) -> str:
        counts = self.counts.counts(entity.path) or EntityCounts()
        is_topic = entity.kind is Kind.TOPIC
        subscription_count = len(self.entities.subscriptions(entity.path)) if is_topic else 0
        return atom.entry(entity, counts, subscription_count, self.base_url)

    def _put(self, request: Request, path: str) -> Reply:
        try:
            kind, description = atom.read_description(request.body)
        except atom.NotADescription as error:
            return _error(400, str(error))
        if problem := self._conflict(request, path, kind):
            return problem
        before = self.entities.get(path)
        created = request.time if before is None else before.created
        entity = Entity(path, kind, description, created, request.time)
        try:
            self.entities.put(entity)
        except EntityRefused as error:
            return _error(400, str(error))
        return _xml(201 if before is None else 200, self._entry(entity), "entry")

    def _conflict(self, request: Request, path: str, kind: Kind) -> Reply | None:
        """Why this PUT cannot be. With If-Match it updates, without it creates."""
        topic = topic_of(path)
        if (topic is not None) != (kind is Kind.SUBSCRIPTION):
            return _error(400, f"'{path}' cannot be a {kind.value}")
        if topic is not None and self.entities.get(topic) is None:
            return _error(404, f"The messaging entity '{topic}' could not be found.")
        exists = self.entities.get(path) is not None
        if "if-match" not in request.headers:
            return _error(409, f"Entity '{path}' already exists.") if exists else None
        return None if exists else _error(404, f"Entity '{path}' could not be found.")

    def _delete(self, path: str) -> Reply:
        if self.entities.delete(path):
            return Reply(200, content_type="application/xml")
        return _error(404, f"Entity '{path}' could not be found.")


def _feed(title: str, url: str, entries: Sequence[str] = (), next_url: str | None = None) -> Reply:
    return _xml(200, atom.feed(title, url, entries, next_url), "feed")


def _xml(status: int, body: str, form: str) -> Reply:
    return Reply(status, body, content_type=f"application/atom+xml;type={form}")


def _error(status: int, detail: str, retry_after_seconds: int | None = None) -> Reply:
    headers = {} if retry_after_seconds is None else {"Retry-After": str(retry_after_seconds)}
    return Reply(status, atom.error(status, detail), "application/xml", headers)
