"""Other programs read the latest trends in one line, and a cluster has them as a table."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

from spark_jobs import event_trends
from spark_jobs.publish import publishing
from spark_jobs.publish.results import TABLES
from spark_jobs.publish.stores import LocalStore
from tests.spark_jobs.telemetry import event, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HALF = "Paid \ud83d"
"""A name that was cut in the middle of a character."""


READERS: Mapping[str, Callable[[str], Any]] = {
    "pandas": lambda path: pd.read_parquet(path).to_dict("records"),
    "polars": lambda path: pl.read_parquet(path).to_dicts(),
    "DuckDB": lambda path: duckdb.read_parquet(path).to_arrow_table().to_pylist(),
}


def run(output: Path, source: Path, *options: str) -> int:
    given = ["--input", str(source), "--output", str(output), "--no-pictures", *options]
    return event_trends.main(given)


@pytest.fixture(scope="module")
def two_nights(tmp_path_factory: pytest.TempPathFactory, classic_session: SparkSession) -> Path:
    folder = tmp_path_factory.mktemp("nights")
    hours = {"09": "Order", "10": HALF, "11": "Order"}
    lines = [event(f"2017-05-15T{at}:00:00", n, AppRoleName="web") for at, n in hours.items()]
    put(folder / "in", "2017-05-15", lines)
    for _ in range(2):
        assert run(folder / "out", folder / "in", "--dimension", "AppRoleName") == 0
    return folder / "out"


@pytest.mark.parametrize("reader", [*READERS, "Spark"])
def test_after_two_nights_a_reader_finds_each_event_once(
    reader: str, two_nights: Path, classic_session: SparkSession
) -> None:
    def read(path: str) -> Any:
        if reader == "Spark":
            return [row.asDict() for row in classic_session.read.parquet(path).collect()]
        return READERS[reader](path)

    trends = read(f"{two_nights}/latest/trends.parquet")
    hours = read(f"{two_nights}/latest/sums.parquet")
    found = {row["event"]: row for row in trends if row["records"]}
    assert {name: row["records"] for name, row in found.items()} == {
        "Order": 2,
        r"Paid \ud83d": 1,
    }
    assert {row["date"] for row in found.values()} == {date(2017, 5, 15)}
    assert {row["dimensions"] for row in (*trends, *hours)} == {'{"AppRoleName": "web"}'}
    assert sum(row["records"] for row in hours) == 3
    assert {str(row["hour"])[:10] for row in hours} == {"2017-05-15"}


def test_both_files_name_the_results_that_they_show(two_nights: Path) -> None:
    store = LocalStore(two_nights)
    newest = publishing._read(store, 2).results.encode()
    names = store.names("latest")
    assert names == ["sums.parquet", "trends.parquet"]
    for name in names:
        assert pq.read_schema(two_nights / "latest" / name).metadata[b"results"] == newest


class Overtaken(LocalStore):
    """Another run publishes while the first file is copied."""

    def write(self, name: str, content: bytes) -> None:
        super().write(name, content)
        if name.startswith("latest/") and not self.names("manifests")[1:]:
            publish_empty(self, 2)


def publish_empty(store: LocalStore, version: int) -> None:
    for name in TABLES:
        store.write(f"results/run{version}/{name}", b"%d" % version)
    manifest = b'{"version": %d, "results": "run%d"}' % (version, version)
    store.write(f"manifests/{version:09d}.json", manifest)


def test_a_run_that_is_overtaken_shows_the_results_of_the_newer_one(tmp_path: Path) -> None:
    store = Overtaken(tmp_path)
    publish_empty(store, 1)
    publishing.show_latest(store)
    assert [store.read(f"latest/{name}") for name in TABLES] == [b"2", b"2"]


def test_a_place_that_cannot_be_written_is_an_error_after_results_are_published(
    tmp_path: Path, two_nights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latest").write_text("a file")
    assert run(tmp_path, two_nights.parent / "in", "--date", "2017-05-15") == 1
    message = capsys.readouterr().err
    assert "latest" in message
    assert "the results themselves are published" in message
    assert (tmp_path / "manifests/000000001.json").exists()


def test_the_script_runs_where_a_launcher_compiles_it_without_a_file_name(tmp_path: Path) -> None:
    script = Path(event_trends.__file__)
    launcher = (
        f"import sys; sys.argv = ['x', '--help'];"
        f"code = compile(open({str(script)!r}).read(), {str(script)!r}, 'exec');"
        "exec(code, {'__name__': '__main__'})"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", launcher],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "--trust-weights" in done.stdout


def test_hours_are_times_in_utc(two_nights: Path) -> None:
    [hour, *_] = pl.read_parquet(two_nights / "latest/sums.parquet")["hour"]
    assert hour == datetime(2017, 5, 15, hour.hour, tzinfo=UTC)
