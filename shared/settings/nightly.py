"""The nightly job: what it reads and writes, where it runs, how often it is tried."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from shared.settings import fields
from shared.settings.fields import HTTPS, LOOPBACK, RawValue, SettingsModel, setting, text, whole

Submitter = Literal["", "local", "livy", "synapse", "databricks"]
SUBMITTERS: tuple[Submitter, ...] = get_args(Submitter)
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
    except ValueError as error:
        raw.refuse(f"not JSON ({error})")
        return {}
    if isinstance(parsed, dict):
        return parsed
    raw.refuse("must be a JSON object")
    return {}


def _arguments(raw: RawValue) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(raw.text))
    except ValueError as error:
        raw.refuse(str(error))
        return ()


# fmt: off
@dataclass(frozen=True)
class NightlySettings(SettingsModel):
    """``submitter`` is empty where no job is set up; the rest is then not looked at.

    ``request`` is what the submitter is sent besides name and arguments, in its own words.
    """

    submitter: Submitter = setting(fields.choice(SUBMITTERS), "TrendsSubmitter",
        "one of `local`, `livy`, `synapse`, `databricks`", "",
        "where the nightly job runs: `local` (a process beside the app, for development), `livy` "
        "(Fabric, HDInsight, a Livy of your own), `synapse`, `databricks`; empty: nowhere. See "
        "[operations](operations.md#nightly-trends)", BOTH)
    endpoint: str = setting(fields.address, "TrendsEndpoint", "https address", "",
        "Livy's address, `https://WORKSPACE.dev.azuresynapse.net/sparkPools/POOL`, the Databricks "
        "workspace, or for `local` the folder of logs", BOTH, hidden=True)
    request: Mapping[str, Any] = setting(_request, "TrendsRequest", "JSON object", "{}",
        "what each submission has besides: a Livy batch (`file`, `pyFiles`, sizes) or a Databricks "
        "task (`spark_python_task`, cluster)", BOTH, hidden=True)
    user: str = setting(text, "TrendsUser", "text", "",
        "for a Livy with basic authentication (HDInsight)", BOTH)
    password: str = setting(text, "TrendsPassword", "text", "",
        "the same; as a Key Vault reference", BOTH, secret=True)
    input: str = setting(text, "TrendsInput", "address", "",
        "exported telemetry; `{dataset}` stands for the data set", BOTH)
    output: str = setting(text, "TrendsOutput", "address", "",
        "the folder of results; `{dataset}` as above", BOTH)
    arguments: tuple[str, ...] = setting(_arguments, "TrendsArguments", "text", "",
        "further arguments of the job, such as `--measurement DurationMs --tables "
        "https://ACCOUNT.table.core.windows.net`", BOTH, hidden=True)
    datasets: tuple[str, ...] = setting(fields.names, "TrendsDataSets", "names between commas",
        "insights-logs-appevents", "blob containers of exports", BOTH,
        pattern="[a-z0-9$][a-z0-9-]{2,62}",
        must="must be names of blob containers between commas")
    late_days: int = setting(whole, "TrendsLateDays", "days", 3,
        "so many before yesterday are recomputed where data came late", NIGHT, (0, 60))
    schedule: str = setting(fields.cron, "NightlyTrendsSchedule", "schedule", "0 30 2 * * *",
        "when to ask for trends", NIGHT)
    runs_schedule: str = setting(fields.cron, "TrendRunsSchedule", "schedule", "30 * * * * *",
        "when to look at runs", RUNS)
    attempts: int = setting(whole, "TrendsAttempts", "whole number", 3,
        "a run that fails is tried so often", BOTH, (1, 20))
    retry_minutes: float = setting(fields.number, "TrendsRetryMinutes", "minutes", 10,
        "first after so long, then after twice as long", BOTH, (0.01, 1440))
    timeout_minutes: float = setting(fields.number, "TrendsTimeoutMinutes", "minutes", 240,
        "a run that takes longer is stopped", BOTH, (1, 2880))
    parallel: int = setting(whole, "TrendsParallel", "whole number", 1,
        "so many runs of a data set go on at a time", BOTH, (1, 50))
    input_connection_string: str = setting(text, "AZURE_STORAGE_CONNECTION_STRING",
        "connection string", "", "for development: opens the blobs of `TrendsInput` instead of "
        "managed identity", NIGHT, secret=True)
    # fmt: on

    @property
    def pool(self) -> tuple[str, str]:
        """Of Synapse: the workspace's endpoint and the pool's name."""
        found = re.fullmatch(SYNAPSE, self.endpoint)
        assert found is not None
        return found[1], found[2]

    def conflicts(self) -> Iterable[str]:
        if not self.submitter:
            return
        places = {"TrendsInput": self.input, "TrendsOutput": self.output}
        for key in (key for key, place in places.items() if not place):
            yield f"{key} = '': must be set where TrendsSubmitter is {self.submitter}"
        pattern, example = ENDPOINTS.get(self.submitter, (".*", ""))
        if not re.fullmatch(pattern, self.endpoint):
            yield f"TrendsEndpoint = {self.endpoint!r}: must look like {example}"
        needed = "file" if self.submitter in ("livy", "synapse") else "spark_python_task"
        if self.submitter != "local" and needed not in self.request:
            yield (
                f"TrendsRequest: must have {needed!r}, which names the job's main file, such as "
                "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/spark_jobs/event_trends.py"
            )
        if len(self.datasets) > 1 and not all("{dataset}" in place for place in places.values()):
            yield (
                "TrendsInput and TrendsOutput: must have {dataset} in them where TrendsDataSets "
                "names several"
            )
