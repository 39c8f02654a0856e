"""The whole job, with Spark on files of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shared.sampling.series import Shape
from shared.sampling.trend_rows import Trend
from spark_jobs.engine import Engine
from spark_jobs.job import Done
from tests.builders import trend_from_json
from tests.spark_jobs.telemetry import compute, event, pack, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def engine(spark: SparkSession) -> Engine:
    return Engine(spark)


def of(done: Done, day: str, name: str = "OrderPlaced") -> Trend:
    (found,) = [t for t in done.trends if t.date == day and t.event == name]
    return found


def test_copies_late_records_and_cut_lines_of_a_day_are_counted_correctly(
    engine: Engine, tmp_path: Path
) -> None:
    """All files are below the output folder, although its name has signs of URLs."""
    data, output = tmp_path / "in", tmp_path / "out" / "ä b%20c#d"
    first = event("2017-05-15T09:30:00", OperationId="a", ItemCount=4)
    cut = event("2017-05-15T09:31:00")[:50]
    nothing_to_sum = event("2017-05-15T10:00:00", Measurements=None, ItemCount=...)
    put(data, "2017-05-15", [first, first, nothing_to_sum, "", cut], hour=9)
    same_operation = event("2017-05-15T23:59:00", OperationId="a", ItemCount=4)
    late = event("2017-05-15T10:30:00", ItemCount=2, New={"a": 1})
    own = event("2017-05-16T00:10:00")
    pack(put(data, "2017-05-16", [own, first, late, same_operation, "{"], hour=0))

    done = compute(engine, data, output)

    day = of(done, "2017-05-15")
    assert (day.records, day.duplicates_removed, day.quarantined) == (4, 2, 1)
    assert day.adjusted_count == 4 + 1 + 4 + 2
    assert day.raw_sum == 7.5
    assert day.adjusted_sum == 2.5 * (4 + 4 + 2)
    operation, alone = 4 * 3 * 5.0**2, 2 * 1 * 2.5**2
    assert day.adjusted_sum_se == pytest.approx((operation + alone) ** 0.5)
    assert day.sampling_rate == pytest.approx(100 * 4 / 11)
    assert day.late_share == 0.25
    assert (of(done, "2017-05-16").records, of(done, "2017-05-16").quarantined) == (1, 1)

    published = output / "results" / done.manifest.results / "trends.jsonl"
    assert [trend_from_json(line) for line in published.read_text().splitlines()] == list(
        done.trends
    )
    quarantined = [
        json.loads(line)
        for file in (output / "quarantine" / "run").rglob("*.json")
        for line in file.read_text().splitlines()
    ]
    assert {(row["reason"], row["text"]) for row in quarantined} == {
        ("not_json", cut),
        ("not_json", "{"),
    }
    assert all(row["file"].endswith(("PT1H.json", "PT1H.json.gz")) for row in quarantined)
    assert [folder.name for folder in (tmp_path / "out").iterdir()] == [output.name]
    for folder in ("partials", "quarantine", "results"):
        assert {path.name for path in (output / folder).iterdir()} <= {"run", "run.started"}


def test_one_record_with_the_default_time_of_a_sender_does_not_end_the_run(
    engine: Engine, tmp_path: Path
) -> None:
    """A damaged file and a new column are named, too."""
    default = event("0001-01-01T00:00:00")
    put(tmp_path / "in", "2017-05-15", [default, event("2017-05-15T09:00:00", New=1)])
    packed = pack(put(tmp_path / "in", "2017-05-16", [event("2017-05-16T09:00:00")] * 200))
    packed.write_bytes(packed.read_bytes()[:-20])
    done = compute(engine, tmp_path / "in", tmp_path / "out")
    assert {trend.date for trend in done.trends} == {"2017-05-15", "2017-05-16"}
    assert (of(done, "2017-05-15").quarantined, of(done, "2017-05-15").complete) == (1, True)
    assert not of(done, "2017-05-16").complete
    told = {note.split(",")[0] for note in done.notes}
    assert told >= {
        "1 line not read (bad_field",
        "1 file read only in part",
        "column New is not documented",
    }


def test_a_rerun_replaces_the_dates_that_it_read_and_a_late_record_changes_its_own_date(
    engine: Engine, tmp_path: Path
) -> None:
    data, output = tmp_path / "in", tmp_path / "out"
    early = [event(f"2017-05-15T09:30:{n:02d}") for n in range(5)]
    put(data, "2017-05-15", early, hour=9)
    put(data, "2017-05-16", [event("2017-05-16T09:00:00")], hour=9)
    first = compute(engine, data, output, "first")
    assert of(first, "2017-05-15").records == 5

    put(data, "2017-05-16", [event("2017-05-16T09:00:00"), event("2017-05-15T23:00:00")], hour=9)
    put(data, "2017-05-16", [early[0]], hour=20)
    again = compute(engine, data, output, "second", dates=("2017-05-16", "2017-05-16"))
    late = of(again, "2017-05-15")
    assert (late.records, late.duplicates_removed, late.complete) == (6, 1, True)
    assert of(again, "2017-05-16").records == 1
    assert again.changed == {"2017-05-15", "2017-05-16"}

    for file in data.rglob("d=15/**/PT1H.json"):
        file.write_text(early[0] + "\n")
    shrunk = compute(engine, data, output, "third", dates=("2017-05-15", "2017-05-15"))
    assert (of(shrunk, "2017-05-15").records, of(shrunk, "2017-05-16").records) == (2, 1)


def test_series_are_split_by_dimension_and_days_by_time_zone(
    engine: Engine, tmp_path: Path
) -> None:
    lines = [
        event("2017-05-15T21:30:00", AppRoleName="web"),
        event("2017-05-15T22:30:00", AppRoleName="web"),
        event("2017-05-15T22:30:00", AppRoleName="jobs", Properties={"tenant": "t2"}),
    ]
    put(tmp_path / "in", "2017-05-15", lines, hour=22)
    shape = Shape("Amount", ("AppRoleName", "tenant"), "Europe/Amsterdam")
    done = compute(engine, tmp_path / "in", tmp_path / "out", shape=shape)
    found = {(t.date, *t.dimensions.values()): t.records for t in done.trends if t.records}
    assert found == {
        ("2017-05-15", "web", "t1"): 1,
        ("2017-05-16", "web", "t1"): 1,
        ("2017-05-16", "jobs", "t2"): 1,
    }
