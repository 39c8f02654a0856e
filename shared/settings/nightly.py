"""The settings of the nightly job: its input and output, its Spark service, and its retries."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal

from shared.settings import fields
from shared.settings.fields import HTTPS, LOOPBACK, RawValue, SettingsModel, setting, text
from shared.values.bounds import Bounds, matching

Submitter = Literal["", "local", "livy", "synapse", "databricks"]
SYNAPSE = rf"({HTTPS})/(?:livyApi/versions/[^/]+/)?sparkPools/(\w+)"
ENDPOINTS: Mapping[str, tuple[str, str]] = {
    "livy": (
        rf"(?:{HTTPS}|{LOOPBACK})(?:/\S*)?",
        "https://api.fabric.microsoft.com/v1/workspaces/ID/lakehouses/ID/livyapi/versions/"
        "2023-12-01 or https://CLUSTER.azurehdinsight.net/livy",
    ),
    "synapse": (SYNAPSE, "https://WORKSPACE.dev.azuresynapse.net/sparkPools/POOL"),
    "databricks": (f"{HTTPS}|{LOOPBACK}", "https://adb-1234567890123456.7.azuredatabricks.net"),
}
LOCAL_FOLDER = ".local/trend-runs"
NIGHT, RUNS = "`nightly_trends`", "`trend_runs`"
BOTH = f"{NIGHT}, {RUNS}"


def _request(raw: RawValue) -> Mapping[str, Any]:
    try:
        parsed = json.loads(raw.text)
    except (ValueError, RecursionError) as error:
        raw.refuse(f"must be JSON ({error})")
        return {}
    if isinstance(parsed, dict):
        return parsed
    raw.refuse("must be a JSON object")
    return {}


def _arguments(raw: RawValue) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text(raw)))
    except ValueError as error:
        raw.refuse(str(error))
        return ()


# fmt: off
Container = Annotated[str, matching(
    "[a-z0-9$][a-z0-9-]{2,62}", "must be names of blob containers between commas")]


@dataclass(frozen=True)
class NightlySettings(SettingsModel):
    """``submitter`` is empty if no job is set up; the other settings are then not checked.
    ``request`` has additional fields of a submission, in the format of the Spark service."""

    submitter: Submitter = setting("TrendsSubmitter",
        "one of `local`, `livy`, `synapse`, `databricks`", "",
        "where the nightly job runs: `local` (a process beside the app, for development), `livy` "
        "(Fabric, HDInsight, or your own Livy server), `synapse`, `databricks`; empty: the job "
        "does not run. See [the nightly job](nightly-job.md)", BOTH)
    endpoint: str = setting("TrendsEndpoint", "https address", "",
        "address of the Livy server, `https://WORKSPACE.dev.azuresynapse.net/sparkPools/POOL`, "
        "address of the Databricks workspace, or for `local` a folder for logs", BOTH,
        parse=fields.address, hidden=True)
    request: Mapping[str, Any] = setting("TrendsRequest", "JSON object", "{}",
        "further fields of each submission: of a Livy batch (`file`, `pyFiles`, sizes) or of a "
        "Databricks task (`spark_python_task`, cluster)", BOTH, parse=_request, hidden=True)
    user: str = setting("TrendsUser", "text", "",
        "user name for a Livy server with basic authentication (HDInsight)", BOTH)
    password: str = setting("TrendsPassword", "text", "",
        "password of `TrendsUser`; use a Key Vault reference", BOTH, secret=True)
    inputs: tuple[str, ...] = setting("TrendsInput", "addresses, separated by commas", "",
        "folders of the exported telemetry, all of which belong to each data set, such as a "
        "container of events and one of metrics; `{dataset}` is replaced by the data set", BOTH)
    output: str = setting("TrendsOutput", "address", "",
        "folder for results; `{dataset}` is replaced by the data set", BOTH)
    arguments: tuple[str, ...] = setting("TrendsArguments", "text", "",
        "further arguments of the job, such as `--measurement Amount --tables "
        "https://ACCOUNT.table.core.windows.net`", BOTH, parse=_arguments, hidden=True)
    datasets: tuple[Container, ...] = setting("TrendsDataSets", "names, separated by commas",
        "insights-logs-appevents", "blob containers with exported telemetry", BOTH)
    late_days: Annotated[int, Bounds(0, 60)] = setting("TrendsLateDays", "days", 3,
        "number of days before yesterday that are recomputed if data arrived late", NIGHT)
    schedule: str = setting("NightlyTrendsSchedule", "schedule", "0 30 2 * * *",
        "when to request the nightly runs", NIGHT, parse=fields.cron)
    runs_schedule: str = setting("TrendRunsSchedule", "schedule", "30 * * * * *",
        "when to check, start and retry runs", RUNS, parse=fields.cron)
    attempts: Annotated[int, Bounds(1, 20)] = setting("TrendsAttempts", "whole number", 3,
        "maximum number of attempts for a date", BOTH)
    retry_delay: Annotated[timedelta, Bounds(0.01, 1440)] = setting("TrendsRetryMinutes", "minutes",
        10, "wait before the first retry; doubles with each further retry", BOTH)
    timeout: Annotated[timedelta, Bounds(1, 2880)] = setting("TrendsTimeoutMinutes", "minutes",
        240, "a run that takes longer is stopped", BOTH)
    parallel: Annotated[int, Bounds(1, 50)] = setting("TrendsParallel", "whole number", 1,
        "maximum number of concurrent runs of a data set", BOTH)
    input_connection_string: str = setting("AZURE_STORAGE_CONNECTION_STRING", "connection string",
        "", "for development: used instead of managed identity to read the blobs of `TrendsInput`",
        NIGHT, secret=True)
    # fmt: on

    @property
    def pool(self) -> tuple[str, str]:
        """For Synapse: the endpoint of the workspace and the name of the pool."""
        parts = re.fullmatch(SYNAPSE, self.endpoint)
        assert parts is not None
        return parts[1], parts[2]

    @property
    def job_arguments(self) -> tuple[str, ...]:
        """With several data sets, the job must tell their rows in the tables apart."""
        to_tables = any(each.startswith("--tables") for each in self.arguments)
        several = to_tables and len(self.datasets) > 1
        return (*self.arguments, *(("--data-set", "{dataset}") if several else ()))

    def conflicts(self) -> Iterable[str]:
        if not self.submitter:
            return
        places = {"TrendsInput": ", ".join(self.inputs), "TrendsOutput": self.output}
        for key in (key for key, place in places.items() if not place):
            yield f"{key} = '': must be set if TrendsSubmitter is {self.submitter}"
        pattern, example = ENDPOINTS.get(self.submitter, (".*", ""))
        if not re.fullmatch(pattern, self.endpoint):
            yield f"TrendsEndpoint = {self.endpoint!r}: must look like {example}"
        needed = "file" if self.submitter in ("livy", "synapse") else "spark_python_task"
        if self.submitter != "local" and needed not in self.request:
            yield (
                f"TrendsRequest: must contain {needed!r} with the job's main file, such as "
                "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/spark_jobs/event_trends.py"
            )
        if len(self.datasets) > 1 and not all("{dataset}" in place for place in places.values()):
            yield (
                "TrendsInput and TrendsOutput: must contain {dataset}, because TrendsDataSets "
                "names several data sets"
            )
