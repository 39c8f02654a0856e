"""Builds the parts that turn events of the event hub into messages of the queue ``metrics``."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shared.autoscaling.policy import Resource
from shared.ingestion.breaker.approval import deployment_of
from shared.ingestion.breaker.failure_window import TripRule
from shared.ingestion.breaker.state import BreakerTimes
from shared.ingestion.dead_letters.redrive import Redriver
from shared.ingestion.decoding.azure_monitor import key
from shared.ingestion.decoding.metric_handler import MetricHandler
from shared.ingestion.decoding.readings import MetricSubscriptions, SubscribedMetric
from shared.ingestion.events import ingest, outbox
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.breaker_client import BreakerClient
from shared.ingestion.events.handling import Handling, limited
from shared.ingestion.events.ingest import BEAT_SECONDS, PartitionPipeline
from shared.ingestion.events.process_batch import Consumer
from shared.ingestion.events.retention import EffectRetention
from shared.ingestion.events.tail import TailWatch
from shared.ingestion.events.trigger_batch import parse_batch
from shared.ingestion.model import OutboxMessage, Stream, in_one_case
from shared.ingestion.operating.breaker_controller import BreakerController
from shared.ingestion.ports import (
    Handler,
    HubReader,
    PartitionReceiver,
    SendMessages,
)
from shared.ingestion.store.breakers import BreakerStore
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.owners import OwnershipStore
from shared.ingestion.store.rows import RowEngine
from shared.settings.connections import EventHubConnection, account_of
from shared.settings.ingestion import IngestionSettings
from shared.values.calls import check
from shared.values.concurrency import heartbeat_every, task_runner
from shared.values.messages import MessageSender
from shared.values.redaction import redacting_call
from shared.wiring.parts import Parts

if TYPE_CHECKING:
    from shared.ingestion.store.sql_engine import Sql

QUEUE = "metrics"
BREAKER = "metric_ingest"
"""The name of the event hub's circuit breaker, after the function that it protects."""
CONCURRENT_KEYS_MAX = 16
"""The number of partition keys of a batch whose events are processed concurrently."""
BATCH_SECONDS_MAX = 240
"""Half a minute below the time after which a function stops itself, to leave time to commit."""
TRIGGER_CALL_SECONDS_MAX = 200
CONCURRENT_TAILS_MAX = 4


class IngestionParts(Parts):
    async def process(self, bodies: Sequence[bytes], metadata: Any) -> None:
        batch = parse_batch(bodies, metadata)
        await ingest.ingest_batch(batch.events, self.pipeline(batch.partition_id))

    async def process_tails(self) -> None:
        """Process events that were not delivered, send what is left, and delete old effects."""
        await self.effect_retention.clean_up()
        await self.tail_watch.check_partitions(await self.hub.partition_ids(), self.pipeline)

    # --- the events of one partition ----------------------------------------------------------

    def stream(self, partition_id: str) -> Stream:
        return Stream(*self.group, partition_id)

    @cached_property
    def pipelines(self) -> dict[str, PartitionPipeline]:
        """The pipelines, by partition ID. Each pipeline remembers its last write."""
        return {}

    def pipeline(self, partition_id: str) -> PartitionPipeline:
        """The pipeline of a partition under the Functions trigger."""
        known = self.pipelines.get(partition_id)
        if known is None:
            call_seconds = min(self.settings.handler_seconds_max, TRIGGER_CALL_SECONDS_MAX)
            known = replace(
                self.pipeline_of(self.stream(partition_id), Writer(self.instance), call_seconds),
                seconds_max=BATCH_SECONDS_MAX - call_seconds,
            )
            self.pipelines[partition_id] = known
        return known

    def pipeline_of(
        self, stream: Stream, writer: Writer, call_seconds: float | None = None
    ) -> PartitionPipeline:
        """A pipeline without a time limit for a batch."""
        consumer = Consumer(
            stream=stream,
            writer=writer,
            store=self.store,
            hub=self.hub,
            handle=self._guarded(stream, call_seconds),
            retry=self._app.retry,
            run_tasks=task_runner(CONCURRENT_KEYS_MAX),
            new_txid=partial(token_hex, 16),
        )
        beat = heartbeat_every(BEAT_SECONDS)
        return PartitionPipeline(consumer, self.breaker_client, self.send, time.monotonic, beat)

    @cached_property
    def handler_of(self) -> Callable[[Stream], Handler]:
        """Creates the handler of a partition: the user's own, or the app's, which reads metrics."""
        if self.handling:
            return self.handling.handler_of
        bytes_max = self.settings.event_bytes_max
        return lambda stream: MetricHandler(stream, self.metric_subscriptions, bytes_max)

    def _guarded(self, stream: Stream, call_seconds: float | None = None) -> Handler:
        """The handler of a partition with its time limit, and without secrets in its errors."""
        seconds = call_seconds or self.settings.handler_seconds_max
        return limited(redacting_call(self.handler_of(stream)), seconds)

    @property
    def metric_subscriptions(self) -> MetricSubscriptions:
        """The metrics that scaling_rules.py expects from the hub."""
        return subscriptions_of(self._app.resources.values())

    @cached_property
    def instance(self) -> str:
        """The name of this process, under which failure counts are stored."""
        return uuid.uuid4().hex[:12]

    @cached_property
    def hub(self) -> HubReader:
        from shared.ingestion.hub.client import EventHubReader  # noqa: PLC0415  heavy to import

        return EventHubReader(self.connection, self.settings.read_back_consumer_group)

    async def check_hub(self) -> list[dict[str, Any]]:
        """Whether the hub and both consumer groups can be read, for ``validate --connect``."""
        seconds = self._app.settings.source_timeout_seconds
        name = f"event hub {self.connection.hub}"
        ids = list[str]()

        async def partitions() -> str:
            ids.extend(await self.hub.partition_ids())
            return f"has {len(ids)} partition(s)"

        async def group(consumer_group: str) -> str:
            await self.hub.check_group(consumer_group, ids[0])
            return "exists and may be read"

        results = [await check(seconds, name, "partitions", partitions())]
        groups = (self.settings.consumer_group, self.settings.read_back_consumer_group)
        for each in groups if ids else ():
            results.append(await check(seconds, name, f"consumer group {each}", group(each)))
        return results

    @cached_property
    def receiver(self) -> PartitionReceiver:
        from shared.ingestion.hub.receiver import EventHubReceiver  # noqa: PLC0415  heavy

        return EventHubReceiver(self.connection, self.settings.consumer_group)

    @cached_property
    def send(self) -> SendMessages:
        from shared.azure.queues import StorageQueueSender  # noqa: PLC0415  heavy

        queue = self._app.open(StorageQueueSender, self._app.storage, QUEUE)
        return partial(
            outbox.send_to_queue, lambda texts: queue.send_texts(self._app.carrying(texts))
        )

    @cached_property
    def tail_watch(self) -> TailWatch:
        return TailWatch(task_runner(CONCURRENT_TAILS_MAX))

    @cached_property
    def effect_retention(self) -> EffectRetention:
        return EffectRetention(self.store, self.settings.effects_kept, time.monotonic)

    async def send_event(self, body: bytes) -> None:
        """Send an event to the hub, for the command ``send-reading``. Raises HubUnavailable."""
        from shared.ingestion.hub.client import send_event  # noqa: PLC0415  heavy to import

        await send_event(self.connection, body)

    # --- stores -------------------------------------------------------------------------------

    @property
    def settings(self) -> IngestionSettings:
        return self._app.settings.ingestion

    @property
    def connection(self) -> EventHubConnection:
        hub = self.settings.hub
        assert hub is not None, "the functions are registered only if the hub is set"
        return hub

    @property
    def group(self) -> tuple[str, str, str]:
        """The names of the namespace, the hub and the consumer group, by which rows are stored: in
        one case, because Azure compares them without."""
        hub, group = self.connection, self.settings.consumer_group
        return in_one_case(hub.namespace), in_one_case(hub.hub), in_one_case(group)

    @cached_property
    def handling(self) -> Handling | None:
        """The user's own handler and tables, if ``IngestionHandler`` names them."""
        return self._app.checked.handling

    @cached_property
    def rows(self) -> RowEngine:
        if self.settings.database_url:
            from shared.ingestion.store.sql import SqlRows  # noqa: PLC0415  heavy to import

            return SqlRows(self.database)
        from shared.ingestion.store.tables import TableRows  # noqa: PLC0415  heavy to import

        return self._app.open(TableRows, self._app.storage)

    @cached_property
    def store(self) -> EventStore:
        """Checkpoints and outcomes of events. Its commits also write the user's own tables."""
        write_in_transaction = self.handling.write_in_transaction if self.handling else None
        return EventStore(self.rows, write_in_transaction, self._app.meter)

    @cached_property
    def store_alone(self) -> EventStore:
        """The same without the user's tables, which replays must not change."""
        return EventStore(self.rows)

    @cached_property
    def breaker_store(self) -> BreakerStore:
        return BreakerStore(self.rows, BREAKER, self._app.meter)

    @cached_property
    def owners(self) -> OwnershipStore:
        """Which processor owns which partition, outside the Functions trigger."""
        return OwnershipStore(self.rows, *self.group)

    @cached_property
    def database(self) -> Sql:
        """The connection pool that all stores share."""
        from shared.ingestion.store.sql_engine import Sql  # noqa: PLC0415  heavy to import
        from shared.ingestion.store.sql_schema import metadata  # noqa: PLC0415  heavy to import

        tables = self.handling.tables if self.handling else None
        own = [] if tables is None else [tables]
        return self._app.open(Sql, self.settings.database_url, metadata, *own)

    # --- dead letters -------------------------------------------------------------------------

    @property
    def redriver(self) -> Redriver:
        retry = self._app.retry

        async def send(messages: Sequence[OutboxMessage]) -> None:
            await self.send(messages)  # the client is opened only if a message is sent

        return Redriver(self.store, self.hub, self._guarded, retry, send)

    def dead_letter_queue(self, connection: str, queue: str) -> MessageSender:
        """A sender to a Service Bus queue."""
        from shared.wiring.batch_sender import batch_sender  # noqa: PLC0415  heavy to import

        service_bus = self._app.settings.service_bus(connection)
        return self._app.open(batch_sender, service_bus, queue, self._app.now)

    # --- the circuit breaker ------------------------------------------------------------------

    @cached_property
    def breaker_client(self) -> BreakerClient:
        breaker = self.settings.breaker
        return BreakerClient(
            self.instance,
            self.breaker_store,
            partial(self.breaker_controller.announce, self._app.notifications.notifier),
            breaker.part(TripRule),
            breaker.part(BreakerTimes),
            time.monotonic,
        )

    @cached_property
    def breaker_controller(self) -> BreakerController:
        """The service behind the HTTP endpoints of the circuit breaker."""
        breaker = self.settings.breaker
        return BreakerController(
            name=BREAKER,
            deployment=self.deployment,
            breakers=self.breaker_store,
            store=self.store,
            hub=self.hub,
            stream_of=self.stream,
            keys=[each.encode() for each in breaker.approval_keys],
            valid_for=breaker.approval_valid_for,
            app_url=self._app.notifications.app_url,
            times=breaker.part(BreakerTimes),
        )

    @property
    def deployment(self) -> str:
        """Identifies what the breaker protects, and the store that holds its state."""
        database = urlsplit(self.settings.database_url)
        store = f"{database.hostname}{database.path}"
        if not self.settings.database_url:
            storage = self._app.storage
            host = urlsplit(storage.table_url).hostname or ""
            store = account_of(storage) or host.partition(".")[0]
        return deployment_of(*self.group, store)


def subscriptions_of(resources: Iterable[Resource]) -> MetricSubscriptions:
    """The metrics that the resources expect from the hub."""
    pushed: set[tuple[str, str]] = set()
    monitored: dict[tuple[str, str], tuple[SubscribedMetric, ...]] = {}
    for resource in resources:
        for name, source in resource.metrics.items():
            if not (source.pushed and source.needs_hub):
                continue
            if (series := source.series) is None:
                pushed.add((resource.name, name))
            else:
                at = key(series.resource_id, series.metric)
                subscribed = SubscribedMetric(
                    resource.name, name, series.aggregation, series.time_grain
                )
                monitored[at] = (*monitored.get(at, ()), subscribed)
    return MetricSubscriptions(frozenset(pushed), monitored)
