"""Builds the parts that read metrics, store decisions, and scale the plans."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cached_property, partial

from shared.autoscaling.acting.actions import ActionTiming
from shared.autoscaling.azure_monitor.source import PlatformMetrics
from shared.autoscaling.deciding.decide import LogEntry
from shared.autoscaling.flows.message_counts import MessageCounts
from shared.autoscaling.flows.poison import SAMPLES_QUEUE
from shared.autoscaling.flows.reading import PlanReadings
from shared.autoscaling.learning.counts import namespace_ids
from shared.autoscaling.operating.metering import measured
from shared.autoscaling.ports import (
    CapacityControl,
    Permissions,
    QueueSender,
    StateStore,
)
from shared.autoscaling.sources import Services
from shared.autoscaling.state import ScalingState
from shared.settings.connections import ArmNamespace, ServiceBusConnection
from shared.values.measurements import MetricValue
from shared.values.urgency import TURN_SHARE
from shared.wiring.parts import Parts

CONFIRMATIONS_MAX = 8
"""The most messages at a time that wait for readings of plans, so that others are not delayed."""
SEND_SECONDS_MAX = 20
"""A function stops sending messages to a queue after this time, and fails."""


class ScalingParts(Parts):
    @cached_property
    def store(self) -> StateStore:
        from shared.autoscaling.store.tables import TableStateStore  # noqa: PLC0415  heavy

        return self._app.open(TableStateStore, self._app.storage, self._wrote)

    def _wrote(self, entries: Sequence[LogEntry], state: ScalingState) -> None:
        self._app.meter(measured(entries, state, self._app.resources))

    @cached_property
    def control(self) -> CapacityControl:
        from shared.autoscaling.plans.app_service import AppServiceControl  # noqa: PLC0415  heavy

        return self._app.open(AppServiceControl, self._app.settings, self._app.arm_budget)

    @cached_property
    def permissions(self) -> Permissions:
        from shared.autoscaling.plans.permissions import ArmPermissions  # noqa: PLC0415  heavy to import

        return self._app.open(ArmPermissions, self._app.settings.arm_endpoint, self._app.arm_budget)

    @cached_property
    def reader(self) -> Services:
        from shared.autoscaling.services.clients import AzureReader  # noqa: PLC0415  heavy to import
        from shared.azure.entity_reads import Turns  # noqa: PLC0415  heavy to import

        settings = self._app.settings
        seconds = settings.source_timeout_seconds * TURN_SHARE
        return self._app.open(
            AzureReader,
            settings.storage,
            self._bus,
            self.control,
            self._breaker,
            lambda: self.platform_metrics,
            self._app.now,
            partial(Turns, settings.service_bus_credits_per_second, seconds),
            self._app.arm_budget,
        )

    def _bus(self, connection: str) -> ServiceBusConnection | ArmNamespace:
        """How the counts of a connection are read."""
        settings = self._app.settings
        bus = settings.service_bus(connection)
        if settings.service_bus_counts_from == "namespace":
            return bus
        ids = namespace_ids({connection: bus.host}, settings.service_bus_namespace_ids)
        return ArmNamespace(settings.arm_endpoint, ids[connection])

    async def _breaker(self) -> MetricValue:
        return await self._app.ingestion.breaker_store.metric()

    @cached_property
    def platform_metrics(self) -> PlatformMetrics:
        from shared.autoscaling.azure_monitor.client import AzurePlatformMetrics  # noqa: PLC0415  heavy

        settings = self._app.settings
        return self._app.open(
            AzurePlatformMetrics,
            settings.arm_endpoint,
            settings.source_timeout_seconds,
            self._app.now,
            self._app.arm_budget,
        )

    @cached_property
    def metrics_queue(self) -> QueueSender:
        return self._queue("metrics")

    @cached_property
    def samples_queue(self) -> QueueSender:
        return self._queue(SAMPLES_QUEUE)

    @cached_property
    def actions_queue(self) -> QueueSender:
        return self._queue("actions")

    def _queue(self, name: str) -> QueueSender:
        from shared.azure.queues import StorageQueueSender  # noqa: PLC0415  heavy

        return self._app.open(StorageQueueSender, self._app.storage, name)

    @cached_property
    def message_counts(self) -> MessageCounts:
        return MessageCounts()

    @cached_property
    def plan_readings(self) -> PlanReadings:
        return PlanReadings()

    @cached_property
    def confirmations(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(CONFIRMATIONS_MAX)

    @cached_property
    def timing(self) -> ActionTiming:
        return self._app.settings.timing.part(ActionTiming)
