"""The functions of nightly runs with mocked bindings, from the timer to the end of a run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import azure.functions as func
import pytest

from local.twins.datasets import MemoryClaims
from local.twins.nightly import (
    MemoryInputs,
    MemoryNotifier,
    MemoryRunStore,
    MemorySubmitter,
)
from shared.trends.datasets.periods import Period
from shared.trends.datasets.processing import schedule_processing
from shared.trends.nightly.model import JobPhase, JobStatus, NightFailed, RunState
from shared.values.news import News
from tests.bindings.test_ingestion_functions import imported, names
from tests.bindings.test_messaging_functions import ENVIRON

SET = "insights-logs-appevents"
TODAY = date(2026, 3, 1)
YESTERDAY, BEFORE = TODAY - timedelta(days=1), TODAY - timedelta(days=2)
NIGHT = datetime(2026, 3, 1, 2, 30, tzinfo=UTC)
JOB = {
    **ENVIRON,
    "TrendsSubmitter": "local",
    "TrendsInput": "in/{dataset}",
    "TrendsOutput": "out",
    "TrendsArguments": "--tables T",
    "TrendsDataSets": SET,
}


class App:
    """function_app, freshly imported, with in-memory adapters and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = NIGHT
        self.store = MemoryRunStore(lambda: self.now)
        self.submitter, self.notifier = MemorySubmitter(), MemoryNotifier()
        self.inputs = MemoryInputs({SET: {YESTERDAY: NIGHT - timedelta(hours=2)}})
        self.module = imported(monkeypatch, JOB)
        parts = self.module.app
        parts.now = lambda: self.now
        parts.nightly.store, parts.nightly.inputs = self.store, self.inputs
        parts.nightly.submitter = self.submitter
        parts.data_sets.claims = MemoryClaims(parts.now)
        parts.data_sets.processing_sender = Mock()
        parts.notifications.notifier = self.notifier

    async def night(self) -> None:
        await self.module.nightly_trends(Mock(spec=func.TimerRequest))

    async def minutes_pass(self, minutes: float = 1) -> None:
        self.now += timedelta(minutes=minutes)
        await self.module.trend_runs(Mock(spec=func.TimerRequest))

    def end(self, phase: JobPhase, error: str = "") -> None:
        status = JobStatus(phase, "https://log", error)
        for token, last in self.submitter.statuses.items():
            if last.phase in (JobPhase.PENDING, JobPhase.RUNNING):
                self.submitter.statuses[token] = status

    @property
    def submitted(self) -> list[tuple[str, ...]]:
        return [job.arguments for job in self.submitter.jobs.values()]

    def states(self, day: date) -> list[RunState]:
        return [run.state for run in self.store.runs(SET, day)]


@pytest.fixture
async def app(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    app = App(monkeypatch)
    yield app
    await app.module.app.close()
    sys.modules.pop("function_app", None)


async def test_the_nightly_functions_exist_only_if_a_job_is_configured(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(app.module) >= {"nightly_trends", "trend_runs"}
    without = imported(monkeypatch, {"TrendsSubmitter": ""})
    assert not names(without) & {"nightly_trends", "trend_runs"}


async def test_yesterday_is_recomputed_once_and_again_when_late_data_come(app: App) -> None:
    await app.night()
    expected = f"--input in/{SET} --output out --date {YESTERDAY} --tables T"
    assert app.submitted == [tuple(expected.split())]
    app.end(JobPhase.SUCCEEDED)
    await app.minutes_pass()
    await app.night()
    assert app.states(YESTERDAY) == [RunState.SUCCEEDED]
    assert app.inputs.written is not None
    app.now += timedelta(days=1)
    app.inputs.written[SET] |= {YESTERDAY: app.now, TODAY: app.now}
    await app.night()
    app.end(JobPhase.SUCCEEDED)
    await app.minutes_pass()
    app.end(JobPhase.SUCCEEDED)
    await app.minutes_pass()
    assert app.states(YESTERDAY) == [RunState.SUCCEEDED] * 2
    assert app.states(TODAY) == [RunState.SUCCEEDED]
    assert app.notifier.news == []


async def test_timers_that_make_up_a_missed_night_together_start_one_run(app: App) -> None:
    """A host that starts fires all missed timers of a minute or longer at the same moment."""
    for _ in range(2):  # the host crashes after the runs, so it repeats them
        await asyncio.gather(app.night(), app.minutes_pass(40), app.night())
    assert app.states(YESTERDAY) == [RunState.SUBMITTED]
    assert len(app.submitted) == 1


async def test_a_night_that_is_made_up_after_midnight_still_computes_its_date(app: App) -> None:
    app.now += timedelta(days=1, hours=-1)
    await app.night()
    assert app.states(YESTERDAY) == [RunState.SUBMITTED]


async def test_processing_a_data_set_demands_its_dates_only_once_for_the_same_data(
    app: App,
) -> None:
    body = schedule_processing(SET, Period(), NIGHT, NIGHT - timedelta(days=1)).body
    message: Any = Mock(spec=func.ServiceBusMessage, sequence_number=1)
    message.get_body.return_value = body
    await app.module.process_dataset(message)
    await app.night()
    assert app.states(YESTERDAY) == [RunState.SUBMITTED]
    other: Any = Mock(spec=func.ServiceBusMessage, sequence_number=2)
    other.get_body.return_value = schedule_processing("sales", Period(), NIGHT, NIGHT).body
    await app.module.process_dataset(other)
    assert len(app.submitted) == 1


async def test_a_failing_job_runs_three_times_and_each_failure_is_notified(app: App) -> None:
    await app.night()
    source, told = app.module.app.notifications.sources["runs"], dict[str, News]()
    for minutes in (1, 10, 1, 20, 1, 600):
        app.end(JobPhase.FAILED, "no memory")
        await app.minutes_pass(minutes)
        observed = await source(app.now - timedelta(hours=1), app.now)
        told |= {news.news_id: news for news in observed.events}
    assert app.states(YESTERDAY) == [RunState.FAILED] * 3
    assert [news.severity for news in told.values()] == ["warning", "warning", "error"]
    last = list(told.values())[-1]
    assert last.text == "attempt 3 of 3 failed, given up: no memory"
    assert (last.link, last.subject) == ("https://log", f"{SET}/{YESTERDAY}")


async def test_a_nightly_run_without_data_is_notified(app: App) -> None:
    app.inputs.written = {SET: {BEFORE: NIGHT}}
    await app.night()
    (news,) = app.notifier.news
    assert (str(YESTERDAY) in news.headline, "no data" in news.text) == (True, True)
    assert app.states(BEFORE) == [RunState.SUBMITTED]


async def test_yesterday_is_recomputed_even_if_the_input_cannot_be_listed(app: App) -> None:
    app.inputs.written = None
    await app.night()
    assert "late data cannot be detected" in app.notifier.news[0].text
    app.end(JobPhase.SUCCEEDED)
    for _ in range(4):
        await app.minutes_pass()
        app.end(JobPhase.SUCCEEDED)
    await app.night()
    assert app.states(YESTERDAY) == [RunState.SUCCEEDED]


async def test_a_failed_nightly_flow_raises_so_that_the_host_retries_it(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_arguments: object) -> None:
        raise OSError("storage is down")

    monkeypatch.setattr(app.inputs.__class__, "newest", broken)
    with pytest.raises(NightFailed, match="storage is down"):
        await app.night()


@pytest.mark.parametrize(
    ("days", "phase", "kept"),
    [
        (400, JobPhase.SUCCEEDED, True),
        (401, JobPhase.SUCCEEDED, False),
        (900, None, True),
    ],
)
async def test_a_run_is_forgotten_after_400_days_unless_it_is_still_open(
    app: App, days: int, phase: JobPhase | None, kept: bool
) -> None:
    """Without its run, a date would be computed a second time beside it."""
    await app.night()
    if phase is not None:
        app.end(phase)
        await app.minutes_pass()
    app.now = NIGHT + timedelta(days=days - 1)
    app.inputs.written = {SET: {}}
    await app.night()
    assert bool(app.states(YESTERDAY)) is kept
