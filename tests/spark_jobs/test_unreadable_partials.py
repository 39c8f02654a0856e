"""Partials of another format whose files are deleted: their published totals stay.

A lifecycle rule deletes exported files after some weeks, and a new version may change its format.
"""

from __future__ import annotations

import json
import shutil
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shared.sampling.trend_rows import Trend
from shared.sampling.unreadable import PREFIX, last_warning
from spark_jobs import event_trends
from spark_jobs.engine import Engine
from spark_jobs.job import Done, run_job
from spark_jobs.options import Options
from spark_jobs.publish.stores import LocalStore
from tests.spark_jobs.telemetry import compute, event, put
from tests.spark_jobs.test_publishing import SHAPE, Counting, Sized, counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = ("2017-05-10", "2017-05-11", "2017-05-12", "2017-05-13")
GONE, LEFT = DAYS[:2], DAYS[2:]


class OldFormat(Engine):
    """An older version of the job, with partials that the current version cannot read."""

    name = "blocks-0"


def records(done: Done) -> dict[str, int]:
    return {trend.date: trend.records for trend in done.trends}


def of(done: Done, day: str) -> Trend:
    (found,) = [trend for trend in done.trends if trend.date == day]
    return found


def export(data: Path) -> None:
    for number, day in enumerate(DAYS, 1):
        put(data, day, [event(f"{day}T09:00:{n:02d}") for n in range(10 * number)], hour=9)


def delete(data: Path, days: tuple[str, ...]) -> None:
    for day in days:
        for folder in data.rglob(f"d={day[-2:]}"):
            shutil.rmtree(folder)


def test_dates_that_cannot_be_read_again_keep_their_totals_and_all_others_are_recomputed(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = OldFormat, Engine
    data, output = tmp_path / "in", tmp_path / "out"
    export(data)
    first = compute(old(spark), data, output, "first")
    delete(data, GONE)
    late = [event(f"{GONE[1]}T23:00:00"), event(f"{LEFT[1]}T11:00:00")]
    put(data, LEFT[1], late, hour=11)

    done = compute(new(spark), data, output, "second", dates=(LEFT[1], LEFT[1]))
    assert records(done) == {GONE[0]: 10, GONE[1]: 20, LEFT[0]: 30, LEFT[1]: 41}
    for day in GONE:
        assert of(done, day).adjusted_sum == of(first, day).adjusted_sum
        assert any("cannot be read again" in text for text in of(done, day).warnings)
    assert not of(done, LEFT[1]).warnings
    gone = f"{GONE[0]} to {GONE[1]}"
    assert done.warning == (
        f"files of {gone}, because some or all of them are gone and their partials are in another"
        f" format; the published totals of {gone} stay"
    )

    # The command succeeds on the next night, too, and names the dates that it could not read.
    arguments = ["--input", str(data), "--output", str(output), "--measurement", "Amount"]
    code = event_trends.main([*arguments, "--date", LEFT[1], "--no-pictures"])
    assert code == 0
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "cannot be read again" in x]
    assert line == f"{PREFIX}{done.warning}"


def test_a_day_of_which_some_files_are_deleted_is_replaced_only_if_asked(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, output = tmp_path / "in", tmp_path / "out"
    for hour in range(4):
        put(data, DAYS[0], [event(f"{DAYS[0]}T{hour:02}:00:{n:02}") for n in range(10)], hour)
    arguments = ["--input", str(data), "--output", str(output), "--date", DAYS[0]]
    command = partial(event_trends.main, [*arguments, "--no-pictures", "--json"])

    def counted() -> tuple[list[int], str]:
        printed = capsys.readouterr()
        rows = [json.loads(line) for line in printed.out.splitlines()]
        return [row["records"] for row in rows], last_warning(printed.err.splitlines())

    assert command() == 0
    assert counted() == ([40], "")
    for hour in range(3):
        shutil.rmtree(next(data.rglob(f"h={hour:02}")))
    assert command() == 0
    kept = f"files of {DAYS[0]}, because some of them are gone; the published records stay"
    assert counted() == ([], f"{kept} unless --replace is given")
    assert event_trends.main([*arguments, "--no-pictures", "--json", "--replace"]) == 0
    assert counted() == ([10], "")
    shutil.rmtree(next(data.rglob("d=10")))
    assert command() == 0
    kept = f"files of {DAYS[0]}, because all of them are gone; the published records stay"
    assert counted() == ([], kept)


# --- the same rules without Spark -------------------------------------------------------


def night(
    output: Path, sizes: dict[str, int], run_id: str, engine: Engine, dates: tuple[str, str]
) -> Done:
    found = Sized(sizes={f"2017-05-{day}": size for day, size in sizes.items()})
    since, until = (date.fromisoformat(f"2017-05-{day}") for day in dates)
    request = Options(SHAPE, run_id, date(2017, 7, 1), since, until)
    return run_job(found, LocalStore(output), engine, request)


def test_a_date_in_another_format_with_some_files_deleted_is_not_read_again(tmp_path: Path) -> None:
    """A lifecycle rule deletes files one by one; the remaining ones would look like lost events."""
    night(tmp_path, {"15": 9, "16": 4}, "first", Counting("old"), ("15", "16"))
    done = night(tmp_path, {"15": 3, "16": 5}, "second", Counting("new"), ("16", "16"))
    assert counts(done.trends) == {15: 9, 16: 5}
    assert "files of 2017-05-15, because some or all of them are gone" in done.warning


def test_partials_that_cannot_be_read_are_kept_for_an_engine_that_can(tmp_path: Path) -> None:
    """Returning to the old engine, or restoring the files, repairs the date."""
    night(tmp_path, {"15": 9, "16": 4}, "first", Counting("old"), ("15", "16"))
    done = night(tmp_path, {"16": 5}, "second", Counting("new"), ("16", "16"))
    assert done.warning.startswith("files of 2017-05-15, ")
    assert (tmp_path / "partials/first/blob_date=2017-05-15/part").exists()
    back = night(tmp_path, {"16": 6}, "third", Counting("old"), ("16", "16"))
    assert not back.warning
    assert counts(back.trends) == {15: 9, 16: 6}
    again = night(tmp_path, {"15": 9, "16": 7}, "fourth", Counting("new"), ("16", "16"))
    assert not again.warning
    assert counts(again.trends) == {15: 9, 16: 7}


@pytest.mark.parametrize("engine", ["old", "new"])
def test_a_range_with_deleted_files_leaves_the_dates_that_had_records(
    engine: str, tmp_path: Path
) -> None:
    """A lifecycle rule may have deleted the files: that does not mean that nothing was sent."""
    night(tmp_path, {"14": 7, "15": 9, "16": 4}, "first", Counting("old"), ("14", "16"))
    done = night(tmp_path, {"16": 5}, "second", Counting(engine), ("14", "16"))
    assert counts(done.trends) == {14: 7, 15: 9, 16: 5}
