"""The settings of the nightly job, and the parts that are built from them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from unittest.mock import Mock

import pytest

from shared import settings
from shared.trends.datasets.processing import DatasetWork
from shared.trends.nightly import runs
from shared.trends.nightly.model import Demand, RunPolicy
from shared.wiring.app import App
from spark_jobs.options import parse as options_of
from spark_jobs.read.sources import Files, source_of
from tests.builders import NOW
from tests.settings.test_settings import SINGLE

PLACES = {"TrendsInput": "abfss://{dataset}@a.dfs.core.windows.net", "TrendsOutput": "abfss://o@a"}
FILE = '{"file": "abfss://jobs@a/event_trends.py"}'
LIVY = {"TrendsSubmitter": "livy", "TrendsRequest": FILE, **PLACES}


def parse(**changes: str) -> tuple[settings.Settings, list[str]]:
    return settings.parse(changes)


TWO_SETS = {
    "TrendsSubmitter": "local",
    "TrendsDataSets": "one, two",
    "TrendsInput": "{dataset}",
    "TrendsOutput": "{dataset}",
}


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
        ({**LIVY, "TrendsRequest": "[" * 100_000}, "TrendsRequest: must be JSON"),
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


def test_every_input_of_a_data_set_reaches_the_job() -> None:
    """The setting, the submitted arguments and the job's options are three parts."""
    places = "https://a.blob.core.windows.net/{dataset}, https://a.blob.core.windows.net/metrics"
    loaded, problems = parse(
        TrendsSubmitter="local", TrendsInput=places, TrendsOutput="{dataset}",
        TrendsDataSets="events,requests", TrendsArguments="--control c.csv",
    )  # fmt: skip
    assert problems == []
    run = runs.started("events", Demand(NOW.date(), NOW, ""), None, "t", NOW, RunPolicy())
    night = loaded.nightly
    job = runs.job(run, night.inputs, night.output, night.job_arguments)
    options = options_of(job.arguments, NOW.date())
    assert options.inputs == tuple(places.replace("{dataset}", "events").split(", "))
    assert (options.output, options.control, options.since) == ("events", "c.csv", NOW.date())
    source = source_of(options.inputs, Mock())
    assert isinstance(source, Files)
    assert source.locations == list(options.inputs)


@pytest.mark.parametrize(
    ("datasets", "tables", "name"),
    [
        ("events,requests", "--tables X", "events"),
        ("events", "--tables X", ""),
        ("a12,b12", "", ""),
    ],
)
def test_rows_of_several_data_sets_are_told_apart(datasets: str, tables: str, name: str) -> None:
    loaded, _ = parse(
        TrendsSubmitter="local", TrendsInput="in/{dataset}", TrendsOutput="out/{dataset}",
        TrendsDataSets=datasets, TrendsArguments=tables,
    )  # fmt: skip
    run = runs.started("events", Demand(NOW.date(), NOW, ""), None, "t", NOW, RunPolicy())
    night = loaded.nightly
    job = runs.job(run, night.inputs, night.output, night.job_arguments)
    assert options_of(job.arguments, NOW.date()).data_set == name


def test_the_token_of_a_run_names_its_day_and_attempt_and_is_unique() -> None:
    token = runs.new_token(NOW.date(), 3)
    assert token.startswith("event-trends-2026-03-01-3-")
    assert len(token) <= 64
    assert token != runs.new_token(NOW.date(), 3)


def app_of(environ: Mapping[str, str]) -> App:
    return App({**SINGLE, "AzureWebJobsStorage": "UseDevelopmentStorage=true", **environ})


@pytest.mark.parametrize("also", [{}, {"TrendsSubmitter": "local", "TrendsDataSets": "others"}])
async def test_without_a_job_processing_a_data_set_is_only_logged(
    also: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    work = DatasetWork("sales", "2026-03-01", NOW, NOW)
    async with app_of({**PLACES, **also}) as app:
        await app.nightly.recompute(work)
    assert "sales:2026-03-01 is due: no job is configured to process it" in caplog.text
