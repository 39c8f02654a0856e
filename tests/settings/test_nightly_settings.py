"""The settings of the nightly job, and the parts that are built from them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import date, timedelta
from unittest.mock import Mock

import pytest

from shared import settings
from shared.trends.datasets.processing import DatasetWork
from shared.trends.nightly import runs
from shared.trends.nightly.model import Demand, RunPolicy
from shared.trends.submitters.local import LocalSubmitter
from shared.wiring.app import App
from shared.wiring.nightly import FABRIC
from spark_jobs.options import parse as options_of
from spark_jobs.read.sources import SeveralFiles, source_of
from tests.builders import NOW
from tests.settings.test_settings import SINGLE

PLACES = {"TrendsInput": "abfss://{dataset}@a.dfs.core.windows.net", "TrendsOutput": "abfss://o@a"}
FILE = '{"file": "abfss://jobs@a/event_trends.py"}'
TASK = '{"spark_python_task": {"python_file": "dbfs:/event_trends.py"}}'
LIVY = {"TrendsSubmitter": "livy", "TrendsRequest": FILE, **PLACES}


def parse(**changes: str) -> tuple[settings.Settings, list[str]]:
    return settings.parse(changes)


def test_without_a_submitter_no_other_setting_of_the_job_is_required() -> None:
    loaded, problems = parse()
    assert (loaded.nightly.submitter, problems) == ("", [])


@pytest.mark.parametrize(
    ("environ", "complaint"),
    [
        ({"TrendsSubmitter": "yarn"}, "must be one of local, livy, synapse, databricks"),
        ({"TrendsSubmitter": "local"}, "TrendsInput = '': must be set if"),
        ({**LIVY, "TrendsEndpoint": "http://livy.example"}, "TrendsEndpoint = 'http://livy"),
        ({**LIVY, "TrendsSubmitter": "synapse", "TrendsEndpoint": "https://w.net"}, "sparkPools"),
        (
            {**LIVY, "TrendsEndpoint": "https://x/livy", "TrendsRequest": "{}"},
            "must contain 'file'",
        ),
        ({**LIVY, "TrendsRequest": "{"}, "TrendsRequest: must be JSON"),
        ({**LIVY, "TrendsRequest": "[1]"}, "must be a JSON object"),
        ({"TrendsArguments": "--event 'open"}, "TrendsArguments"),
        ({"TrendsDataSets": "a b"}, "names of blob containers"),
        ({"TrendsAttempts": "0"}, "TrendsAttempts = 0: must be 1 to 20"),
        ({"TrendRunsSchedule": "often"}, "TrendRunsSchedule"),
        (
            {"TrendsSubmitter": "local", "TrendsDataSets": "one, two", "TrendsInput": "x"},
            "must contain {dataset}",
        ),
    ],
)
def test_a_problem_names_its_setting_and_its_bound(environ: dict[str, str], complaint: str) -> None:
    _, problems = parse(**environ)
    assert complaint in "\n".join(problems)


def test_the_job_is_given_its_input_output_date_and_further_arguments() -> None:
    day = date(2026, 2, 28)
    run = runs.started("sales", Demand(day, NOW, "r"), None, 1, "token", NOW, RunPolicy())
    job = runs.job(run, ["abfss://{dataset}@a"], "out/{dataset}", ["--event", "open file"])
    text = "--input abfss://sales@a --output out/sales --date 2026-02-28 --event"
    assert job.arguments == (*text.split(), "open file")
    token = runs.new_token(day, 3)
    assert token.startswith("event-trends-2026-02-28-3-")
    assert len(token) <= 64
    assert token != runs.new_token(day, 3)


def test_every_input_of_a_data_set_reaches_the_job() -> None:
    """The setting, the submitted arguments and the job's options are three parts."""
    places = "https://a.blob.core.windows.net/{dataset}, https://a.blob.core.windows.net/metrics"
    loaded, problems = parse(
        TrendsSubmitter="local", TrendsInput=places, TrendsOutput="{dataset}",
        TrendsDataSets="events,requests", TrendsArguments="--control c.csv",
    )  # fmt: skip
    assert problems == []
    run = runs.started("events", Demand(NOW.date(), NOW, ""), None, 1, "t", NOW, RunPolicy())
    night = loaded.nightly
    job = runs.job(run, night.inputs, night.output, night.arguments)
    options = options_of(job.arguments, NOW.date())
    assert options.inputs == tuple(places.replace("{dataset}", "events").split(", "))
    assert (options.output, options.control, options.since) == ("events", "c.csv", NOW.date())
    source = source_of(options.inputs, Mock())
    assert isinstance(source, SeveralFiles)
    assert [source.name for source in source.sources] == list(options.inputs)


def app_of(environ: Mapping[str, str]) -> App:
    return App({**SINGLE, "AzureWebJobsStorage": "UseDevelopmentStorage=true", **environ})


@pytest.mark.parametrize("also", [{}, {"TrendsSubmitter": "local", "TrendsDataSets": "others"}])
async def test_without_a_job_processing_a_data_set_is_only_logged(
    also: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    work = DatasetWork("sales", "2026-03-01", NOW, NOW)
    async with app_of({**PLACES, **also}) as app:
        await app.nightly.recompute.recompute(work)
    assert "sales:2026-03-01 is due: no job is configured to process it" in caplog.text


async def test_the_settings_determine_the_run_policy_and_the_submitter() -> None:
    of = {"TrendsSubmitter": "local", "TrendsAttempts": "5", "TrendsRetryMinutes": "2"}
    async with app_of({**PLACES, **of}) as app:
        assert isinstance(app.nightly.submitter, LocalSubmitter)
        policy = app.nightly.run_manager.policy
        assert (policy.attempts, policy.retry_delay) == (5, timedelta(minutes=2))


SYNAPSE = "https://w.dev.azuresynapse.net/livyApi/versions/2019-11-01-preview/sparkPools/pool1"
DATABRICKS = "https://adb-1.7.azuredatabricks.net"


@pytest.mark.parametrize(
    ("submitter", "endpoint", "request_", "kind"),
    [
        ("livy", "https://c.azurehdinsight.net/livy", FILE, "BatchSubmitter"),
        ("livy", f"https://{FABRIC}/v1/workspaces/w", FILE, "BatchSubmitter"),
        ("synapse", SYNAPSE, FILE, "BatchSubmitter"),
        ("databricks", DATABRICKS, TASK, "DatabricksSubmitter"),
    ],
)
async def test_each_submitter_is_built_from_its_settings(
    submitter: str, endpoint: str, request_: str, kind: str
) -> None:
    place = {"TrendsEndpoint": endpoint, "TrendsRequest": request_}
    async with app_of({**PLACES, "TrendsSubmitter": submitter, **place}) as app:
        assert type(app.nightly.submitter).__name__ == kind
