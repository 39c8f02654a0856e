"""The engine computes what the plain-Python oracle computes, on hostile telemetry."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext, cloudpickle

from shared.sampling.estimates import Sums
from shared.sampling.model import WITHOUT_LINE
from shared.sampling.series import Shape, Totals
from spark_jobs import engine as engine_module
from spark_jobs.engine import Engine
from spark_jobs.model import Extracted
from spark_jobs.publish.stores import LocalStore
from spark_jobs.read import files, lines
from spark_jobs.read.sources import Files
from spark_jobs.sums import totals
from tests.spark_jobs.hostile import hostile_files
from tests.spark_jobs.oracle import expected
from tests.spark_jobs.telemetry import batches_of_task, event, put, total_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHAPES = [
    Shape("Amount"),
    Shape("DurationMs", ("tenant", "AppRoleName"), "Australia/Adelaide"),
    Shape(),
]


@pytest.fixture(autouse=True)
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits lines, operations and copies between many tasks, and dates into many buckets."""
    monkeypatch.setattr(files, "CHUNK_BYTES", 20_000)
    monkeypatch.setattr(files, "FILE_COST_BYTES", 1_000)
    monkeypatch.setattr(totals, "BUCKET_RECORDS", 1)


def test_the_engine_computes_what_the_oracle_computes(
    each_spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    seed = int("connect" in request.node.name)
    engine, shape = Engine(each_spark), SHAPES[seed]
    hostile_files(tmp_path / "in", seed)
    source = Files([str(tmp_path / "in")])
    partials = (tmp_path / "partials").as_uri()
    quarantine = (tmp_path / "quarantine").as_uri()
    found = engine.extract(source, source.files(), shape, partials, quarantine)
    records = counted(found)
    read = {day for day, blob_date in found.blob_dates.items() if blob_date.records}
    quarantined = sum(blob_date.quarantined for blob_date in found.blob_dates.values())
    assert_right(tmp_path / "in", shape, engine.total({partials: read}, records)[0], quarantined)
    assert_quarantined(tmp_path / "quarantine", found)
    again, some = (tmp_path / "again").as_uri(), sorted(read)[::2]
    engine.extract(
        source, [f for f in source.files() if f.blob_date in some], shape, again, f"{quarantine}2"
    )
    of_two_runs = {again: some, partials: read.difference(some)}
    assert_right(tmp_path / "in", shape, engine.total(of_two_runs, records)[0], quarantined)


def test_records_of_tables_without_events_are_counted_and_not_quarantined(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In plain lines, and in bodies."""
    views = [event("2017-05-15T09:00:00", Type="AppPageViews", OperationId=str(n)) for n in "ab"]
    odd = event("2017-05-15T09:00:00", Type="AppPageViews", ItemCount="many")
    body = f'{{"records": [{views[0]}, {event("2017-05-15T09:00:00", Type="AppExceptions")}]}}'
    good = event("2017-05-15T09:00:00")
    put(tmp_path / "in", "2017-05-15", [*views, odd, body, f"[{views[1]}]", good])
    source = Files([str(tmp_path / "in")])
    folders = [(tmp_path / name).as_uri() for name in ("partials", "quarantine")]
    found = Engine(spark).extract(source, source.files(), Shape(), *folders)
    told = [(each.reason, each.field, each.count) for each in found.complaints]
    assert told == [
        ("other_table", "AppPageViews", 5),
        ("other_table", "AppExceptions", 1),
    ]
    assert [(day.quarantined, day.records) for day in found.blob_dates.values()] == [
        (0, {"2017-05-15": 1})
    ]
    assert not (tmp_path / "quarantine").exists()


def test_a_task_that_fails_after_reading_and_is_retried_counts_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(spark)
    hostile_files(tmp_path / "in", 1)
    source, store = Files([str(tmp_path / "in")]), LocalStore(tmp_path / "out")
    once_read = engine.extract(
        source, source.files(), SHAPES[0], store.url("once"), store.url("q1")
    )
    failed, batches_of = tmp_path / "failed", lines.batches_of
    failed.mkdir()

    def failing_at_first(pieces: Any, shape: Shape) -> Any:
        yield from batches_of(pieces, shape)
        task = TaskContext.get()
        if task and task.attemptNumber() == 0:
            (failed / str(task.partitionId())).touch()
            raise RuntimeError("the first attempt fails after it has read everything")

    monkeypatch.setattr(engine_module, "batches_of", failing_at_first)
    found = engine.extract(source, source.files(), SHAPES[0], store.url("twice"), store.url("q2"))
    assert len(list(failed.iterdir())) > 5
    assert found == once_read
    once, twice = (
        engine.total({store.url(folder): list(found.blob_dates)}, counted(found))
        for folder in ("once", "twice")
    )
    assert repr(once) == repr(twice)  # NaN equals itself here


def counted(found: Extracted) -> Counter[str]:
    """Returns the number of records of each event date."""
    counts = Counter[str]()
    for blob_date in found.blob_dates.values():
        counts.update(blob_date.records)
    return counts


@pytest.mark.parametrize("seed", range(2, 6))
def test_tasks_without_spark_compute_what_the_oracle_computes(seed: int, tmp_path: Path) -> None:
    shape = SHAPES[seed % len(SHAPES)]
    hostile_files(tmp_path, seed)
    source = Files([str(tmp_path)])
    tasks = files.spread(source.files())
    assert len(tasks) > 5
    batches = [batch for task in tasks for batch in batches_of_task(source, task, shape)]
    found, quarantined = total_of(batches)
    assert_right(tmp_path, shape, found, quarantined)


class Sent:
    """Stands for a session and its data frames, and keeps the functions that Spark would send."""

    def __init__(self) -> None:
        self.functions: list[bytes] = []

    def mapInArrow(self, function: Any, schema: Any) -> Sent:  # noqa: N802, the name of Spark
        del schema
        self.functions.append(cloudpickle.dumps(function))  # type: ignore[no-untyped-call]
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self


def test_functions_of_tasks_need_no_module_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would start later and need more memory, and these modules do not work in an archive."""
    sent: Any = Sent()
    Engine(sent).rows(Files(["in"]), [files.SourceFile("in/a.json", 9)], Shape(), "marker")
    totals.sums_by_part(sent, {"2017-05-15": 9}, 2, {})
    program = (
        "import pickle, sys; sys.modules.update(dict.fromkeys(['spark_jobs.engine',"
        " 'spark_jobs.session', 'spark_jobs.job']));"
        "[pickle.loads(bytes.fromhex(line)) for line in sys.stdin]"
    )
    found = "\n".join(function.hex() for function in sent.functions)
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=found, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (len(sent.functions), done.returncode) == (3, 0), done.stderr


def assert_quarantined(folder: Path, found: Extracted) -> None:
    """Asserts that quarantine holds each counted line, by blob date and reason."""
    lines = {
        day.name: [
            json.loads(line)
            for file in day.glob("part-*")
            for line in file.read_bytes().split(b"\n")
            if line
        ]
        for day in folder.glob("blob_date=*")
    }
    counts = {day: one.quarantined + one.bad_values for day, one in found.blob_dates.items()}
    assert {day: len(rows) for day, rows in lines.items()} == {
        f"blob_date={day}": count for day, count in counts.items() if count
    }
    rows = [row for some in lines.values() for row in some]
    assert not {row["reason"] for row in rows} & WITHOUT_LINE
    for complaint in [each for each in found.complaints if each.reason not in WITHOUT_LINE]:
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
        (day, series.kind, series.event, series.dims): sums_and_hours
        for (day, series), sums_and_hours in found.items()
    }
    assert set(computed) == set(wanted)
    for key, (figures, copies, late) in wanted.items():
        sums, hours = computed[key]
        assert (sums.records, sums.duplicates, sums.late) == (figures.records, copies, late), key
        close = pytest.approx(numbers(figures), rel=1e-9, abs=1e-9, nan_ok=True)
        assert numbers(sums) == close, key
        assert sum(hour.records for hour in hours) == figures.records
    assert sum(copies for _, copies, _ in wanted.values()) > 10


def numbers(figures: Sums) -> list[float]:
    return [
        figures.raw_sum,
        figures.sampling_rate_percent or 0,
        figures.effective_records,
        figures.weight_max,
        figures.doubtful,
        figures.exact,
        *[
            number
            for estimate in (figures.count, figures.total)
            for number in (
                estimate.value,
                estimate.standard_error,
                estimate.low,
                estimate.high,
            )
        ],
    ]
