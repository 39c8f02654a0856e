"""Data sets that are processed once a period, and the nightly trends made of them."""

from __future__ import annotations

from shared.settings.declared.setting import Bounds, Section, Setting, number, schedule

ARRIVED = "`telemetry_arrived`"
NIGHT = "`nightly_trends`"
RUNS = "`trend_runs`"
BOTH = "`nightly_trends`, `trend_runs`"

DATA_SETS = Section(
    "Data sets",
    ARRIVED,
    (
        Setting(
            "ProcessingPeriodHours",
            "hours between commas",
            "",
            "lengths of the periods that data sets are processed by, such as `24, 2`; empty: no "
            "telemetry is listened to",
            bounds=Bounds(1 / 60, 167),
        ),
        number(
            "ProcessingDelayMinutes",
            "minutes",
            "60",
            Bounds(0, 10_080),
            "a period is processed so long after its end",
        ),
        number(
            "ProcessingLatenessHours",
            "hours",
            "12",
            Bounds(1 / 60, 167),
            "what comes later has it processed again, once for all data that come within so long",
        ),
        Setting(
            "ProcessingQueue",
            "text",
            "processing",
            "queue of Service Bus (`ServiceBusConnection`) that detects duplicates for longer than "
            "period and lateness (or delay, if that is longer), and forwards to the next",
        ),
        Setting(
            "WorkingQueue",
            "text",
            "working",
            "queue of Service Bus that has sessions",
            "`telemetry_arrived`, `process_dataset`",
        ),
        Setting(
            "TelemetryQueue",
            "text",
            "telemetry",
            "storage queue with Event Grid's events of new blobs",
        ),
    ),
)

TRENDS = Section(
    "Nightly trends",
    RUNS,
    (
        Setting(
            "TrendsSubmitter",
            "one of `local`, `livy`, `synapse`, `databricks`",
            "",
            "where the nightly job runs: `local` (a process beside the app, for development), "
            "`livy` (Fabric, HDInsight, a Livy of your own), `synapse`, `databricks`; empty: "
            "nowhere. See [operations](operations.md#nightly-trends)",
            BOTH,
        ),
        Setting(
            "TrendsEndpoint",
            "https address",
            "",
            "Livy's address, `https://WORKSPACE.dev.azuresynapse.net/sparkPools/POOL`, the "
            "Databricks workspace, or for `local` the folder of logs",
            BOTH,
        ),
        Setting(
            "TrendsRequest",
            "JSON object",
            "{}",
            "what each submission has besides: a Livy batch (`file`, `pyFiles`, sizes) or a "
            "Databricks task (`spark_python_task`, cluster)",
            BOTH,
        ),
        Setting("TrendsUser", "text", "", "for a Livy with basic authentication (HDInsight)", BOTH),
        Setting(
            "TrendsPassword",
            "text",
            "",
            "the same; as a Key Vault reference",
            BOTH,
            secret=True,
        ),
        Setting(
            "TrendsInput",
            "address",
            "",
            "exported telemetry; `{dataset}` stands for the data set",
            BOTH,
        ),
        Setting(
            "TrendsOutput",
            "address",
            "",
            "the folder of results; `{dataset}` as above",
            BOTH,
        ),
        Setting(
            "TrendsArguments",
            "text",
            "",
            "further arguments of the job, such as `--measurement DurationMs --tables "
            "https://ACCOUNT.table.core.windows.net`",
            BOTH,
        ),
        Setting(
            "TrendsDataSets",
            "names between commas",
            "insights-logs-appevents",
            "blob containers of exports",
            BOTH,
        ),
        number(
            "TrendsLateDays",
            "days",
            "3",
            Bounds(0, 60),
            "so many before yesterday are recomputed where data came late",
            NIGHT,
        ),
        schedule("NightlyTrendsSchedule", "0 30 2 * * *", "when to ask for trends", NIGHT),
        schedule("TrendRunsSchedule", "30 * * * * *", "when to look at runs", RUNS),
        number(
            "TrendsAttempts",
            "whole number",
            "3",
            Bounds(1, 20),
            "a run that fails is tried so often",
            BOTH,
        ),
        number(
            "TrendsRetryMinutes",
            "minutes",
            "10",
            Bounds(0.01, 1440),
            "first after so long, then after twice as long",
            BOTH,
        ),
        number(
            "TrendsTimeoutMinutes",
            "minutes",
            "240",
            Bounds(1, 2880),
            "a run that takes longer is stopped",
            BOTH,
        ),
        number(
            "TrendsParallel",
            "whole number",
            "1",
            Bounds(1, 50),
            "so many runs of a data set go on at a time",
            BOTH,
        ),
        Setting(
            "AZURE_STORAGE_CONNECTION_STRING",
            "connection string",
            "",
            "for development: opens the blobs of `TrendsInput` instead of managed identity",
            NIGHT,
            secret=True,
        ),
    ),
)
