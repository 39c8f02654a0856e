"""The settings of the nightly job: what it reads and writes, where it runs, how it is tried."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from shared.settings.reader import Reader

Submitter = Literal["", "local", "livy", "synapse", "databricks"]
SUBMITTERS: tuple[Submitter, ...] = ("local", "livy", "synapse", "databricks")
HTTPS = r"https://[A-Za-z0-9.-]+(?::\d{1,5})?"
LOOPBACK = r"http://(?:127\.0\.0\.1|localhost)(?::\d{1,5})?"
ENDPOINTS: Mapping[str, tuple[re.Pattern[str], str]] = {
    "livy": (
        re.compile(rf"(?:{HTTPS}|{LOOPBACK})(?:/\S*)?"),
        "https://api.fabric.microsoft.com/v1/workspaces/ID/lakehouses/ID/livyapi/versions/"
        "2023-12-01 or https://CLUSTER.azurehdinsight.net/livy",
    ),
    "synapse": (
        re.compile(rf"({HTTPS})/(?:livyApi/versions/[^/]+/)?sparkPools/(\w+)"),
        "https://WORKSPACE.dev.azuresynapse.net/sparkPools/POOL",
    ),
    "databricks": (
        re.compile(rf"(?:{HTTPS}|{LOOPBACK})"),
        "https://adb-1234567890123456.7.azuredatabricks.net",
    ),
}
DATASET = re.compile(r"[a-z0-9$][a-z0-9-]{2,62}")
LOCAL_FOLDER = ".local/trend-runs"


@dataclass(frozen=True, slots=True)
class NightlySettings:
    """``submitter`` is empty where no job is set up; the rest is then not looked at."""

    submitter: Submitter
    endpoint: str = field(repr=False)
    """A folder where the submitter is ``local``."""

    request: Mapping[str, Any] = field(repr=False)
    """What the submitter is sent besides name and arguments, in its own words."""

    user: str
    password: str = field(repr=False)
    input: str
    output: str
    arguments: tuple[str, ...] = field(repr=False)
    datasets: tuple[str, ...]
    late_days: int
    schedule: str
    runs_schedule: str
    attempts: int
    retry_minutes: float
    timeout_minutes: float
    parallel: int
    input_connection_string: str = field(repr=False)

    @property
    def pool(self) -> tuple[str, str]:
        """Of Synapse: the workspace's endpoint and the pool's name."""
        found = ENDPOINTS["synapse"][0].fullmatch(self.endpoint)
        assert found is not None
        return found[1], found[2]


def read_nightly(reader: Reader) -> NightlySettings:
    """All of them; what is wrong goes to the reader's problems."""
    settings = NightlySettings(
        submitter=_submitter(reader),
        endpoint=reader.text("TrendsEndpoint").rstrip("/"),
        request=_request(reader),
        user=reader.text("TrendsUser"),
        password=reader.text("TrendsPassword"),
        input=reader.text("TrendsInput"),
        output=reader.text("TrendsOutput"),
        arguments=_arguments(reader),
        datasets=_datasets(reader),
        late_days=reader.whole("TrendsLateDays"),
        schedule=reader.schedule("NightlyTrendsSchedule"),
        runs_schedule=reader.schedule("TrendRunsSchedule"),
        attempts=reader.whole("TrendsAttempts"),
        retry_minutes=reader.number("TrendsRetryMinutes"),
        timeout_minutes=reader.number("TrendsTimeoutMinutes"),
        parallel=reader.whole("TrendsParallel"),
        input_connection_string=reader.text("AZURE_STORAGE_CONNECTION_STRING"),
    )
    if settings.submitter:
        _check(settings, reader)
    return settings


def _check(settings: NightlySettings, reader: Reader) -> None:
    for key, value in (("TrendsInput", settings.input), ("TrendsOutput", settings.output)):
        if not value:
            why = f"must be set where TrendsSubmitter is {settings.submitter}"
            reader.problems.append(f"{key} = '': {why}")
    form = ENDPOINTS.get(settings.submitter)
    if form and not form[0].fullmatch(settings.endpoint):
        reader.problems.append(f"TrendsEndpoint = {settings.endpoint!r}: must look like {form[1]}")
    needed = "file" if settings.submitter in ("livy", "synapse") else "spark_python_task"
    if settings.submitter != "local" and needed not in settings.request:
        reader.problems.append(
            f"TrendsRequest: must have {needed!r}, which names the job's main file, such as "
            "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/spark_jobs/event_trends.py"
        )
    if len(settings.datasets) > 1 and not (
        "{dataset}" in settings.input and "{dataset}" in settings.output
    ):
        reader.problems.append(
            "TrendsInput and TrendsOutput: must have {dataset} in them where TrendsDataSets names "
            "several"
        )


def _submitter(reader: Reader) -> Submitter:
    text = reader.text("TrendsSubmitter")
    for submitter in SUBMITTERS:
        if text == submitter:
            return submitter
    if text:
        known = ", ".join(SUBMITTERS)
        reader.problems.append(f"TrendsSubmitter = {text!r}: must be one of {known}, or empty")
    return ""


def _request(reader: Reader) -> Mapping[str, Any]:
    text = reader.text("TrendsRequest")
    try:
        found = json.loads(text)
    except ValueError as error:
        reader.problems.append(f"TrendsRequest: not JSON ({error})")
        return {}
    if isinstance(found, dict):
        return found
    reader.problems.append("TrendsRequest: must be a JSON object")
    return {}


def _arguments(reader: Reader) -> tuple[str, ...]:
    text = reader.text("TrendsArguments")
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        reader.problems.append(f"TrendsArguments: {error}")  # an argument may be a secret
        return ()


def _datasets(reader: Reader) -> tuple[str, ...]:
    text = reader.text("TrendsDataSets")
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in found:
        if not DATASET.fullmatch(name):
            bound = "must be names of blob containers between commas"
            reader.problems.append(f"TrendsDataSets = {text!r}: {bound}")
            break
    return found
