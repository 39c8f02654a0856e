"""Builds what stands between the event hub and the queue ``metrics``, each when first used."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from secrets import token_hex
from typing import TYPE_CHECKING

from shared.autoscaling.declaring import AzureMonitorMetric, HubMetric
from shared.autoscaling.policy import Resource
from shared.ingestion.breaker.breaker import BreakerTimes
from shared.ingestion.breaker.failure_window import TripRule
from shared.ingestion.breaker.guard import BreakerGuard
from shared.ingestion.concurrency import heartbeat_every, task_runner
from shared.ingestion.dead_letters.redrive import Redriver
from shared.ingestion.decoding.azure_monitor import key
from shared.ingestion.decoding.decoding import MetricHandler
from shared.ingestion.decoding.readings import MetricSubscriptions, SubscribedMetric
from shared.ingestion.events import outbox
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.ingest import BEAT_SECONDS, PartitionPipeline
from shared.ingestion.events.process_batch import Consumer
from shared.ingestion.events.retention import EffectRetention
from shared.ingestion.events.tail import TailWatch
from shared.ingestion.model import Stream
from shared.ingestion.operating.breaker import BreakerController
from shared.settings.connections import EventHubConnection
from shared.settings.ingestion import BreakerSettings, IngestionSettings
from shared.values.redaction import redacting_call
from shared.web.dead_letters_http import DeadLetterService
from shared.wiring import autoscaling as wiring
from shared.wiring import checks as wiring_checks
from shared.wiring import ingestion_state as state

if TYPE_CHECKING:
    from shared.adapters.arm.consumption_switch import AppSettingSwitch
    from shared.adapters.arm.no_switch import NoSwitch
    from shared.adapters.event_hubs.hub import EventHubReader
    from shared.adapters.queues.outbox_sender import StorageQueueSender
    from shared.adapters.service_bus.dead_letter_queue import ServiceBusDeadLetters
    from shared.ingestion.breaker.ports import Announcer
    from shared.ingestion.concurrency import Retrying
    from shared.ingestion.dead_letters.ports import StoredDeadLetter
    from shared.ingestion.events.ports import Handler, IngestionStore

QUEUE = "metrics"
LANES_MAX = 16
BATCH_SECONDS_MAX = 240
"""A minute less than a function may run: the last event has to end, and all to be committed."""
"""Partition keys of a batch that are worked on at a time."""
TAILS_AT_ONCE = 4


def settings() -> IngestionSettings:
    return wiring.settings().ingestion


def connection() -> EventHubConnection:
    found = settings().hub
    assert found is not None, "the functions are registered only where the hub is set"
    return found


def stream(partition_id: str) -> Stream:
    hub = connection()
    return Stream(hub.namespace, hub.hub, settings().consumer_group, partition_id)


@cache
def pipeline(partition_id: str) -> PartitionPipeline:
    """All that a batch of this partition passes through. It remembers what it wrote last."""
    of = stream(partition_id)
    whole = pipeline_of(of, Writer(instance()), handler(of))
    return replace(whole, seconds_max=BATCH_SECONDS_MAX)


def handler(of: Stream) -> Handler:
    """The user's own, or that of the app, which takes in metrics."""
    declared = state.handling()
    if declared:
        return declared.handler_of(of)
    return MetricHandler(of, interests(), settings().event_bytes_max)


def interests() -> MetricSubscriptions:
    """What the rules ask of the hub."""
    return interests_of(wiring.resources().values())


def pipeline_of(of: Stream, writer: Writer, handle: Handler) -> PartitionPipeline:
    consumer = Consumer(
        stream=of,
        writer=writer,
        store=_measured(state.store()),
        hub=hub(),
        handle=redacting_call(handle),  # a user may have written it
        retry=retry(),
        run_tasks=task_runner(LANES_MAX),
        new_txid=partial(token_hex, 16),
        outages=wiring_checks.outages(wiring.settings()),
    )
    return PartitionPipeline(
        consumer, guard(), sender(), time.monotonic, heartbeat_every(BEAT_SECONDS)
    )


def _measured(found: IngestionStore) -> IngestionStore:
    if not wiring.measuring():
        return found
    from shared.adapters.azure.telemetry import MeasuredIngestion  # noqa: PLC0415  heavy

    return MeasuredIngestion(found)


def interests_of(resources: Iterable[Resource]) -> MetricSubscriptions:
    """What scaling_rules.py asks events for."""
    pushed: set[tuple[str, str]] = set()
    monitored: dict[tuple[str, str], tuple[SubscribedMetric, ...]] = {}
    for resource in resources:
        for name, source in resource.metrics.items():
            if isinstance(source, HubMetric):
                pushed.add((resource.name, name))
            elif isinstance(source, AzureMonitorMetric):
                at = key(source.resource_id, source.metric)
                wanted = SubscribedMetric(
                    resource.name, name, source.aggregation, source.time_grain
                )
                monitored[at] = (*monitored.get(at, ()), wanted)
    return MetricSubscriptions(frozenset(pushed), monitored)


@cache
def instance() -> str:
    """A name of this process; what it counts is its own."""
    return uuid.uuid4().hex[:12]


@cache
def retry() -> Retrying:
    from shared.adapters.azure.retry import JitteredRetrying  # noqa: PLC0415  heavy to import

    return JitteredRetrying()


@cache
def hub() -> EventHubReader:
    from shared.adapters.event_hubs.hub import EventHubReader  # noqa: PLC0415  heavy to import

    return EventHubReader(connection(), settings().read_back_consumer_group)


async def send_event(body: bytes) -> None:
    """To the hub, for people who try things. Raises HubUnavailable."""
    from shared.adapters.event_hubs.hub import send_event as send  # noqa: PLC0415  heavy

    await send(connection(), body)


@cache
def sender() -> StorageQueueSender:
    from shared.adapters.queues.outbox_sender import StorageQueueSender  # noqa: PLC0415  heavy

    return StorageQueueSender(wiring.settings().storage(state.STORAGE), QUEUE)


def redriver() -> Redriver:
    """Puts dead letters into the pipeline again."""

    def handler_of(of: Stream) -> Handler:
        return redacting_call(handler(of))  # what it raises is shown to whoever asked

    outages = wiring_checks.outages(wiring.settings())
    return Redriver(state.store(), hub(), handler_of, retry(), outages)


def dead_letter_service() -> DeadLetterService:
    """Who serves people at the dead letters."""
    return DeadLetterService(state.store(), hub(), redriver(), send_redriven)


async def send_redriven(letters: Sequence[StoredDeadLetter]) -> None:
    """Send what dead letters that were put in again led to: whoever did that is the one to."""
    for of in {stored.stream for stored in letters}:
        numbers = [stored.letter.sequence for stored in letters if stored.stream == of]
        leases = outbox.OutboxLeases(dict.fromkeys(numbers, 0))
        await outbox.drain(of, state.store(), sender(), leases)


def dead_letter_queue(name: str, queue: str) -> ServiceBusDeadLetters:
    """Another place for dead letters; close it in the end."""
    from shared.adapters.service_bus.dead_letter_queue import ServiceBusDeadLetters  # noqa: PLC0415  heavy

    return ServiceBusDeadLetters(wiring.settings().service_bus(name), queue, wiring.now)


@cache
def tail_watch() -> TailWatch:
    return TailWatch(task_runner(TAILS_AT_ONCE))


@cache
def effect_retention() -> EffectRetention:
    """Who removes what handlers kept for long enough."""
    return EffectRetention(state.store(), settings().effects_kept, time.monotonic)


@cache
def guard() -> BreakerGuard:
    found = settings().breaker
    return BreakerGuard(
        instance(), state.breaker_store(), announcer(), rule(found), times(found), time.monotonic
    )


@cache
def breaker_controller() -> BreakerController:
    """Who serves people at the breaker."""
    found = settings().breaker
    return BreakerController(
        name=state.BREAKER,
        breakers=state.breaker_store(),
        store=state.store(),
        hub=hub(),
        switch=switch(),
        stream_of=stream,
        keys=[each.encode() for each in found.approval_keys],
        valid_for=found.approval_valid_for,
        app_url=wiring.settings().notifications.app_url or _own_address(),
        times=times(found),
    )


@cache
def announcer() -> Announcer:
    from shared.adapters.webhook.announcer import NotifierAnnouncer  # noqa: PLC0415  heavy

    announcer = NotifierAnnouncer(wiring.notifier(), state.BREAKER, breaker_controller().link_of)
    if not settings().breaker.disables_app:
        return announcer
    from shared.adapters.arm.consumption_switch import SwitchingAnnouncer  # noqa: PLC0415  heavy

    return SwitchingAnnouncer(announcer, switch())


@cache
def switch() -> AppSettingSwitch | NoSwitch:
    from shared.adapters.arm.no_switch import NoSwitch  # noqa: PLC0415

    app = settings().breaker.disables_app
    if not app:
        return NoSwitch()
    from shared.adapters.arm.consumption_switch import AppSettingSwitch  # noqa: PLC0415  heavy

    return AppSettingSwitch(app, state.BREAKER, wiring.settings().arm_endpoint)


def rule(found: BreakerSettings) -> TripRule:
    return TripRule(
        window_seconds=found.window_seconds,
        failures_max=found.failures_max or None,
        failure_ratio_max=found.failure_ratio_max,
        slow_ratio_max=found.slow_ratio_max,
        slow_seconds=found.slow_seconds,
        throughput_min=found.throughput_min,
        counts_bad_events=found.counts_bad_events,
    )


def times(found: BreakerSettings) -> BreakerTimes:
    return BreakerTimes(
        break_seconds=found.break_seconds,
        break_seconds_max=found.break_seconds_max,
        probe_events=found.probe_events,
    )


def _own_address() -> str:
    """In Azure the app knows its own host name."""
    host = wiring.settings().environ.get("WEBSITE_HOSTNAME", "")
    return f"https://{host}" if host else ""


async def close() -> None:
    """Close what was opened; registered with ``wiring``, which closes the rest."""
    for adapter in (sender, switch):
        if adapter.cache_info().currsize:
            await adapter().close()
    for cached in (
        pipeline,
        instance,
        retry,
        hub,
        sender,
        tail_watch,
        effect_retention,
        guard,
        breaker_controller,
        announcer,
        switch,
    ):
        cached.cache_clear()


wiring.before_closing.append(close)
