"""Warnings of the job about dates that it cannot read again: one notification, a line per night."""

from __future__ import annotations

import logging
from datetime import date, timedelta

import pytest

from local.twins.nightly import MemoryRunStore, MemorySubmitter
from shared.sampling.unreadable import PREFIX, last_warning, spans
from shared.trends.nightly.flows.run_manager import RunManager
from shared.trends.nightly.model import Demand, Job, JobPhase, JobStatus, RunPolicy, RunState
from shared.trends.nightly.trend_news import run_notices
from tests.builders import NOW

WARNING = "2 dates of files (2026-01-01 to 2026-01-02), since their files are gone"


async def test_the_same_warning_on_several_nights_is_notified_once_and_logged_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    store, submitter = MemoryRunStore(lambda: NOW), MemorySubmitter()

    def job(run: object) -> Job:
        return Job(getattr(run, "token", ""), ())

    def token(day: date, number: int) -> str:
        return f"{day}-{number}"

    run_manager = RunManager(store, submitter, RunPolicy(), job, token)
    for number in range(3):
        day = date(2026, 2, 26) + timedelta(days=number)
        await store.ask("events", Demand(day, NOW, "nightly run"))
        await run_manager.advance_runs("events")
        submitter.statuses[token(day, 1)] = JobStatus(JobPhase.SUCCEEDED, warning=WARNING)
        await run_manager.advance_runs("events")
        (run,) = store.runs("events", day)
        assert (run.state, run.warning) == (RunState.SUCCEEDED, WARNING)
    (news,) = run_notices(await store.read("events"), RunPolicy(), NOW)
    assert WARNING in news.text
    lines = [r for r in caplog.records if getattr(r, "action", "") == "trends_succeeded"]
    assert [line.levelno for line in lines] == [logging.WARNING] * 3
    assert all(WARNING in line.getMessage() for line in lines)


def test_consecutive_dates_are_shown_as_one_span_and_long_lists_are_cut() -> None:
    assert spans([]) == ""
    assert spans(["2026-03-01", "2026-02-28", "undated"]) == "2026-02-28 to 2026-03-01, undated"
    apart = [str(date(2026, 1, 1) + timedelta(days=2 * n)) for n in range(30)]
    assert spans(apart).endswith("2026-01-19 and 20 more")


def test_the_last_warning_is_found_in_a_log_whatever_precedes_it_on_the_line() -> None:
    log = ["{}", f"stderr: {PREFIX}1 date", f"26/03/01 INFO {PREFIX}2 dates ", "end"]
    assert last_warning(log) == "2 dates"
    assert last_warning(["warning: 3 lines quarantined"]) == ""
