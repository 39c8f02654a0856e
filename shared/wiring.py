"""Builds the adapters from the settings, each when it is first used; nothing at import.

Wrong settings and wrong rules stop the app at start with one message that lists every problem.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

from shared import settings as settings_module
from shared.autoscaling.actions import ActionTiming
from shared.autoscaling.model import Resource, StorageQueue
from shared.autoscaling.validation import connections, needs_hub, problems
from shared.messaging.periods import Period
from shared.settings import Settings, SettingsError
from shared.settings_ingestion import EVENT_HUB

if TYPE_CHECKING:
    from shared.adapters.ingestion_table_breaker import TableBreakerStore
    from shared.autoscaling.ports import CapacityControl, MetricReader, Permissions, StateStore
    from shared.messaging.flows.check_queues import CheckOnce
    from shared.messaging.flows.send import BatchSender
    from shared.messaging.ports import ClaimStore, Recompute
    from shared.notifications.ports import Herald, Memories

T = TypeVar("T")

PROCESSING_CONNECTION = "ServiceBusConnection"
BREAKER = "metric_ingest"
"""The name of the circuit breaker around the event hub: that of the function behind it."""


before_closing: list[Callable[[], Awaitable[None]]] = []
"""What other wirings have opened with the help of this one."""


def settings() -> Settings:
    """The settings, after they and the rules have been checked. Raises SettingsError."""
    return _checked()[0]


def resources() -> Mapping[str, Resource]:
    """What scaling_rules.py declares, by name. Raises SettingsError."""
    return _checked()[1]


@cache
def store() -> StateStore:
    from shared.adapters.table_state import TableStateStore  # noqa: PLC0415  heavy to import

    found = TableStateStore(settings().storage("AzureWebJobsStorage"))
    if not measuring():
        return found
    from shared.adapters.telemetry import MeasuredStore  # noqa: PLC0415  heavy to import

    return MeasuredStore(found)


@cache
def measuring() -> bool:
    """Whether anything is to be measured; the exporter is started by who asks first."""
    found = settings().notifications
    if not found.telemetry:
        return False
    from shared.adapters.telemetry import export  # noqa: PLC0415  heavy to import

    export(found.telemetry, found.telemetry_authentication)
    return True


@cache
def control() -> CapacityControl:
    from shared.adapters.app_service import AppServiceControl  # noqa: PLC0415  heavy to import

    return AppServiceControl(settings())


@cache
def permissions() -> Permissions:
    from shared.adapters.arm_permissions import ArmPermissions  # noqa: PLC0415  heavy to import

    return ArmPermissions(settings().arm_endpoint)


@cache
def reader() -> MetricReader:
    from shared.adapters.readers import AzureReader  # noqa: PLC0415  heavy to import

    return AzureReader(settings().storage, settings().service_bus, control(), breaker_store)


@cache
def breaker_store() -> TableBreakerStore:
    """Of the circuit breaker around the event hub."""
    from shared.adapters.ingestion_table_breaker import TableBreakerStore  # noqa: PLC0415  heavy

    return TableBreakerStore(settings().storage("AzureWebJobsStorage"), BREAKER)


@cache
def herald() -> Herald:
    """The log, and the webhook where one is set, of the kinds of news that are asked for."""
    from shared.adapters.ingestion_retry import JitteredRetrying  # noqa: PLC0415
    from shared.adapters.webhook import LogHerald, Webhook  # noqa: PLC0415  heavy to import

    found = settings().notifications
    if not found.webhook_url:
        return LogHerald()
    webhook = Webhook(found.webhook_url, found.webhook_style, JitteredRetrying())
    return LogHerald(webhook, found.kinds)


@cache
def memories() -> Memories:
    from shared.adapters.notifications_table import TableMemories  # noqa: PLC0415  heavy

    return TableMemories(settings().storage("AzureWebJobsStorage"))


def periods() -> Sequence[Period]:
    """The kinds of period that data sets are processed by. Raises SettingsError."""
    return _periods(settings())


@cache
def processing_sender() -> BatchSender:
    """To the queue that keeps one message for each data set and period."""
    from shared.adapters.messaging_sender import batch_sender  # noqa: PLC0415  heavy to import

    loaded = settings()
    connection = loaded.service_bus(PROCESSING_CONNECTION)
    return batch_sender(connection, loaded.processing_queue, now)


@cache
def queue_check() -> CheckOnce:
    from shared.adapters.messaging_queues import ServiceBusQueueReader  # noqa: PLC0415  heavy
    from shared.messaging.flows.check_queues import CheckOnce  # noqa: PLC0415

    loaded = settings()
    reader = ServiceBusQueueReader(loaded.service_bus(PROCESSING_CONNECTION))
    return CheckOnce(loaded.processing_queue, loaded.working_queue, periods(), reader)


@cache
def claims() -> ClaimStore:
    from shared.adapters.claims_table import TableClaims  # noqa: PLC0415  heavy to import

    return TableClaims(settings().storage("AzureWebJobsStorage"))


@cache
def recompute() -> Recompute:
    from shared.adapters.recompute_log import LoggedRecompute  # noqa: PLC0415

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
    if processing_sender.cache_info().currsize:
        await processing_sender().link.close()
    processing_sender.cache_clear()
    herald.cache_clear()
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
        breaker_store,
        memories,
    ):
        if adapter.cache_info().currsize:
            await adapter().close()
        adapter.cache_clear()
    if credentials := sys.modules.get("shared.adapters.credentials"):  # opened by an adapter only
        await credentials.close()
    _checked.cache_clear()


@cache
def _checked() -> tuple[Settings, Mapping[str, Resource]]:
    loaded, found = settings_module.parse()
    before = len(found)
    declared = _collecting(found, partial(_declared, loaded))
    if len(found) == before:  # the rules could be asked: whatever they answered is looked at
        found += _collecting(found, partial(problems, declared)) or []
    if _collecting(found, partial(_periods, loaded)):
        _collecting(found, partial(loaded.service_bus, PROCESSING_CONNECTION))
    needed = {(StorageQueue, "AzureWebJobsStorage"), *connections(declared)}
    for kind, name in sorted(needed, key=str):
        check = loaded.storage if kind is StorageQueue else loaded.service_bus
        _collecting(found, partial(check, name))
    if needs_hub(declared) and loaded.ingestion.hub is None:
        found.append(
            f"{EVENT_HUB} = '': must be set, for scaling_rules.py declares metrics of an event hub"
        )
    if found or declared is None:
        raise SettingsError(dict.fromkeys(found))
    return loaded, {resource.name: resource for resource in declared}


def _collecting(found: list[str], step: Callable[[], T]) -> T | None:
    """The step's answer; what is wrong goes to ``found`` instead, so that the next step is seen."""
    try:
        return step()
    except SettingsError as error:
        found += error.problems
    except Exception as error:
        found.append(f"scaling_rules.py{_line(error)}: {type(error).__name__}: {error}")
    return None


def _line(error: Exception) -> str:
    """Where in the user's file it went wrong."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename.endswith("scaling_rules.py")]
    return f", line {lines[-1]}" if lines else ""


def _periods(loaded: Settings) -> Sequence[Period]:
    delay = timedelta(minutes=loaded.processing_delay_minutes)
    lateness = timedelta(hours=loaded.processing_lateness_hours)
    hours = loaded.processing_period_hours
    try:
        return tuple(Period(timedelta(hours=length), delay, lateness) for length in hours)
    except ValueError as error:
        raise SettingsError([f"ProcessingPeriodHours: {error}"]) from error


def _declared(loaded: Settings) -> Sequence[Resource]:
    import scaling_rules  # noqa: PLC0415  the user's file: its errors belong into the one message

    return scaling_rules.resources(loaded)
