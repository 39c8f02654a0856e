"""Both engines give what the pure core gives, on hostile telemetry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext

from shared.sampling.estimates import EventEstimates
from spark_jobs.engine import Engine, Extracted, Totals
from spark_jobs.engine_duckdb import DuckDbEngine
from spark_jobs.engine_spark import SparkEngine, totals_of
from spark_jobs.errors import JobError
from spark_jobs.publish.stores import LocalStore
from spark_jobs.read import extraction, files, tally
from spark_jobs.read.duck_reading import read_chunks
from spark_jobs.read.sources import LocalFiles
from spark_jobs.shape import Shape
from spark_jobs.sums.duck_totals import totals
from tests.spark.hostile import hostile_files
from tests.spark.oracle import expected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHAPES = [
    Shape("Amount"),
    Shape("DurationMs", ("tenant", "AppRoleName"), "Australia/Adelaide"),
    Shape(),
]


@pytest.fixture(params=[SparkEngine, DuckDbEngine])
def engine(request: pytest.FixtureRequest, spark: SparkSession) -> Engine:
    made: Engine = request.param(spark)
    return made


@pytest.fixture(autouse=True)
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines, operations and copies are torn apart among many tasks."""
    monkeypatch.setattr(files, "CHUNK_BYTES_MIN", 12_000)


@pytest.mark.parametrize("seed", range(2))
def test_an_engine_gives_what_the_pure_core_gives(
    engine: Engine, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "FILE_LINES", (10_000, 7)[seed])
    monkeypatch.setattr(tally, "LINES_MAX", (10_000, 5)[seed])
    shape = SHAPES[seed % len(SHAPES)]
    hostile_files(tmp_path / "in", seed)
    source = LocalFiles(str(tmp_path / "in"))
    partials = (tmp_path / "partials").as_uri()
    store = LocalStore(tmp_path / "quarantine")
    found = engine.extract(source, source.files(), shape, partials, store.write)
    dates = {day for blob_date in found.blob_dates.values() for day in blob_date.event_dates}
    read = {day: partials for day, blob_date in found.blob_dates.items() if blob_date.records}
    quarantined = sum(blob_date.quarantined for blob_date in found.blob_dates.values())
    assert_right(tmp_path / "in", shape, engine.total(read, dates), quarantined)
    assert_set_apart(tmp_path / "quarantine", found)
    again, some = (tmp_path / "again").as_uri(), sorted(read)[::2]
    engine.extract(
        source, [f for f in source.files() if f.blob_date in some], shape, again, store.write
    )
    of_two_runs = {day: again if day in some else partials for day in read}
    assert_right(tmp_path / "in", shape, engine.total(of_two_runs, dates), quarantined)


def test_a_tally_that_is_lost_on_its_way_fails_the_job(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile_files(tmp_path / "in", 1)
    source, store = LocalFiles(str(tmp_path / "in")), LocalStore(tmp_path / "out")
    lost = iter([True])
    add = tally.Tally.add
    monkeypatch.setattr(
        tally.Tally, "add", lambda self, more: self if next(lost, False) else add(self, more)
    )
    with pytest.raises(JobError, match="nothing was changed: run it again"):
        engine.extract(source, source.files(), SHAPES[0], store.url("partials"), store.write)


def test_what_a_task_counts_before_it_fails_and_is_tried_again_is_counted_once(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile_files(tmp_path / "in", 1)
    source, store = LocalFiles(str(tmp_path / "in")), LocalStore(tmp_path / "out")
    wanted = engine.extract(source, source.files(), SHAPES[0], store.url("once"), store.write)
    failed, counted = tmp_path / "failed", tally.counted
    failed.mkdir()

    def failing_at_first(batches: Any, tally: Any) -> Any:
        yield from counted(batches, tally)
        task = TaskContext.get()
        if task and task.attemptNumber() == 0:
            (failed / str(task.partitionId())).touch()
            raise RuntimeError("the first attempt fails when all is counted")

    monkeypatch.setattr(extraction, "counted", failing_at_first)
    found = engine.extract(source, source.files(), SHAPES[0], store.url("twice"), store.write)
    assert len(list(failed.iterdir())) > 5
    assert found == wanted
    dates = {day for blob_date in found.blob_dates.values() for day in blob_date.event_dates}
    once, twice = (
        engine.total(dict.fromkeys(found.blob_dates, store.url(folder)), dates)
        for folder in ("once", "twice")
    )
    assert once.days == twice.days


@pytest.mark.parametrize("seed", range(2, 6))
def test_tasks_of_the_fast_engine_give_what_the_pure_core_gives(seed: int, tmp_path: Path) -> None:
    shape = SHAPES[seed % len(SHAPES)]
    hostile_files(tmp_path, seed)
    source = LocalFiles(str(tmp_path))
    tasks = files.spread(source.files(), cores=2)
    assert len(tasks) > 5
    rows = [
        row
        for task in tasks
        for batch in read_chunks(source, task, shape)
        for row in batch.to_pylist()
    ]
    found, quarantined = _total(rows)
    assert_right(tmp_path, shape, found, quarantined)


def test_records_that_differ_in_a_repeated_entry_are_no_copies(tmp_path: Path) -> None:
    """Whether they are read many at once, singly (an entry is no number), or in a body."""
    line = json.dumps(
        {"Type": "AppEvents", "time": "2017-05-15T09:30:01.1234567Z", "Name": "Paid", "P": "?"}
    ).replace('"P": "?"', '"Properties": {"tenant": "t1"%s}, "Measurements": {%s}')
    written = [
        line % ("", '"Amount": 1'),
        line % (', "tenant": "t2"', '"Amount": 1'),
        line % (', "tenant": "t3"', '"Amount": 1'),
        line % ("", '"Amount": 1, "B": 2, "Amount": 5'),
        line % ("", '"Amount": 1, "Amount": 5, "B": 2'),
        line % ("", '"Amount": 1, "Amount": "much"'),
    ]
    text = "\n".join([*written, *(f'{{"records": [{one}, {one}]}}' for one in written)])
    (tmp_path / "PT1H.json").write_text(text)
    source = LocalFiles(str(tmp_path))
    chunks = [files.Chunk(file, 0, file.size_bytes) for file in source.files()]
    rows = [r for batch in read_chunks(source, chunks, SHAPES[0]) for r in batch.to_pylist()]
    found, _ = _total(rows)
    (sums,) = found.days.values()
    ((figures, copies, _),) = expected(tmp_path, SHAPES[0])[0].values()
    assert (sums.records, sums.duplicates, sums.raw_sum) == (5, 13, 5)
    assert (figures.records, copies, figures.raw_sum) == (5, 13, 5)


def _total(rows: list[dict[str, Any]]) -> tuple[Totals, int]:
    """Of what tasks made of lines, and how many lines could not be read."""
    blocks = [(row["event_date"], row["block"]) for row in rows if row["reason"] is None]
    return totals_of(totals(blocks).to_pylist()), len(rows) - len(blocks)


def assert_set_apart(folder: Path, found: Extracted) -> None:
    """Every line that could not be read is there, by blob date, for the reason counted."""
    lines = {
        day.name: [
            json.loads(line) for file in day.iterdir() for line in file.read_bytes().splitlines()
        ]
        for day in folder.iterdir()
    }
    counts = {day: one.quarantined for day, one in found.blob_dates.items() if one.quarantined}
    assert {day: len(rows) for day, rows in lines.items()} == {
        f"blob_date={day}": count for day, count in counts.items()
    }
    rows = [row for some in lines.values() for row in some]
    for complaint in found.complaints:
        alike = [
            row
            for row in rows
            if (row["reason"], row["field"]) == (complaint.reason, complaint.field)
        ]
        assert len(alike) == complaint.count
        assert min((row["file"], row["detail"]) for row in alike) == (
            complaint.file,
            complaint.detail,
        )


def assert_right(root: Path, shape: Shape, found: Totals, quarantined: int) -> None:
    wanted, wanted_quarantined = expected(root, shape)
    assert quarantined == wanted_quarantined > 20
    computed = {
        (day, series.kind, series.event, series.dims): (sums, found.hours[day, series])
        for (day, series), sums in found.days.items()
    }
    assert set(computed) == set(wanted)
    for key, (figures, copies, late) in wanted.items():
        sums, hours = computed[key]
        assert (sums.records, sums.duplicates, sums.late) == (figures.records, copies, late), key
        close = pytest.approx(numbers(figures), rel=1e-9, abs=1e-9, nan_ok=True)
        assert numbers(sums.figures) == close, key
        assert sum(hour.records for hour in hours) == figures.records
    assert sum(copies for _, copies, _ in wanted.values()) > 10


def numbers(figures: EventEstimates) -> list[float]:
    return [
        figures.raw_sum,
        figures.sampling_rate_percent or 0,
        figures.effective_records,
        figures.weight_max,
        figures.doubtful_records,
        *[
            number
            for estimate in (figures.count, figures.total)
            for number in (
                estimate.value,
                estimate.standard_error,
                estimate.standard_error_by_record,
                estimate.low,
                estimate.high,
            )
        ],
    ]
