"""Metric sources: the base class, and those that need no metric of Azure Monitor. A source
describes itself and reads itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import ReadFailed
from shared.values.bounds import EntityName, Flag, SettingName, StorageQueueName, problems_of
from shared.values.measurements import NOTHING, MetricValue
from shared.values.text import number, quoted

T = TypeVar("T")
Stated = Any
"""The type of a name that a class may define as an attribute, a field or a property."""
Count = Literal["active", "dead_letter", "scheduled"]
PLAN_READ_SECONDS = 60
"""The collector reads the capacity of a target this often, or in each run if it runs less often."""


class Services(Protocol):
    """The services that sources read. Each client is opened once, on first use."""

    async def message_count(self, source: ServiceBusSource) -> MetricValue:
        """The count of a Service Bus entity. Raises ReadFailed if the entity does not exist."""
        ...

    async def queue_length(self, source: StorageQueue) -> MetricValue: ...

    async def capacity(self, plan: AppServicePlan) -> MetricValue:
        """Raises the errors of ``CapacityControl``."""
        ...

    async def breaker(self) -> MetricValue: ...

    async def azure_monitor(self, source: Any) -> Sequence[MetricValue]:
        """The new samples of an AzureMonitorMetric; see ``PlatformMetrics``. Sources that are read
        at the same time share requests."""
        ...

    async def get_json(self, url: str, headers: Mapping[str, str]) -> tuple[Any, datetime | None]:
        """The document, and the time of the server if it states one."""
        ...

    def now(self) -> datetime:
        """The time by the app's own clock."""
        ...

    def advice(self) -> Sequence[str]:
        """Rights that would have saved many requests so far."""
        ...

    async def close(self) -> None: ...


class Reading:
    """What a source reads with. Each read of a source has its own. ``server_time`` is the time of
    the newest answer of ``get_json``, by the server's clock."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._loop = asyncio.get_running_loop()
        self.server_time: datetime | None = None

    async def get_json(self, url: str, headers: Mapping[str, str] = NOTHING) -> Any:
        """The JSON document at the address, of at most 1 MiB. A redirect may lead to another path
        of the same host only. Raises ReadFailed."""
        document, time = await self.using(lambda services: services.get_json(url, headers))
        self.server_time = time or self.server_time
        return document

    async def using(self, call: Callable[[Services], Awaitable[T]]) -> T:
        """The result of a call, which runs in the event loop of the clients."""

        async def called() -> T:
            return await call(self._services)

        if asyncio.get_running_loop() is self._loop:
            return await called()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(called(), self._loop))


Read = float | MetricValue | Sequence[MetricValue]
"""What a source may return: its current value, a value with its time, or several of them."""


class MetricSeries(NamedTuple):
    """A metric of Azure Monitor, which has one value for each interval in which something happened.
    The resource ID keeps its case; ``interval`` is the time that ``time_grain`` stands for."""

    resource_id: str
    metric: str
    aggregation: str
    time_grain: str
    interval: timedelta


class Source:
    """Where the samples of a metric come from. To read a number of your own, derive a class,
    decorate it with ``@dataclass(frozen=True)``, and define ``read``. The other names may stay as
    they are, or become attributes, fields or properties."""

    __slots__ = ()

    counts_backlog: Stated = False
    """True if the value is the number of items that wait for the instances."""
    is_total: Stated = False
    """True if the value is one for all instances together. That of a backlog always is."""
    usual_lag_seconds: Stated = 0.0
    """The longest age of a new sample that is still usual. Windows and guards account for it."""
    highest: Stated = None
    """No value can be higher. An explanation of a decision names no level above it."""
    roles: Stated = ()
    """The roles that the app's identity needs on what is read."""
    connection: Stated = ""
    """The name of the connection in the settings."""

    async def read(self, at: Reading) -> Read:
        """The current value, or samples with their times.

        ``at`` reads for the source, and ends with it. A value without a time gets the time of the
        server that answered ``at.get_json``. After an error, or a value that is not a number of at
        least 0, the metric is missing; it is never taken for zero.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no read(self, at)")

    def problems(self) -> Iterable[str]:
        """What is wrong with the declaration, each such as "url = '': must be an address": fields
        that violate their bounds (see ``shared.values.bounds``)."""
        return problems_of(self)

    # --- what the sources of the app tell about themselves, in addition ---

    service: Literal["", "storage", "service_bus"] = ""
    needs_hub: Stated = False
    """True if there are samples only if the app reads an event hub."""
    is_sent: bool = False
    """True if the queue ``samples`` and the HTTP API take samples of it."""
    time_limits: int = 1
    """The read may take this many times ``SourceTimeoutSeconds``."""
    pushed: Stated = False
    """True if the samples are sent to the app, so that the app does not read them."""
    at_rest: Stated = None
    """The value while nothing goes wrong, if it is known. The backtest replays it."""

    @property
    def place(self) -> tuple[str, ...]:
        """For a source on Service Bus: the kind of its entity, and the path of it."""
        return ()

    @property
    def siblings(self) -> Source | None:
        """For a subscription: the source that counts the subscriptions of its topic."""
        return None

    @property
    def series(self) -> MetricSeries | None:
        """The metric of Azure Monitor from which the samples come."""
        return None

    @property
    def entity(self) -> str:
        """The Service Bus queue or topic to which the source belongs."""
        return self.place[1] if self.place else ""


RESERVED = frozenset(name for name in vars(Source) if not name.startswith("_")) - {
    *("read", "problems", "counts_backlog", "is_total", "usual_lag_seconds", "highest"),
    *("roles", "connection"),
}
"""The names that a class of the user must not use for something else."""
NO_SOURCE = Source()
"""Stands for a metric that is not declared, such as the capacity."""


class ServiceBusSource(Source):
    """A source that a Service Bus namespace counts. ``counted`` is the property that is read."""

    __slots__ = ()

    service = "service_bus"
    roles = ("Azure Service Bus Data Owner",)
    is_total = True
    counted: Stated

    async def read(self, at: Reading) -> Read:
        return await at.using(lambda services: services.message_count(self))


class _MessageCount(ServiceBusSource):
    """The messages of a queue or subscription, by their state."""

    __slots__ = ()

    count: Count

    @property
    def counts_backlog(self) -> bool:
        """Dead letters and scheduled messages do not wait for the instances."""
        return self.count == "active"

    @property
    def at_rest(self) -> float | None:
        return None if self.counts_backlog else 0.0

    @property
    def counted(self) -> str:
        return f"{self.count}_message_count"


@dataclass(frozen=True, slots=True)
class ServiceBusSubscription(_MessageCount):
    """The number of messages in a subscription of a Service Bus topic. Scheduled messages wait in
    the topic: ``count="scheduled"`` reads the topic's count."""

    topic: EntityName
    subscription: EntityName
    count: Count = "active"
    connection: SettingName = "ServiceBusConnection"

    @property
    def siblings(self) -> Source:
        return TopicSubscriptions(self.topic, self.connection)

    @property
    def place(self) -> tuple[str, ...]:
        if self.count == "scheduled":
            return "topic", self.topic
        return "subscription", self.topic, self.subscription


@dataclass(frozen=True, slots=True)
class ServiceBusQueue(_MessageCount):
    """The number of messages in a Service Bus queue."""

    queue: EntityName
    count: Count = "active"
    connection: SettingName = "ServiceBusConnection"

    @property
    def place(self) -> tuple[str, ...]:
        return "queue", self.queue


@dataclass(frozen=True, slots=True)
class TopicSubscriptions(ServiceBusSource):
    """The number of subscriptions of a Service Bus topic. The collector reads it."""

    topic: EntityName
    connection: SettingName = "ServiceBusConnection"
    counted = "subscription_count"

    @property
    def place(self) -> tuple[str, ...]:
        return "topic", self.topic


@dataclass(frozen=True, slots=True)
class StorageQueue(Source):
    """The approximate number of messages in a Storage queue, including invisible ones. With
    ``peek=True``, the age in seconds of the message at the front, by the storage account's clock; 0
    if none is visible. Another may be older, because a queue is not strictly first in, first
    out."""

    queue: StorageQueueName
    connection: SettingName = "AzureWebJobsStorage"
    peek: Flag = field(default=False, repr=False)
    service = "storage"
    roles = ("Storage Queue Data Reader",)

    @property
    def counts_backlog(self) -> bool:
        """An age is not a number of messages."""
        return not self.peek

    async def read(self, at: Reading) -> Read:
        return await at.using(lambda services: services.queue_length(self))


@dataclass(frozen=True, slots=True)
class PlanCapacity(Source):
    """The capacity that a plan is set to. The collector reads it for every resource."""

    plan: AppServicePlan
    is_total = True

    async def read(self, at: Reading) -> Read:
        return await at.using(lambda services: services.capacity(self.plan))


@dataclass(frozen=True, slots=True)
class HubMetric(Source):
    """A metric that your own sender sends to the event hub, in the JSON format of the queue
    ``metrics``."""

    pushed = True
    needs_hub = True


@dataclass(frozen=True, slots=True)
class QueueMetric(Source):
    """A metric that your own sender sends to the queue ``samples``, or to the app by HTTP, in the
    JSON format of the queue ``metrics``."""

    pushed = True
    is_sent = True


@dataclass(frozen=True, slots=True)
class IngestionBreaker(Source):
    """The state of the circuit breaker of the Event Hub ingestion: 0 while closed, otherwise 1."""

    is_total = True
    needs_hub = True
    highest = 1.0
    at_rest = 0.0

    async def read(self, at: Reading) -> Read:
        return await at.using(lambda services: services.breaker())


@dataclass(frozen=True, slots=True)
class HttpJson(Source):
    """A number, or a text that is one, in a JSON document that a web server answers with. ``path``
    leads to it: keys and positions separated by dots, such as ``data.result.0.value.1``.
    ``headers`` and a query string may contain secrets, which are not shown."""

    url: str
    path: str
    counts_backlog: Flag = field(default=False, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    async def read(self, at: Reading) -> Read:
        found = await at.get_json(self.url, self.headers)
        for key in self.path.split("."):
            try:
                found = found[int(key) if isinstance(found, list) else key]
            except (LookupError, TypeError, ValueError):
                raise ReadFailed(f"the answer has no {quoted(key)} of {self.path}") from None
        if isinstance(found, str):
            return number(found)
        if type(found) not in (int, float):
            raise ReadFailed(f"{self.path} is {quoted(found)}: must be a number")
        return float(found)

    def problems(self) -> Iterable[str]:
        if wrong := url_problem(self.url):
            yield f"url: {wrong}"
        if not isinstance(self.path, str) or not all(self.path.split(".")):
            yield f"path = {quoted(self.path)}: must be keys and positions, such as data.0.value"
        yield from problems_of(self)
        texts = isinstance(self.headers, Mapping) and [*self.headers, *self.headers.values()]
        if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
            yield "headers: must be a dict of texts, such as {'Authorization': …}"


def url_problem(url: object) -> str:
    """Why the value is not the address of a web server; else empty. The text does not repeat the
    address, which may contain a secret."""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    return "" if valid else "must be an address such as https://jobs.example.com/open"
