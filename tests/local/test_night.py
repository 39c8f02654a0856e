"""The demo's nightly run: telemetry in Azurite, the timer's function, Spark, the trends."""

from __future__ import annotations

import asyncio
import gc
import warnings
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from rich.console import Group

from backtest.traces.reading import Trace, load_trace
from local.azurite import Azurite
from local.demo import night, night_telemetry
from local.demo.system import APP_DIR, local_system
from local.demo.view import _night
from shared.settings.connections import StorageConnection
from shared.trends.nightly import runs
from shared.trends.nightly.model import Demand, Job, JobPhase, RunPolicy, RunState
from shared.trends.store.runs import TableRunStore
from shared.trends.submitters.local import LocalSubmitter
from tests.local.polling import POLL_SECONDS, until

TODAY = date(2026, 3, 2)


def is_page(path: Path) -> bool:
    return path.read_text(encoding="utf-8").startswith("<!doctype html>")


async def test_a_nightly_run_of_the_demo_computes_the_trends_of_yesterday(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a history, which would start Spark once more."""
    monkeypatch.setattr(night_telemetry, "DAYS", 1)
    monkeypatch.setattr(night, "FOLDER", tmp_path)
    bundled = load_trace(APP_DIR / "local" / "data" / "nasa_http_1995-07-11_13.csv")
    trace = Trace(bundled.start, (10.0,), ())
    async with local_system(trace, 1, with_night=True) as system:
        nightly = system.night
        assert nightly is not None
        await until(lambda: nightly.over, 280)
        assert nightly.error == ""
        drawn = _night(nightly)
    trends = {trend["event"]: trend for trend in nightly.trends}
    assert set(trends) == {"OrderPlaced", "OrderConfirmed"}
    assert trends["OrderPlaced"]["sampling_rate"] == pytest.approx(25)
    assert trends["OrderPlaced"]["adjusted_count"] == 4 * trends["OrderPlaced"]["records"]
    assert sum(trend["duplicates_removed"] for trend in nightly.trends) == 12
    assert isinstance(drawn, Group)
    assert len(nightly.pages) == 2
    assert all(is_page(Path(page)) for page in nightly.pages)


async def test_a_demo_that_ends_with_the_nightly_run_leaves_no_processes_or_connections(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(night_telemetry, "DAYS", 1)
    monkeypatch.setattr(night, "FOLDER", tmp_path)
    nightly = night.planned(azurite.connection_string)
    jobs = LocalSubmitter(tmp_path / "runs", ("sleep", "60"))
    submitted = []

    async def fails() -> None:
        """Submit jobs that still run, and record a failed run."""
        submitted.extend([await jobs.submit(Job(token, ())) for token in ("a", "b")])
        await insert_failed_run(azurite)

    async with night.in_background(nightly, fails):
        while not nightly.over:  # noqa: ASYNC110  the demo must end before its next step
            await asyncio.sleep(0)
    assert nightly.error == "no memory"
    async with asyncio.timeout(30):
        for each in submitted:
            while (await jobs.status(each.handle)).phase is JobPhase.RUNNING:  # noqa: ASYNC110  a job has to be polled
                await asyncio.sleep(POLL_SECONDS)
    assert left_open() == []


async def insert_failed_run(azurite: Azurite) -> None:
    now = datetime.now(UTC)
    run = runs.started(
        night_telemetry.CONTAINER, Demand(TODAY, now, "night"), None, "t", now, RunPolicy()
    )
    store = TableRunStore(StorageConnection("Storage", azurite.connection_string))
    await store.write(replace(run, state=RunState.FAILED, error="no memory"))
    await store.close()


def left_open() -> list[str]:
    """Warnings about unused objects that were not closed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gc.collect()
    return [str(each.message) for each in caught]
