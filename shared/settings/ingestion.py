"""The settings of the event hub, its processors, and its circuit breaker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import Annotated

from shared.settings import fields
from shared.settings.connections import EventHubConnection, event_hub_connection
from shared.settings.fields import RawValue, SettingsModel, entity, setting, whole
from shared.settings.variables import resolved
from shared.values.bounds import Bounds, matching

EVENT_HUB = "EventHubConnection"
HUB_NAME = "metrics"
HANDLER = "IngestionHandler"
APPROVAL_KEY_CHARACTERS_MIN = 32
INGEST, TAIL, PROCESSES = "`metric_ingest`", "`ingest_tail`", "`python -m shared run`"
BOTH = f"{INGEST}, {TAIL}"
ALL = f"{BOTH}, `dead_letter_redrive`, {PROCESSES}"
APPROVAL = "`breaker_page`, `breaker_close`, `breaker_status`"


def _hub(raw: RawValue) -> EventHubConnection | None:
    try:
        hub_name = resolved(raw.environ.get("EventHubName", "").strip(), raw.environ) or HUB_NAME
    except ValueError:  # the field of this setting reports it
        return None
    try:
        return event_hub_connection(raw.environ, EVENT_HUB, hub_name)
    except ValueError as error:
        raw.problems.append(str(error))
        return None


def _database_url(raw: RawValue) -> str:
    if raw.text and raw.matches(raw.text) and find_spec("sqlalchemy") is None:
        installing = "remove the # before `-r requirements/sql.txt` in requirements.txt"
        raw.refuse(f"SQLAlchemy is not installed: {installing}")
    return raw.text


def _days_kept(raw: RawValue) -> timedelta | None:
    return fields.duration(raw, whole) or None


def _failures_max(raw: RawValue) -> int | None:
    return whole(raw) or None


def _approval_keys(raw: RawValue) -> tuple[str, ...]:
    keys = fields.names(raw)
    if any(len(each.encode()) < APPROVAL_KEY_CHARACTERS_MIN for each in keys):
        raw.refuse(
            f"must have {APPROVAL_KEY_CHARACTERS_MIN} or more random characters; put several keys "
            "between commas, the newest first"
        )
    return keys


# fmt: off
DatabaseUrl = Annotated[str, matching(
    r"(postgresql|mssql|sqlite)(\+[a-z0-9]+)?://.*",
    "must be a URL such as postgresql+psycopg://host/database")]
HandlerName = Annotated[str, matching(
    r"\w+(\.\w+)*:\w+", "must be a name such as my_events:handling")]


@dataclass(frozen=True)
class BalancingSettings(SettingsModel):
    """How processors that run outside the Functions trigger share the partitions."""

    renew_seconds: Annotated[float, Bounds(0.1, 600)] = setting("OwnershipRenewSeconds", "seconds",
        10, "outside Functions: age at which a process renews its ownership of a partition",
        PROCESSES)
    expire_seconds: Annotated[float, Bounds(1, 3600)] = setting("OwnershipExpireSeconds", "seconds",
        30, "outside Functions: another process may take a partition whose ownership was not "
        "renewed for this long", PROCESSES)
    cycle_seconds: Annotated[float, Bounds(0.1, 600)] = setting("BalancingSeconds", "seconds", 5,
        "outside Functions: interval at which each process checks how the partitions are shared",
        PROCESSES)

    def conflicts(self) -> Iterable[str]:
        needed = self.renew_seconds + self.cycle_seconds
        if self.expire_seconds <= needed:
            yield (
                f"OwnershipExpireSeconds = {self.expire_seconds:g}: must be more than "
                f"OwnershipRenewSeconds + BalancingSeconds = {needed:g}, so that an owner can "
                "renew in time"
            )


@dataclass(frozen=True)
class BreakerSettings(SettingsModel):
    """When the breaker opens, for how long, and which keys sign links to close it: the first signs,
    and a link signed with any of them is accepted."""

    failures_max: Annotated[int, Bounds(0, 1_000_000)] | None = setting("BreakerFailures",
        "whole number", 100, "the circuit breaker opens if more calls than this fail in the window,"
        " over all instances together; 0: no limit", parse=_failures_max)
    failure_ratio_max: Annotated[float, Bounds(0, 1)] = setting("BreakerFailureRatio", "share", 0.5,
        "the breaker also opens if the share of failed calls is greater than this; 1: no limit")
    slow_ratio_max: Annotated[float, Bounds(0, 1)] | None = setting("BreakerSlowRatio", "share", "",
        "the breaker also opens if the share of slow calls is greater than this; empty: no limit")
    slow_seconds: Annotated[float, Bounds(0.001, 600)] = setting("BreakerSlowSeconds", "seconds",
        10, "a call that takes longer than this counts as slow")
    throughput_min: Annotated[int, Bounds(1, 1_000_000)] = setting("BreakerMinimumCalls",
        "whole number", 20, "minimum number of calls for the two shares to be evaluated; if the "
        "window holds fewer, it grows until it holds as many, up to 10 minutes")
    counts_bad_events: bool = setting("BreakerCountsBadEvents", "true or false", "true",
        "whether a damaged metric counts as a failed call; see "
        "[event internals](event-internals.md)")
    window_seconds: Annotated[float, Bounds(1, 1800)] = setting("BreakerWindowSeconds", "seconds",
        30, "length of the window in which failures and calls are counted")
    break_seconds: Annotated[float, Bounds(1, 86_400)] = setting("BreakerBreakSeconds", "seconds",
        30, "length of the first open interval")
    break_seconds_max: Annotated[float, Bounds(1, 86_400)] = setting("BreakerBreakSecondsMaximum",
        "seconds", 900, "maximum length of an open interval; consecutive ones double in length")
    probe_events: Annotated[int, Bounds(1, 10_000)] = setting("BreakerProbeEvents", "whole number",
        10, "number of events that must succeed after an open interval for the breaker to close")
    approval_keys: tuple[str, ...] = setting("BreakerApprovalKey", "32 random characters or more",
        "",
        "key that signs the links that close the breaker; several keys are separated by commas, "
        "the newest first; empty: no links are sent", APPROVAL, parse=_approval_keys, secret=True)
    approval_valid_for: Annotated[timedelta, Bounds(0.01, 720)] = setting("BreakerApprovalHours",
        "hours", 24, "how long a link is valid", APPROVAL)


@dataclass(frozen=True)
class IngestionSettings(SettingsModel):
    """``hub`` is None if the app reads no event hub, ``effects_kept`` if effects never expire."""

    hub: EventHubConnection | None = setting(EVENT_HUB, "connection string", "",
        "the event hub from which metrics are read: a connection string, or "
        "`EventHubConnection__fullyQualifiedNamespace` with managed identity; empty: no hub is "
        "read", BOTH, parse=_hub, secret=True)
    hub_name: str = setting("EventHubName", "text", HUB_NAME, "name of the hub", BOTH, parse=entity)
    consumer_group: str = setting("EventHubConsumerGroup", "text", "$Default",
        "consumer group of the trigger", parse=entity)
    read_back_consumer_group: str = setting("EventHubReadBackConsumerGroup", "text", "readback",
        "second consumer group, with which the app reads events that the host skipped; the trigger "
        "needs its own group exclusively", BOTH, parse=entity)
    event_bytes_max: Annotated[int, Bounds(1024, 16_777_216)] = setting("EventBytesMaximum",
        "bytes", 1_048_576,
        "an event that is larger when decompressed becomes a dead letter; decoding an event takes "
        "up to 30 times its size in memory and blocks the process meanwhile", ALL)
    balancing: BalancingSettings = fields.group()
    tail_schedule: str = setting("IngestTailSchedule", "schedule", "0 * * * * *",
        "when to check for events that were not delivered", TAIL, parse=fields.cron)
    database_url: DatabaseUrl = setting("IngestionDatabaseUrl", "URL of SQLAlchemy", "",
        "database (PostgreSQL, Azure SQL, SQLite) for all state of ingestion: checkpoints, "
        "outcomes of events, ownership of partitions, and the breaker; empty: the tables "
        "`Ingestion`, `Ownership` and `Breaker`. Requires the packages in `requirements/sql.txt`",
        BOTH, parse=_database_url, secret=True)
    handler: HandlerName = setting(HANDLER, "MODULE:NAME", "",
        "your own handler of events, with the [tables of your "
        "own](event-internals.md#tables-of-your-own) that take part in its transactions; empty: "
        "the app's handler, which reads metrics", ALL)
    handler_seconds_max: Annotated[float, Bounds(0.1, 3600)] = setting("HandlerSecondsMaximum",
        "seconds", 60, "a call of the handler that takes longer is canceled and counts as failed; "
        "see [event internals](event-internals.md). The trigger cancels it after 200 seconds at "
        "the latest", ALL)
    effects_kept: Annotated[timedelta, Bounds(0, 36_500)] | None = setting("EffectsKeptDays",
        "days", 90, "age at which stored effects of events are deleted; 0: never. No event hub "
        "keeps its events for longer than the default", TAIL, parse=_days_kept)
    breaker: BreakerSettings = fields.group()

    def conflicts(self) -> Iterable[str]:
        if self.hub and self.consumer_group.lower() == self.read_back_consumer_group.lower():
            yield (
                f"EventHubReadBackConsumerGroup = {self.read_back_consumer_group!r}: must differ "
                "by more than case from EventHubConsumerGroup, which the trigger uses exclusively"
            )
