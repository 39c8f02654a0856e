"""What comes from an event hub, and the circuit breaker around it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec

from shared.settings import fields
from shared.settings.connections import EventHubConnection, event_hub_connection
from shared.settings.fields import RawValue, SettingsModel, number, setting, text, whole

EVENT_HUB = "EventHubConnection"
HUB_NAME = "metrics"
HANDLER = "IngestionHandler"
APPROVAL_KEY_CHARACTERS_MIN = 32
FUNCTION_APP = r"/subscriptions/[^/\s]+/resourceGroups/[^/\s]+/providers/Microsoft\.Web/sites/"
INGEST, TAIL, PROCESSES = "`metric_ingest`", "`ingest_tail`", "`python -m shared run`"
BOTH = f"{INGEST}, {TAIL}"
ALL = f"{BOTH}, `dead_letter_redrive`, {PROCESSES}"
APPROVAL = "`breaker_page`, `breaker_close`, `breaker_status`"


def _hub(raw: RawValue) -> EventHubConnection | None:
    hub_name = raw.environ.get("EventHubName", "").strip() or HUB_NAME
    connection = event_hub_connection(raw.environ, EVENT_HUB, hub_name)
    if isinstance(connection, str):
        raw.problems.append(connection)
        return None
    return connection


def _database_url(raw: RawValue) -> str:
    if raw.text and raw.matches(raw.text) and find_spec("sqlalchemy") is None:
        installing = "add `-r requirements-sql.txt` to requirements.txt"
        raw.refuse(f"SQLAlchemy is not installed: {installing}")
    return raw.text


def _days_kept(raw: RawValue) -> timedelta | None:
    return fields.duration(raw, whole) or None


def _approval_keys(raw: RawValue) -> tuple[str, ...]:
    keys = fields.names(raw)
    if any(len(each.encode()) < APPROVAL_KEY_CHARACTERS_MIN for each in keys):
        raw.refuse(
            f"must have {APPROVAL_KEY_CHARACTERS_MIN} or more random characters; several keys "
            "between commas, the newest first"
        )
    return keys


# fmt: off
@dataclass(frozen=True)
class BalancingSettings(SettingsModel):
    """How processors outside the Functions trigger share the partitions."""

    renew_seconds: float = setting(number, "OwnershipRenewSeconds", "seconds", 10,
        "outside Functions: how old a process lets its claim on a partition become", PROCESSES,
        (0.1, 600))
    expire_seconds: float = setting(number, "OwnershipExpireSeconds", "seconds", 30,
        "when others may take it", PROCESSES, (1, 3600))
    cycle_seconds: float = setting(number, "BalancingSeconds", "seconds", 5,
        "how often all look at who has what", PROCESSES, (0.1, 600))

    def conflicts(self) -> Iterable[str]:
        needed = self.renew_seconds + self.cycle_seconds
        if self.expire_seconds <= needed:
            yield (
                f"OwnershipExpireSeconds = {self.expire_seconds:g}: must be more than "
                f"OwnershipRenewSeconds + BalancingSeconds = {needed:g}, or nobody renews in time"
            )


@dataclass(frozen=True)
class BreakerSettings(SettingsModel):
    """When the breaker opens, for how long, and who may close it.

    The first of ``approval_keys`` signs, all are accepted; without one, nobody is sent a link.
    """

    failures_max: int = setting(whole, "BreakerFailures", "whole number", 100,
        "more failures than this in the window, over all instances, open the circuit breaker; 0: "
        "any number may fail", bounds=(0, 1_000_000))
    failure_ratio_max: float | None = setting(fields.optional_number, "BreakerFailureRatio",
        "share", "", "a greater share of failed calls opens it too, such as `0.5`; empty: none "
        "does", bounds=(0, 1))
    slow_ratio_max: float | None = setting(fields.optional_number, "BreakerSlowRatio", "share", "",
        "a greater share of slow calls opens it too; empty: none does", bounds=(0, 1))
    slow_seconds: float = setting(number, "BreakerSlowSeconds", "seconds", 10,
        "a call is slow after so long", bounds=(0.001, 600))
    throughput_min: int = setting(whole, "BreakerMinimumCalls", "whole number", 20,
        "shares count from so many calls on", bounds=(1, 1_000_000))
    counts_bad_events: bool = setting(fields.flag, "BreakerCountsBadEvents", "true or false",
        "true", "whether an event that is nonsense counts as a failed call; see "
        "[architecture](architecture.md#events)")
    window_seconds: float = setting(number, "BreakerWindowSeconds", "seconds", 30, "the window",
        bounds=(1, 1800))
    break_seconds: float = setting(number, "BreakerBreakSeconds", "seconds", 30,
        "the first break", bounds=(1, 86_400))
    break_seconds_max: float = setting(number, "BreakerBreakSecondsMaximum", "seconds", 900,
        "breaks in a row double up to this", bounds=(1, 86_400))
    probe_events: int = setting(whole, "BreakerProbeEvents", "whole number", 10,
        "after a break so many events must succeed", bounds=(1, 10_000))
    approval_keys: tuple[str, ...] = setting(_approval_keys, "BreakerApprovalKey",
        "32 random characters or more", "", "signs the link that closes the breaker; several "
        "between commas, the newest first; empty: nobody is sent a link", APPROVAL, secret=True)
    approval_valid_for: timedelta = setting(fields.duration, "BreakerApprovalHours", "hours", 24,
        "how long a link is good", APPROVAL, (0.01, 720))
    disables_app: str = setting(text, "BreakerDisablesApp", "resource ID", "",
        "this Function App: an opening disables `metric_ingest` by app setting instead of only "
        "holding it; see [operations](operations.md#the-circuit-breaker-opened)",
        pattern=rf"(?i:{FUNCTION_APP}[^/\s]+)", must="must be a resource ID such as "
        "/subscriptions/…/resourceGroups/…/providers/Microsoft.Web/sites/my-app")


@dataclass(frozen=True)
class IngestionSettings(SettingsModel):
    """``hub`` is None where no event hub is listened to, ``effects_kept`` where it is for ever."""

    hub: EventHubConnection | None = setting(_hub, EVENT_HUB, "connection string", "",
        "the event hub that metrics come from: a connection string, or "
        "`EventHubConnection__fullyQualifiedNamespace` with managed identity; empty: none is "
        "listened to", BOTH, secret=True)
    hub_name: str = setting(text, "EventHubName", "text", HUB_NAME, "the hub", BOTH)
    consumer_group: str = setting(text, "EventHubConsumerGroup", "text", "$Default",
        "the consumer group of the trigger")
    read_back_consumer_group: str = setting(text, "EventHubReadBackConsumerGroup", "text",
        "readback", "a second consumer group, to read again what the host skipped: into the "
        "trigger's nobody else is let", BOTH)
    event_bytes_max: int = setting(whole, "EventBytesMaximum", "bytes", 1_048_576,
        "an event of more bytes, once it is unpacked, becomes a dead letter; reading one takes up "
        "to 30 times as much memory, and nothing else runs in the process meanwhile", ALL,
        (1024, 16_777_216))
    balancing: BalancingSettings = fields.group(BalancingSettings)
    tail_schedule: str = setting(fields.cron, "IngestTailSchedule", "schedule", "0 * * * * *",
        "when to look for events that nobody delivered", TAIL)
    database_url: str = setting(_database_url, "IngestionDatabaseUrl", "URL of SQLAlchemy", "",
        "keep all state of ingestion (checkpoints, what became of events, owners of partitions, "
        "the breaker) in this database (PostgreSQL, Azure SQL, SQLite) instead of the tables "
        "`Ingestion`, `Ownership` and `Breaker`; `requirements-sql.txt` installs what that takes",
        BOTH, secret=True, pattern=r"[a-z]+(\+[a-z]+)?://.*",
        must="must be a URL such as postgresql+psycopg://host/database")
    handler: str = setting(text, HANDLER, "MODULE:NAME", "",
        "what handles events instead of the app's own handler, and which "
        "[tables of your own](architecture.md#tables-of-your-own) take part in their transaction; "
        "empty: the app's own, which takes in metrics", ALL, pattern=r"\w+(\.\w+)*:\w+",
        must="must be a name such as my_events:handling")
    outage_errors: tuple[str, ...] = setting(fields.names, "OutageErrors", "class names", "",
        "exception classes of yours or of a library, by dotted name and between commas, such as "
        "`my_handler.GatewayGone`: where a handler raises one, or one led to what it raises, the "
        "call is tried again and the partition held, and no event becomes a dead letter. Errors of "
        "Python, of database drivers and of the usual HTTP clients that mean an outage are known "
        "anyway; `builtins.Exception` is refused", ALL, pattern=r"[^\W\d]\w*(\.[^\W\d]\w*)+",
        must="must be a module and a class with dots between them, such as my_handler.GatewayGone")
    effects_kept: timedelta | None = setting(_days_kept, "EffectsKeptDays", "days", 90,
        "what handlers kept of events is removed after so long; 0: never. The default is as long "
        "as any hub keeps its events", TAIL, (0, 36_500))
    breaker: BreakerSettings = fields.group(BreakerSettings)

    def conflicts(self) -> Iterable[str]:
        if self.hub and self.consumer_group == self.read_back_consumer_group:
            yield (
                f"EventHubReadBackConsumerGroup = {self.read_back_consumer_group!r}: must be "
                "another than EventHubConsumerGroup, which the trigger has for itself"
            )
