"""Starts the whole system on this machine: storage, stand-ins, a workload, the functions host."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType

from azure.storage.queue.aio import QueueServiceClient

from backtest.traces.reading import Trace
from local.amqp_broker import HAS_AMQP
from local.amqp_broker.administration import BrokerAdministration, service_bus
from local.amqp_broker.broker import Broker
from local.amqp_broker.model.properties import HubProperties
from local.amqp_broker.processing_queues import declare_processing_queues
from local.azure_apis.arm import ArmStandIn
from local.azure_apis.metrics import MetricsStandIn
from local.azure_apis.plans import P1V3, Pieces, Plan
from local.azurite import Azurite
from local.clock import utc_now
from local.demo import profile
from local.demo.hosted_app import hosted_app
from local.demo.night import NightlyDemo, in_background
from local.demo.night import planned as planned_night
from local.demo.settings_files import RUNNING_SETTINGS, local_settings_file, running_settings_file
from local.demo.traffic import Traffic
from local.demo.watching import stopped_with
from local.demo.workload import Workload, default_instance_rate
from local.functions_host.host import FunctionsHost
from local.functions_host.host_json import HostConfig, read_host_json
from local.functions_host.services import HostOptions
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.declaring import Throughput
from shared.autoscaling.flows.poison import UNATTRIBUTED
from shared.autoscaling.learning.throughput import rate_estimate
from shared.autoscaling.policy import RateEstimate
from shared.autoscaling.store.tables import TableStateStore
from shared.settings.connections import StorageConnection

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
COLLECTOR = "shared.autoscaling.flows.metric_collector"


class SourceFailures(logging.Handler):
    """Counts failed reads of metric sources, by the ``action`` of the collector's log lines."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += getattr(record, "action", "") == "source_failed"


@contextmanager
def counted_source_failures() -> Iterator[SourceFailures]:
    failures, logger = SourceFailures(), logging.getLogger(COLLECTOR)
    logger.addHandler(failures)
    try:
        yield failures
    finally:
        logger.removeHandler(failures)


APP_DIR = Path(__file__).parents[2]
CONFLICT_PROBABILITY = 0.1
"""One change in ten is refused because of a conflict, as Azure Resource Manager does at times."""

CHANGE_SECONDS = 0.2
IDLE_POLL_SECONDS = 0.1
LOG_LINES_MAX = 1_000_000
KEYS_FILE = "master_key"
"""In the folder of the run's settings. It is kept, so that an open page works after a restart."""

POISON_QUEUES = ("metrics-poison", "samples-poison", "actions-poison")


@dataclass(frozen=True, slots=True)
class Summary:
    """The totals of a run. Arrivals, drained and backlog in items; age in minutes of the trace."""

    minutes: float
    arrivals: float
    drained: float
    backlog_max: float
    age_max_minutes: float
    capacity_min: int
    capacity_max: int
    actions: int
    decisions: int
    poison: int
    errors: int


class StartableClock:
    """Seconds since ``start``, and 0 before it: the trace waits for the functions host."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._started_at: float | None = None

    def __call__(self) -> float:
        return 0.0 if self._started_at is None else self._monotonic() - self._started_at

    def start(self) -> None:
        self._started_at = self._monotonic()


@dataclass(frozen=True, slots=True)
class LocalSystem:
    """All parts of the running system, for the view and for tests."""

    minutes: int
    seconds: StartableClock
    workload: Workload
    traffic: Traffic
    arm: ArmStandIn
    host: FunctionsHost | None
    store: TableStateStore
    queues: QueueServiceClient
    source_failures: SourceFailures
    night: NightlyDemo | None
    first_hour: bool = False

    async def estimate(self) -> RateEstimate | None:
        """The rate per instance that the app plans with, in items a minute of the trace."""
        told = None if self.first_hour else self.workload.queue.instance_rate_per_minute
        snapshot = await self.store.load(profile.PLAN.name)
        return rate_estimate(Throughput(told), snapshot.state.learned)

    @property
    def page(self) -> str:
        """The page's address, with a key that opens the page and every function that it calls."""
        return f"{self.host.url}/api/dashboard?code={self.host.keys.host}" if self.host else ""

    @property
    def ended(self) -> bool:
        self.traffic.advance()
        return self.workload.minute >= self.minutes

    async def log(self, limit: int = LOG_LINES_MAX) -> list[LogEntry]:
        return await self.store.log(profile.PLAN.name, limit)

    async def summary(self) -> Summary:
        counters = self.workload.counters
        lines = await self.log()
        kinds = Counter(line.kind for line in lines)
        unattributed = await self.store.log(UNATTRIBUTED, LOG_LINES_MAX)
        failures = sum(count.failures for count in self.host.counts.values()) if self.host else 0
        return Summary(
            minutes=round(self.workload.minute, 2),
            arrivals=round(counters.arrivals, 2),
            drained=round(counters.drained, 2),
            backlog_max=round(counters.backlog_max, 2),
            age_max_minutes=round(counters.age_max_minutes, 2),
            capacity_min=counters.ordered_min,
            capacity_max=counters.ordered_max,
            actions=sum(line.applies for line in lines),
            decisions=kinds[EntryKind.DECISION],
            poison=kinds[EntryKind.POISON] + len(unattributed) + await self._poison_waiting(),
            errors=failures + kinds[EntryKind.FAILED] + self.source_failures.count,
        )

    async def _poison_waiting(self) -> int:
        waiting = 0
        async for queue in self.queues.list_queues():
            if queue.name in POISON_QUEUES:
                properties = await self.queues.get_queue_client(queue).get_queue_properties()
                waiting += properties.approximate_message_count or 0
        return waiting


@asynccontextmanager
async def local_system(  # noqa: PLR0913  a parameter is an option
    trace: Trace,
    minutes: int,
    *,
    with_host: bool = True,
    with_night: bool = False,
    first_hour: bool = False,
    in_pieces: bool = False,
    settings_file: Path = RUNNING_SETTINGS,
    monotonic: Callable[[], float] = time.monotonic,
    other_settings: Mapping[str, str] = NO_SETTINGS,
) -> AsyncIterator[LocalSystem]:
    """Start the system with the trace at its first minute, and stop everything at the end.
    Raises PartEnded if a part ends by itself.

    Once ``seconds.start()`` is called, the trace advances by the seconds of ``monotonic``. Without
    a host, the app's settings are in local.settings.json meanwhile, for ``func start``.
    ``first_hour`` starts a fresh deployment with one instance, in real time. With ``in_pieces``,
    the plan scales asynchronously, and its instances start a few at a time.
    ``other_settings`` replace those of the demo.
    """
    arrivals = trace.arrivals[:minutes]
    rate = default_instance_rate(arrivals)
    seconds = StartableClock(monotonic)
    capacity = profile.MINIMUM_CAPACITY if first_hour else profile.starting_capacity(arrivals, rate)
    workload = _workload(replace(trace, arrivals=arrivals), rate, capacity, in_pieces=in_pieces)
    async with AsyncExitStack() as stack:
        azurite = Azurite()
        stack.callback(azurite.stop)  # Also if a signal cancels the start, which goes on meanwhile.
        await asyncio.to_thread(azurite.start)
        await stack.enter_async_context(stopped_with(azurite.ended))
        broker, bus = await stack.enter_async_context(_service_bus())
        declare_entities(broker)
        metrics, pace = _metrics(), profile.SECONDS_PER_TRACE_MINUTE
        traffic = _traffic(workload, lambda: seconds() / pace, broker)
        if first_hour:
            traffic.count, pace = partial(_record, metrics), 60.0
        await stack.enter_async_context(traffic.running())
        change_seconds = profile.CHANGE_SECONDS if first_hour else CHANGE_SECONDS
        plan = Plan(profile.PLAN, capacity, P1V3, properties={"asyncScalingEnabled": in_pieces})
        arm = await stack.enter_async_context(_arm(plan, pace, traffic, metrics, change_seconds))
        night = planned_night(azurite.connection_string) if with_night else None
        of_night = night.settings if night else NO_SETTINGS
        settings = {**_settings(rate, azurite, bus, arm, first_hour), **of_night, **other_settings}
        stack.enter_context(running_settings_file(settings, settings_file))
        host = _host(settings, settings_file.parent / KEYS_FILE) if with_host else None
        await stack.enter_async_context(_hosted(host, settings))
        store = TableStateStore(StorageConnection("Storage", azurite.connection_string))
        stack.push_async_callback(store.close)
        queues = QueueServiceClient.from_connection_string(azurite.connection_string)
        await stack.enter_async_context(queues)
        failures = stack.enter_context(counted_source_failures())
        if night is not None and host is not None:
            await stack.enter_async_context(
                in_background(night, partial(host.invoke, "nightly_trends"))
            )
        yield LocalSystem(
            minutes,
            seconds,
            workload,
            traffic,
            arm,
            host,
            store,
            queues,
            failures,
            night,
            first_hour,
        )


@asynccontextmanager
async def _hosted(host: FunctionsHost | None, settings: Mapping[str, str]) -> AsyncIterator[None]:
    """Run the app in the host; without one, let ``func start`` find its settings."""
    if host is None:
        with local_settings_file(settings):
            yield
        return
    async with stopped_with(partial(_host_ended, host)), hosted_app(host):
        yield


def shrunk_host_json() -> HostConfig:
    """host.json with polling waits that fit the demo, in which a second stands for a minute."""
    config = read_host_json(APP_DIR)
    queues = replace(
        config.queues,
        max_polling_interval_seconds=IDLE_POLL_SECONDS,
        visibility_timeout_seconds=0,
    )
    return replace(config, queues=queues)


@asynccontextmanager
async def _service_bus() -> AsyncIterator[tuple[Broker, str]]:
    """The broker and its connection string, which without AMQP serves the administration only."""
    if HAS_AMQP:
        async with service_bus() as bus:
            yield bus.amqp.broker, bus.connection_string
    else:
        async with BrokerAdministration(Broker(utc_now)) as administration:
            yield administration.broker, administration.connection_string


def declare_entities(broker: Broker) -> None:
    """Declare the watched topic, the queues that process data sets, and an event hub."""
    namespace = broker.namespace
    namespace.declare_topic(profile.TOPIC)
    namespace.declare_subscription(profile.TOPIC, profile.SUBSCRIPTION)
    declare_processing_queues(namespace, profile.PROCESSING_QUEUE, profile.WORKING_QUEUE)
    hub = HubProperties(partition_count=2, consumer_groups=profile.CONSUMER_GROUPS)
    broker.declare_hub(profile.HUB, hub)


def _traffic(workload: Workload, minute: Callable[[], float], broker: Broker) -> Traffic:
    return Traffic(
        workload,
        minute,
        broker,
        topic=profile.TOPIC,
        subscription=profile.SUBSCRIPTION,
        plan=profile.PLAN,
    )


def _metrics() -> MetricsStandIn:
    metrics = MetricsStandIn()
    metrics.add(profile.NAMESPACE_ID, "IncomingMessages", "CompleteMessage", "AbandonMessage")
    metrics.lag_seconds = profile.COUNTS_LATE_SECONDS
    return metrics


def _record(metrics: MetricsStandIn, metric: str, messages: int) -> None:
    metrics.record(profile.NAMESPACE_ID, metric, datetime.now(UTC), messages, profile.TOPIC)


def _settings(
    rate: float, azurite: Azurite, bus: str, arm: ArmStandIn, first_hour: bool
) -> dict[str, str]:
    """The settings of the demo, or those of a fresh deployment. ``rate`` is an instance's
    rate in items a minute of the trace.
    """
    connected = (azurite.connection_string, bus, arm.base_url)
    scaling = profile.first_hour(*connected) if first_hour else profile.settings(rate, *connected)
    return {**scaling, **profile.ingestion(bus)} if HAS_AMQP else scaling


def _host(settings: Mapping[str, str], keys_file: Path) -> FunctionsHost:
    options = HostOptions(keys_file=keys_file)
    return FunctionsHost(APP_DIR, settings=settings, config=shrunk_host_json(), options=options)


def _host_ended(host: FunctionsHost) -> str:
    return host.ended and f"The functions host ended ({host.ended})"


def _workload(trace: Trace, rate: float, capacity: int, *, in_pieces: bool) -> Workload:
    return Workload(
        trace,
        instance_rate_per_minute=rate,
        start_up_minutes=profile.START_UP_MINUTES,
        pace=profile.PIECES if in_pieces else None,
        starting_capacity=capacity,
    )


def _arm(
    plan: Plan, pace: float, traffic: Traffic, metrics: MetricsStandIn, change_seconds: float
) -> ArmStandIn:
    """``pace`` is the duration of a minute of the trace, in seconds."""
    pieces = Pieces(profile.PIECES.instances, profile.PIECES.minutes * pace)
    arm = ArmStandIn(
        [plan],
        operation_seconds=change_seconds,
        retry_after_seconds=0,
        conflict_probability=CONFLICT_PROBABILITY,
        on_capacity_ordered=traffic.on_capacity_ordered,
    )
    arm.metrics, arm.pieces = metrics, pieces
    return arm
