"""The settings of what comes from an event hub, and of the circuit breaker around it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING

from shared.settings.connections import EventHubConnection, event_hub_connection

if TYPE_CHECKING:
    from shared.settings.reader import Reader

EVENT_HUB = "EventHubConnection"
HANDLER = "IngestionHandler"
HANDLER_NAME = re.compile(r"\w+(\.\w+)*:\w+")
APPROVAL_KEY_CHARACTERS_MIN = 32
DATABASE = re.compile(r"[a-z]+(\+[a-z]+)?://")
FUNCTION_APP = re.compile(
    r"/subscriptions/[^/\s]+/resourceGroups/[^/\s]+/providers/Microsoft\.Web/sites/[^/\s]+", re.I
)


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When the breaker opens, for how long, and who may close it. Durations are in seconds."""

    failures_max: int
    failure_ratio_max: float | None
    slow_ratio_max: float | None
    slow_seconds: float
    throughput_min: int
    counts_bad_events: bool
    window_seconds: float
    break_seconds: float
    break_seconds_max: float
    probe_events: int
    approval_keys: tuple[str, ...] = field(repr=False)
    """The first signs, all are accepted. Empty: nobody is sent a link."""
    approval_valid_for: timedelta
    disables_app: str
    """Resource ID of the Function App whose function an opening disables; empty: of none."""


@dataclass(frozen=True, slots=True)
class BalancingSettings:
    """How processors outside the Functions trigger share the partitions. In seconds."""

    renew_seconds: float
    expire_seconds: float
    cycle_seconds: float


@dataclass(frozen=True, slots=True)
class IngestionSettings:
    """``hub`` is None where no event hub is listened to."""

    hub: EventHubConnection | None
    hub_name: str
    consumer_group: str
    read_back_consumer_group: str
    tail_schedule: str
    event_bytes_max: int
    """Of an event's body once it is unpacked."""
    database_url: str = field(repr=False)
    """Empty: Table Storage keeps what became of events."""
    handler: str
    """``module:name`` of a user's Handling. Empty: the app's own handler."""
    outage_errors: tuple[str, ...]
    """Dotted names of exception classes that mean an outage of what events are handled with."""
    effects_kept: timedelta | None
    """None: for ever."""
    balancing: BalancingSettings
    breaker: BreakerSettings


def read_ingestion(reader: Reader) -> IngestionSettings:
    """All of them; what is wrong goes to the reader's problems."""
    hub_name = reader.text("EventHubName")
    found = event_hub_connection(reader.environ, EVENT_HUB, hub_name)
    reader.connection(found)
    settings = IngestionSettings(
        hub=found if isinstance(found, EventHubConnection) else None,
        hub_name=hub_name,
        consumer_group=reader.text("EventHubConsumerGroup"),
        read_back_consumer_group=reader.text("EventHubReadBackConsumerGroup"),
        tail_schedule=reader.schedule("IngestTailSchedule"),
        event_bytes_max=reader.whole("EventBytesMaximum"),
        database_url=_database_url(reader, "IngestionDatabaseUrl"),
        handler=_handler(reader, HANDLER),
        outage_errors=_dotted_names(reader, "OutageErrors"),
        effects_kept=_kept(reader, "EffectsKeptDays"),
        balancing=_balancing(reader),
        breaker=_breaker(reader),
    )
    if settings.hub and settings.consumer_group == settings.read_back_consumer_group:
        reader.problems.append(
            f"EventHubReadBackConsumerGroup = {settings.read_back_consumer_group!r}: must be "
            "another than EventHubConsumerGroup, which the trigger has for itself"
        )
    return settings


def _database_url(reader: Reader, key: str) -> str:
    url = reader.text(key)
    if url and not DATABASE.match(url):
        reader.problems.append(f"{key}: must be a URL such as postgresql+psycopg://host/database")
    elif url and find_spec("sqlalchemy") is None:
        reader.problems.append(
            f"{key}: SQLAlchemy is not installed: add `-r requirements-sql.txt` to requirements.txt"
        )
    return url


def _handler(reader: Reader, key: str) -> str:
    text = reader.text(key)
    if text and not HANDLER_NAME.fullmatch(text):
        reader.problems.append(f"{key} = {text!r}: must be a name such as my_events:handling")
        return ""
    return text


def _dotted_names(reader: Reader, key: str) -> tuple[str, ...]:
    names = [part.strip() for part in reader.text(key).split(",") if part.strip()]
    wrong = [name for name in names if "." not in name or not _is_dotted(name)]
    reader.problems += [
        f"{key} = {name!r}: must be a module and a class with dots between them, such as "
        "my_handler.GatewayGone"
        for name in wrong
    ]
    return tuple(name for name in names if name not in wrong)


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _kept(reader: Reader, key: str) -> timedelta | None:
    days = reader.whole(key)
    return timedelta(days=days) if days else None


def _balancing(reader: Reader) -> BalancingSettings:
    found = BalancingSettings(
        renew_seconds=reader.number("OwnershipRenewSeconds"),
        expire_seconds=reader.number("OwnershipExpireSeconds"),
        cycle_seconds=reader.number("BalancingSeconds"),
    )
    if found.expire_seconds <= found.renew_seconds + found.cycle_seconds:
        reader.problems.append(
            f"OwnershipExpireSeconds = {found.expire_seconds:g}: must be more than "
            f"OwnershipRenewSeconds + BalancingSeconds = "
            f"{found.renew_seconds + found.cycle_seconds:g}, or nobody renews in time"
        )
    return found


def _breaker(reader: Reader) -> BreakerSettings:
    return BreakerSettings(
        failures_max=reader.whole("BreakerFailures"),
        failure_ratio_max=reader.optional("BreakerFailureRatio"),
        slow_ratio_max=reader.optional("BreakerSlowRatio"),
        slow_seconds=reader.number("BreakerSlowSeconds"),
        throughput_min=reader.whole("BreakerMinimumCalls"),
        counts_bad_events=reader.flag("BreakerCountsBadEvents"),
        window_seconds=reader.number("BreakerWindowSeconds"),
        break_seconds=reader.number("BreakerBreakSeconds"),
        break_seconds_max=reader.number("BreakerBreakSecondsMaximum"),
        probe_events=reader.whole("BreakerProbeEvents"),
        approval_keys=_keys(reader, "BreakerApprovalKey"),
        approval_valid_for=timedelta(hours=reader.number("BreakerApprovalHours")),
        disables_app=_function_app(reader, "BreakerDisablesApp"),
    )


def _keys(reader: Reader, key: str) -> tuple[str, ...]:
    keys = tuple(part.strip() for part in reader.text(key).split(",") if part.strip())
    if any(len(each.encode()) < APPROVAL_KEY_CHARACTERS_MIN for each in keys):
        reader.problems.append(
            f"{key}: must have {APPROVAL_KEY_CHARACTERS_MIN} or more random characters; several "
            "keys between commas, the newest first"
        )
    return keys


def _function_app(reader: Reader, key: str) -> str:
    text = reader.text(key)
    if text and not FUNCTION_APP.fullmatch(text):
        example = "/subscriptions/…/resourceGroups/…/providers/Microsoft.Web/sites/my-app"
        reader.problems.append(f"{key} = {text!r}: must be a resource ID such as {example}")
    return text
