"""Results are the same to the last byte, however work is divided, ordered, repeated or killed."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext

from shared.sampling.series import Shape
from spark_jobs import engine as engine_module
from spark_jobs.engine import Engine
from spark_jobs.read import files, lines
from spark_jobs.read.sources import Files
from spark_jobs.sums import totals
from tests.spark_jobs.hostile import hostile_files
from tests.spark_jobs.telemetry import batches_of_task, compute, event, put, total_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHAPE = Shape("Amount", ("tenant",), "Australia/Adelaide")
TABLES = ("sums.jsonl", "operations.jsonl", "trends.jsonl")
LATE_DAY, LATE_HOUR = "2017-05-17", 3
Published = dict[str, bytes]


@pytest.fixture(scope="module", autouse=True)
def tiny_chunks() -> Iterator[None]:
    """Splits lines, operations and copies between many tasks, and dates into many buckets: 151
    buckets, so that the 64 parts have several of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "CHUNK_BYTES", 20_000)
        patch.setattr(files, "FILE_COST_BYTES", 1_000)
        patch.setattr(totals, "BUCKET_RECORDS", 1)
        yield


def late_lines() -> list[str]:
    """Returns records of earlier dates, among them copies and parts of other operations."""
    rng = random.Random(7)
    return [
        event(
            f"2017-05-{15 + n % 3}T{n % 5:02d}:30:{n % 60:02d}",
            OperationId=f"{n % 11}" if n % 3 else "",
            ItemCount=1 + n % 4,
            Measurements={"Amount": rng.random()},
        )
        for n in range(200)
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("in")
    hostile_files(root, 3)
    put(root, LATE_DAY, late_lines(), LATE_HOUR)
    return root


def published(output: Path, run_id: str = "run") -> Published:
    return {name: (output / "results" / run_id / name).read_bytes() for name in TABLES}


@pytest.fixture(scope="module")
def expected_bytes(
    data: Path, classic_session: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Published:
    output = tmp_path_factory.mktemp("once")
    compute(Engine(classic_session), data, output, shape=SHAPE)
    found = published(output)
    assert len(found["sums.jsonl"].splitlines()) > 20
    return found


@pytest.mark.parametrize("chunk_bytes", [8_000, 1 << 20])
def test_other_partition_counts_give_the_same_bytes(
    chunk_bytes: int,
    expected_bytes: Published,
    data: Path,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr("spark_jobs.engine.TASK_RECORDS", chunk_bytes // 300)
    compute(Engine(spark), data, tmp_path / "out", shape=SHAPE)
    assert published(tmp_path / "out") == expected_bytes


def test_another_order_of_files_gives_the_same_bytes_whatever_the_kind_of_session(
    expected_bytes: Published,
    data: Path,
    each_spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = Files.files
    monkeypatch.setattr(Files, "files", lambda self: listed(self)[::-1])
    compute(Engine(each_spark), data, tmp_path / "out", shape=SHAPE)
    assert published(tmp_path / "out") == expected_bytes


def test_a_late_and_an_appended_blob_give_the_bytes_of_reading_all_at_once(
    expected_bytes: Published, data: Path, spark: SparkSession, tmp_path: Path
) -> None:
    engine, output = Engine(spark), tmp_path / "out"
    data = Path(shutil.copytree(data, tmp_path / "in"))
    (late,) = [p for p in data.rglob("PT1H.json") if f"d={LATE_DAY[-2:]}/h=03" in str(p)]
    content = late.read_bytes()
    late.unlink()
    compute(engine, data, output, "before", SHAPE)
    assert published(output, "before") != expected_bytes
    late.write_bytes(content[: len(content) // 2])
    compute(engine, data, output, "late", SHAPE, (LATE_DAY, LATE_DAY))
    assert published(output, "late") != expected_bytes
    late.write_bytes(content)
    compute(engine, data, output, "appended", SHAPE, (LATE_DAY, LATE_DAY))
    assert published(output, "appended") == expected_bytes


Work = Callable[..., Any]


def dying_at_first(work: Work, folder: Path, deaths: int) -> Work:
    """Wraps a task's work: its process exits at the end of the first attempt of some tasks."""

    def working(*arguments: Any, **more: Any) -> Any:
        yield from work(*arguments, **more)
        task = TaskContext.get()
        if task and task.attemptNumber() == 0 and task.partitionId() < deaths:
            (folder / f"{task.stageId()}-{task.partitionId()}").touch()
            os._exit(1)

    return working


def test_three_killed_executors_give_the_same_bytes(
    expected_bytes: Published,
    data: Path,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kills processes that run Spark's tasks, while they read and while they add."""
    killed = tmp_path / "killed"
    killed.mkdir()
    monkeypatch.setattr(engine_module, "batches_of", dying_at_first(lines.batches_of, killed, 3))
    monkeypatch.setattr(totals, "sums_of_blocks", dying_at_first(totals.sums_of_blocks, killed, 1))
    compute(Engine(spark), data, tmp_path / "out", shape=SHAPE)
    assert len(list(killed.iterdir())) >= 3
    assert published(tmp_path / "out") == expected_bytes


@pytest.mark.parametrize("seed", range(3))
def test_sums_without_spark_are_the_same_whatever_the_order_of_lines(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile_files(tmp_path, seed)
    source, rng = Files([str(tmp_path)]), random.Random(seed)
    found = []
    for chunk_bytes in (1 << 20, 20_000, 3_000):
        monkeypatch.setattr(files, "CHUNK_BYTES", chunk_bytes)
        tasks = files.spread(source.files())
        rng.shuffle(tasks)
        batches = [batch for task in tasks for batch in batches_of_task(source, task, SHAPE)]
        rng.shuffle(batches)
        found.append(total_of(batches))
    assert repr(found[0]) == repr(found[1]) == repr(found[2])  # NaN does not equal itself
