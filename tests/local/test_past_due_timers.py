"""A host that was down for two days: all timers of a minute or longer fire together at its start.

Each is told that it is past due. The nightly run is made up. Nothing is counted, started or
notified twice, even if the host crashes before it has stored that the timers fired.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import partial
from typing import cast

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient

from local.amqp_broker import AmqpStandIn
from local.amqp_broker.model.properties import HubProperties
from local.azurite import Azurite
from local.clock import utc_now
from local.demo.hosted_app import hosted_app
from local.demo.system import APP_DIR, shrunk_host_json
from local.functions_host import FunctionsHost
from local.functions_host.functions import TIMER_TRIGGER, Function
from local.functions_host.host_blobs import HOST_ID
from local.functions_host.invoker import Invoker
from local.functions_host.listeners import LISTENERS
from local.functions_host.schedule_monitor import NEVER, ScheduleStatus
from local.functions_host.services import ListenerFactory, Services
from local.functions_host.timer_listener import TimerListener
from local.functions_host.worker import Invocation, Outcome
from local.twins.nightly import MemoryInputs, MemoryNotifier, MemorySubmitter
from shared.autoscaling import HubMetric, Mode, Threshold
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.store.tables import TableStateStore
from shared.ingestion.events import tail
from shared.ingestion.model import Stream
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.tables import TableRows
from shared.settings.connections import (
    EventHubConnection,
    StorageConnection,
    event_hub_connection,
)
from shared.trends.nightly import runs
from shared.trends.nightly.model import Demand, JobPhase, JobStatus, RunPolicy
from shared.trends.store.runs import TableRunStore
from shared.values.measurements import Metric, MetricValue
from shared.values.news import News, NewsKind
from tests.builders import encode_metric, resource
from tests.local.polling import POLL_SECONDS, until
from tests.settings.test_settings import SINGLE

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

HUB = "metrics"
SET = "insights-logs-appevents"
SECONDS_MAX = 60
DOWN = timedelta(days=2)
OTHER_SECONDS_MAX = 3
RESOURCE = resource(
    metrics={"pushed": HubMetric()}, policy=Threshold("pushed", 100, 10), mode=Mode.DRY_RUN
)
ONCE_A_YEAR = "0 0 0 1 1 *"
MISSED = {"log_retention", "notifier", "ingest_tail", "nightly_trends", "trend_runs"}
NOT_MISSED = {"metric_collector", "reconciler"}
"""They run more often than once a minute, and such schedules are not stored."""


class HeldTimer(TimerListener):
    """A timer that begins when the test has set up the app. Its runs are recorded in `record`."""

    def __init__(self, services: Services, function: Function, record: Record) -> None:
        recorder = cast(Invoker, Recorder(services.invoker, record))
        super().__init__(replace(services, invoker=recorder), function)
        record.timers.append(self)

    async def start(self) -> None: ...

    async def begin(self) -> None:
        await super().start()


@dataclass
class Record:
    """What the timers of one host did."""

    timers: list[HeldTimer] = field(default_factory=list)
    past_due: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)


@dataclass
class Recorder:
    """Stands between a timer and the invoker."""

    invoker: Invoker
    record: Record

    async def invoke(self, function: Function, invocation: Invocation) -> Outcome:
        self.record.past_due[function.name] += json.loads(invocation.trigger.value)["IsPastDue"]
        outcome = await self.invoker.invoke(function, invocation)
        self.record.errors += [outcome.error] if outcome.error else []
        self.record.ended[function.name] += 1
        return outcome


class SlowNotifier(MemoryNotifier):
    """Takes until both functions that notify about runs had the time to do so."""

    record = Record()

    async def tell(self, news: News) -> None:
        await super().tell(news)
        if news.kind is NewsKind.TRENDS_FAILED:
            with suppress(AssertionError):
                await until(self._other_has_ended, OTHER_SECONDS_MAX)

    def _other_has_ended(self) -> bool:
        return bool(self.record.ended["nightly_trends"] or self.record.ended["trend_runs"])

    @property
    def kinds(self) -> Counter[str]:
        return Counter(news.kind for news in self.news)


@dataclass
class World:
    """An app whose host stops and starts. The state is in storage, Spark and the webhook are
    in memory.
    """

    storage: str
    hub: AmqpStandIn
    stream: Stream
    store: EventStore
    state: TableStateStore
    runs: TableRunStore
    inputs: MemoryInputs
    notifier: SlowNotifier = field(default_factory=SlowNotifier)
    submitter: MemorySubmitter = field(default_factory=MemorySubmitter)

    @asynccontextmanager
    async def host(self) -> AsyncIterator[FunctionsHost]:
        """A host, whose timers have not begun."""
        self.notifier.record = record = Record()
        settings = {
            **SINGLE,
            "AzureWebJobsStorage": self.storage,
            HOST_ID: "missed",
            "EventHubConnection": self.hub.connection_string,
            "BreakerApprovalKey": "k" * 32,
            "MetricCollectorSchedule": ONCE_A_YEAR,
            "ReconcilerSchedule": ONCE_A_YEAR,
            "NotificationQuietMinutes": "0",
            "TrendsSubmitter": "local",
            "TrendsInput": "in/{dataset}",
            "TrendsOutput": "out",
            "TrendsArguments": "--tables T",
            "TrendsAttempts": "1",
            "TrendsParallel": "2",
        }
        held: ListenerFactory = partial(HeldTimer, record=record)
        listeners = {**LISTENERS, TIMER_TRIGGER: held}
        host = FunctionsHost(
            APP_DIR, settings=settings, config=shrunk_host_json(), listeners=listeners
        )
        async with hosted_app(host) as app:
            app.notifications.notifier = self.notifier
            app.nightly.submitter, app.nightly.inputs = self.submitter, self.inputs
            yield host

    async def fire_missed_timers(self) -> None:
        """Begin all timers, which were last due before the host stopped. They fire once."""
        record = self.notifier.record
        for timer in record.timers:
            if timer._function.name in MISSED:
                await store_missed(timer)
        await asyncio.gather(*[timer.begin() for timer in record.timers])
        await until(lambda: set(record.ended) >= MISSED, SECONDS_MAX)
        await asyncio.gather(*[timer.stop() for timer in record.timers])
        assert record.errors == []
        assert record.past_due == dict.fromkeys(MISSED, 1)

    async def produce(self, *bodies: bytes) -> None:
        producer = EventHubProducerClient.from_connection_string(
            self.hub.connection_string, eventhub_name=HUB
        )
        async with producer:
            batch = await producer.create_batch(partition_id="0")
            for body in bodies:
                batch.add(EventData(body))
            await producer.send_batch(batch)

    async def reached(self, sequence: int) -> None:
        """Wait until the app has accounted for this event and those before it."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                checkpoint = (await self.store.load(self.stream)).checkpoint
                if checkpoint is not None and checkpoint.sequence == sequence:
                    return
                await asyncio.sleep(POLL_SECONDS)

    async def samples(self, count: int) -> list[float]:
        """The samples of the resource, once there are so many."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                histories = (await self.state.load(RESOURCE.name)).state.histories
                found = [s.value for s in histories["pushed"].samples] if histories else []
                if len(found) >= count:
                    return found
                await asyncio.sleep(POLL_SECONDS)

    def jobs(self) -> list[str]:
        """The dates of the jobs that were submitted."""
        return [
            each.arguments[each.arguments.index("--date") + 1]
            for each in self.submitter.jobs.values()
        ]

    async def kept_lines(self) -> set[str]:
        lines = await self.state.log(RESOURCE.name, 1000)
        return {line.entry_id for line in lines if line.kind is EntryKind.POISON}


async def store_missed(timer: HeldTimer) -> None:
    """Store the schedule of a timer as a host did that stopped two days ago."""
    stopped = utc_now() - DOWN
    due = timer._schedule.next_after(stopped)
    assert due < utc_now()
    await timer._monitor.read()  # creates the container
    await timer._monitor.write(ScheduleStatus(NEVER, due, stopped))


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("scaling_rules.resources", lambda _settings: [RESOURCE])
    monkeypatch.setattr(tail, "IDLE", timedelta(0))  # it competes with the trigger for the events
    async with AsyncExitStack() as stack:
        azurite = await asyncio.to_thread(stack.enter_context, Azurite())
        storage = StorageConnection("Storage", azurite.connection_string)
        hub = await stack.enter_async_context(AmqpStandIn())
        groups = ("$Default", "readback")
        hub.broker.declare_hub(HUB, HubProperties(partition_count=1, consumer_groups=groups))
        connection = event_hub_connection({"Hub": hub.connection_string}, "Hub", HUB)
        assert isinstance(connection, EventHubConnection)
        made = World(
            azurite.connection_string,
            hub,
            Stream(connection.namespace, HUB, "$Default", "0"),
            EventStore(TableRows(storage)),
            TableStateStore(storage),
            TableRunStore(storage),
            MemoryInputs({SET: {yesterday(): utc_now() - timedelta(hours=1)}}),
        )
        for each in (made.store, made.state, made.runs):
            stack.push_async_callback(each.close)
        yield made


def yesterday() -> date:
    return (utc_now() - timedelta(days=1)).date()


def event(value: float, seconds_ago: float) -> bytes:
    at = utc_now() - timedelta(seconds=seconds_ago)
    return encode_metric(Metric(RESOURCE.name, "pushed", MetricValue(at, value))).encode()


async def run_that_failed_meanwhile(world: World) -> None:
    """A run of an earlier day, which the app has submitted, and which has failed since."""
    now = utc_now()
    demand = Demand(yesterday() - timedelta(days=1), now - DOWN, "nightly run")
    run = runs.started(SET, demand, None, 1, "earlier", now - DOWN, RunPolicy())
    await world.runs.ask(SET, demand)
    await world.runs.insert(runs.accepted(run, "earlier", "", now - DOWN))
    world.submitter.statuses["earlier"] = JobStatus(JobPhase.FAILED, error="no memory")


async def lines_of_the_log(world: World) -> None:
    """An old line, and one about a poison message of which nobody has been notified."""
    for name, ago in (("old", timedelta(days=300)), ("new", timedelta(minutes=1))):
        at = utc_now() - ago
        await world.state.record(
            LogEntry(RESOURCE.name, at, EntryKind.POISON, name, "could not be processed")
        )


async def test_missed_timers_fire_together_and_nothing_is_counted_or_notified_twice(
    world: World,
) -> None:
    async with world.host() as host:
        timers = {f.name for f in host.functions if f.trigger.kind == TIMER_TRIGGER}
        assert timers == MISSED | NOT_MISSED
        await world.produce(event(1, 9))
        await world.reached(0)
    await world.produce(event(2, 8), b"nonsense", event(3, 7))
    await run_that_failed_meanwhile(world)
    await lines_of_the_log(world)

    async with world.host() as host:
        await world.fire_missed_timers()
        await world.reached(3)
        assert (await host.invoke("notifier")).succeeded  # the dead letter may be newer
        assert await world.samples(3) == [1, 2, 3]
    assert world.jobs() == [str(yesterday())]
    notified = world.notifier.kinds
    assert notified == {NewsKind.POISON: 1, NewsKind.DEAD_LETTERS: 1, NewsKind.TRENDS_FAILED: 1}
    assert await world.kept_lines() == {"new"}

    async with world.host() as host:  # after a crash that came before the firing was stored
        await world.fire_missed_timers()
        assert await world.samples(3) == [1, 2, 3]
    assert world.jobs() == [str(yesterday())]
    assert world.notifier.kinds == notified
    assert len(await world.store.dead_letters(world.stream, None, 10)) == 1
    assert await world.kept_lines() == {"new"}
