"""Builds the adapters from the settings, each when it is first used; nothing at import.

Wrong settings and wrong rules stop the app at start with one message that lists every problem.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

from shared.adapters.azure.late_lines import LogLine, lines
from shared.autoscaling.actions import ActionTiming
from shared.autoscaling.policy import Resource
from shared.datasets.periods import Period
from shared.settings import Settings
from shared.wiring import checks as wiring_checks
from shared.wiring import ingestion_state
from shared.wiring.checks import PROCESSING_CONNECTION, checked

if TYPE_CHECKING:
    from shared.autoscaling.ports import CapacityControl, MetricReader, Permissions, StateStore
    from shared.datasets.flows.check_queues import CheckOnce
    from shared.datasets.ports import ClaimStore, Recompute
    from shared.messaging.send import BatchSender
    from shared.notifications.ports import NotificationStore, Notifier

log = logging.getLogger(__name__)

before_closing: list[Callable[[], Awaitable[None]]] = []
"""What other wirings have opened with the help of this one."""


def settings() -> Settings:
    """The settings, after they and the rules have been checked. Raises SettingsError."""
    return checked()[0]


def resources() -> Mapping[str, Resource]:
    """What scaling_rules.py declares, by name. Raises SettingsError."""
    return checked()[1]


def warnings() -> tuple[str, ...]:
    """What is probably not meant, and stops nothing."""
    return wiring_checks.warnings(settings())


def warn() -> None:
    """The same into the log."""
    for warning in warnings():
        lines.write(LogLine(log, logging.WARNING, "setting_unknown", warning))


@cache
def store() -> StateStore:
    from shared.adapters.tables.scaling_state import TableStateStore  # noqa: PLC0415  heavy to import

    found = TableStateStore(settings().storage("AzureWebJobsStorage"))
    if not measuring():
        return found
    from shared.adapters.azure.telemetry import MeasuredStore  # noqa: PLC0415  heavy to import

    return MeasuredStore(found)


@cache
def measuring() -> bool:
    """Whether anything is to be measured; the exporter is started by who asks first."""
    found = settings().notifications
    if not found.telemetry:
        return False
    from shared.adapters.azure.telemetry import export  # noqa: PLC0415  heavy to import

    export(found.telemetry, found.telemetry_authentication)
    return True


@cache
def control() -> CapacityControl:
    from shared.adapters.arm.app_service import AppServiceControl  # noqa: PLC0415  heavy to import

    return AppServiceControl(settings())


@cache
def permissions() -> Permissions:
    from shared.adapters.arm.permissions import ArmPermissions  # noqa: PLC0415  heavy to import

    return ArmPermissions(settings().arm_endpoint)


@cache
def reader() -> MetricReader:
    from shared.adapters.reader import AzureReader  # noqa: PLC0415  heavy to import

    breaker = ingestion_state.breaker_store
    return AzureReader(settings().storage, settings().service_bus, control(), breaker)


@cache
def notifier() -> Notifier:
    """The log, and the webhook where one is set, of the kinds of news that are asked for."""
    from shared.adapters.azure.retry import JitteredRetrying  # noqa: PLC0415
    from shared.adapters.webhook.webhook import LogNotifier, Webhook  # noqa: PLC0415  heavy to import

    found = settings().notifications
    if not found.webhook_url:
        return LogNotifier()
    webhook = Webhook(found.webhook_url, found.webhook_style, JitteredRetrying())
    return LogNotifier(webhook, found.kinds)


@cache
def notification_store() -> NotificationStore:
    from shared.adapters.tables.notifications import TableNotificationStore  # noqa: PLC0415  heavy

    return TableNotificationStore(settings().storage("AzureWebJobsStorage"))


def periods() -> Sequence[Period]:
    """The kinds of period that data sets are processed by. Raises SettingsError."""
    return wiring_checks.periods(settings())


@cache
def processing_sender() -> BatchSender:
    """To the queue that keeps one message for each data set and period."""
    from shared.adapters.service_bus.sender import batch_sender  # noqa: PLC0415  heavy to import

    loaded = settings()
    connection = loaded.service_bus(PROCESSING_CONNECTION)
    return batch_sender(connection, loaded.processing_queue, now)


@cache
def queue_check() -> CheckOnce:
    from shared.adapters.service_bus.entities import ServiceBusQueueReader  # noqa: PLC0415  heavy
    from shared.datasets.flows.check_queues import CheckOnce  # noqa: PLC0415

    loaded = settings()
    reader = ServiceBusQueueReader(loaded.service_bus(PROCESSING_CONNECTION))
    return CheckOnce(loaded.processing_queue, loaded.working_queue, periods(), reader)


@cache
def claims() -> ClaimStore:
    from shared.adapters.tables.claims import TableClaims  # noqa: PLC0415  heavy to import

    return TableClaims(settings().storage("AzureWebJobsStorage"))


@cache
def recompute() -> Recompute:
    from shared.adapters.spark.recompute_log import LoggedRecompute  # noqa: PLC0415

    return LoggedRecompute()


def now() -> datetime:
    return datetime.now(UTC)


def timing() -> ActionTiming:
    loaded = settings()
    return ActionTiming(
        resend_seconds=loaded.action_resend_seconds,
        retry_seconds=loaded.action_retry_seconds,
        failure_hold_seconds=loaded.failure_hold_seconds,
        deadline_seconds=loaded.action_deadline_seconds,
    )


async def close() -> None:
    """Close what was opened and forget the settings, so that another app can start here."""
    lines.release()
    if processing_sender.cache_info().currsize:
        await processing_sender().link.close()
    processing_sender.cache_clear()
    notifier.cache_clear()
    measuring.cache_clear()
    for end in before_closing:
        await end()
    for adapter in (
        reader,
        control,
        permissions,
        store,
        queue_check,
        claims,
        notification_store,
    ):
        if adapter.cache_info().currsize:
            await adapter().close()
        adapter.cache_clear()
    await ingestion_state.close()
    if credentials := sys.modules.get(
        "shared.adapters.azure.credentials"
    ):  # opened by an adapter only
        await credentials.close()
    checked.cache_clear()
