"""What comes from an event hub, and the circuit breaker around it."""

from __future__ import annotations

from shared.settings.declared.setting import Bounds, Section, Setting, number, schedule

INGEST = "`metric_ingest`"
TAIL = "`ingest_tail`"
REDRIVE = "`dead_letter_redrive`"
PROCESSES = "`python -m shared run`"
APPROVAL = "`breaker_page`, `breaker_close`, `breaker_status`"

HUB = Section(
    "Metrics from Event Hubs",
    INGEST,
    (
        Setting(
            "EventHubConnection",
            "connection string",
            "",
            "the event hub that metrics come from: a connection string, or "
            "`EventHubConnection__fullyQualifiedNamespace` with managed identity; empty: none is "
            "listened to",
            "`metric_ingest`, `ingest_tail`",
            secret=True,
        ),
        Setting("EventHubName", "text", "metrics", "the hub", "`metric_ingest`, `ingest_tail`"),
        Setting("EventHubConsumerGroup", "text", "$Default", "the consumer group of the trigger"),
        Setting(
            "EventHubReadBackConsumerGroup",
            "text",
            "readback",
            "a second consumer group, to read again what the host skipped: into the trigger's "
            "nobody else is let",
            "`metric_ingest`, `ingest_tail`",
        ),
        number(
            "EventBytesMaximum",
            "bytes",
            "1048576",
            Bounds(1024, 16_777_216),
            "an event of more bytes, once it is unpacked, becomes a dead letter; reading one takes "
            "up to 30 times as much memory, and nothing else runs in the process meanwhile",
            f"{INGEST}, {TAIL}, {REDRIVE}, {PROCESSES}",
        ),
        number(
            "OwnershipRenewSeconds",
            "seconds",
            "10",
            Bounds(0.1, 600),
            "outside Functions: how old a process lets its claim on a partition become",
            PROCESSES,
        ),
        number(
            "OwnershipExpireSeconds",
            "seconds",
            "30",
            Bounds(1, 3600),
            "when others may take it",
            PROCESSES,
        ),
        number(
            "BalancingSeconds",
            "seconds",
            "5",
            Bounds(0.1, 600),
            "how often all look at who has what",
            PROCESSES,
        ),
        schedule(
            "IngestTailSchedule",
            "0 * * * * *",
            "when to look for events that nobody delivered",
            TAIL,
        ),
        Setting(
            "IngestionDatabaseUrl",
            "URL of SQLAlchemy",
            "",
            "keep all state of ingestion (checkpoints, what became of events, owners of "
            "partitions, the breaker) in this database (PostgreSQL, Azure SQL, SQLite) instead of "
            "the tables `Ingestion`, `Ownership` and `Breaker`; `requirements-sql.txt` installs "
            "what that takes",
            "`metric_ingest`, `ingest_tail`",
            secret=True,
        ),
        Setting(
            "IngestionHandler",
            "MODULE:NAME",
            "",
            "what handles events instead of the app's own handler, and which "
            "[tables of your own](architecture.md#tables-of-your-own) take part in their "
            "transaction; empty: the app's own, which takes in metrics",
            f"{INGEST}, {TAIL}, {REDRIVE}, {PROCESSES}",
        ),
        Setting(
            "OutageErrors",
            "class names",
            "",
            "exception classes of yours or of a library, by dotted name and between commas, such "
            "as `my_handler.GatewayGone`: where a handler raises one, or one led to what it "
            "raises, the call is tried again and the partition held, and no event becomes a dead "
            "letter. Errors of Python, of database drivers and of the usual HTTP clients that "
            "mean an outage are known anyway; `builtins.Exception` is refused",
            f"{INGEST}, {TAIL}, {REDRIVE}, {PROCESSES}",
        ),
        number(
            "EffectsKeptDays",
            "days",
            "90",
            Bounds(0, 36_500),
            "what handlers kept of events is removed after so long; 0: never. The default is as "
            "long as any hub keeps its events",
            TAIL,
        ),
        number(
            "BreakerFailures",
            "whole number",
            "100",
            Bounds(0, 1_000_000),
            "more failures than this in the window, over all instances, open the circuit breaker; "
            "0: any number may fail",
        ),
        number(
            "BreakerFailureRatio",
            "share",
            "",
            Bounds(0, 1),
            "a greater share of failed calls opens it too, such as `0.5`; empty: none does",
        ),
        number(
            "BreakerSlowRatio",
            "share",
            "",
            Bounds(0, 1),
            "a greater share of slow calls opens it too; empty: none does",
        ),
        number(
            "BreakerSlowSeconds",
            "seconds",
            "10",
            Bounds(0.001, 600),
            "a call is slow after so long",
        ),
        number(
            "BreakerMinimumCalls",
            "whole number",
            "20",
            Bounds(1, 1_000_000),
            "shares count from so many calls on",
        ),
        Setting(
            "BreakerCountsBadEvents",
            "true or false",
            "true",
            "whether an event that is nonsense counts as a failed call; see "
            "[architecture](architecture.md#events)",
        ),
        number("BreakerWindowSeconds", "seconds", "30", Bounds(1, 1800), "the window"),
        number("BreakerBreakSeconds", "seconds", "30", Bounds(1, 86_400), "the first break"),
        number(
            "BreakerBreakSecondsMaximum",
            "seconds",
            "900",
            Bounds(1, 86_400),
            "breaks in a row double up to this",
        ),
        number(
            "BreakerProbeEvents",
            "whole number",
            "10",
            Bounds(1, 10_000),
            "after a break so many events must succeed",
        ),
        Setting(
            "BreakerApprovalKey",
            "32 random characters or more",
            "",
            "signs the link that closes the breaker; several between commas, the newest first; "
            "empty: nobody is sent a link",
            APPROVAL,
            secret=True,
        ),
        number(
            "BreakerApprovalHours",
            "hours",
            "24",
            Bounds(0.01, 720),
            "how long a link is good",
            APPROVAL,
        ),
        Setting(
            "BreakerDisablesApp",
            "resource ID",
            "",
            "this Function App: an opening disables `metric_ingest` by app setting instead of only "
            "holding it; see [operations](operations.md#the-circuit-breaker-opened)",
        ),
    ),
)
