"""Runs that die, meet or overlap: readers see whole results, and nothing that was read is lost."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import pytest

from shared.sampling.trend_rows import Trend
from spark_jobs.engine import Engine
from spark_jobs.errors import BadInput, BadOutput
from spark_jobs.job import Done, Request, run
from spark_jobs.publish import publishing
from spark_jobs.publish.stores import LocalStore
from spark_jobs.read.extracted import BlobDate, Extracted
from spark_jobs.read.files import SourceFile
from spark_jobs.read.reading import Quarantine
from spark_jobs.read.sources import Source
from spark_jobs.shape import Shape
from spark_jobs.sums.sums import Series, Sums, Totals

DAY = "2017-05-15"
SHAPE = Shape("Amount")
ORDERS = Series("event", "OrderPlaced")


@dataclass(frozen=True)
class Files:
    """A source whose files hold as many records as bytes, all of their own date."""

    sizes: Mapping[str, int]
    name: str = "files"

    def files(self) -> list[SourceFile]:
        return [SourceFile(f"{day}/PT1H.json", size) for day, size in self.sizes.items()]

    def read(self, path: str, start: int, end: int) -> bytes:
        raise NotImplementedError


@dataclass
class Counting(Engine):
    """An engine that counts bytes; partials are real files, so that deleted ones are missed."""

    name: str = "counting"
    fail: str = ""
    meet: threading.Barrier | None = field(default=None, compare=False)

    def extract(
        self,
        source: Source,
        files: Sequence[SourceFile],
        shape: Shape,
        folder: str,
        quarantine: Quarantine,
    ) -> Extracted:
        for file in files:
            path = Path(folder.removeprefix("file://")) / f"blob_date={file.blob_date}"
            path.mkdir(parents=True, exist_ok=True)
            (path / "part").write_text(str(file.size_bytes))
        if self.meet is not None:
            self.meet.wait(20)
        if self.fail == "extract":
            raise RuntimeError("task 3: spark_jobs.errors.BadInput: a.json: no permission\n at x")
        return Extracted(
            {f.blob_date: BlobDate(1, f.size_bytes, f.size_bytes, 0, (f.blob_date,)) for f in files}
        )

    def total(
        self, partials: Mapping[str, str], event_dates: Collection[str], records: int
    ) -> Totals:
        if self.fail == "total":
            raise RuntimeError("out of memory")
        counts = {
            day: int((Path(folder.removeprefix("file://")) / f"blob_date={day}/part").read_text())
            for day, folder in partials.items()
        }
        return Totals({(d, ORDERS): Sums(records=n, weight_sum=n) for d, n in counts.items()})


def compute(
    output: Path, sizes: Mapping[str, int], run_id: str, engine: Counting | None = None
) -> Done:
    days = [f"2017-05-{int(day):02d}" for day in sizes]
    found = Files(dict(zip(days, sizes.values(), strict=True)))
    request = Request(SHAPE, run_id, date(2017, 7, 1))
    return run(found, LocalStore(output), engine or Counting(), request)


def counts(trends: Sequence[Trend]) -> dict[int, int]:
    return {int(trend.date[-2:]): trend.records for trend in trends}


@pytest.mark.parametrize("step", ["extract", "total"])
def test_a_run_that_fails_leaves_everything_as_it_was(step: str, tmp_path: Path) -> None:
    compute(tmp_path, {"15": 3}, "first")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises((BadInput, RuntimeError)):
        compute(tmp_path, {"15": 9}, "second", Counting(fail=step))
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_what_a_task_says_of_its_input_is_the_message(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"^a\.json: no permission$"):
        compute(tmp_path, {"15": 9}, "run", Counting(fail="extract"))


@pytest.mark.parametrize("round_", range(5))
def test_runs_at_once_do_not_mix_and_none_is_lost(round_: int, tmp_path: Path) -> None:
    meet = threading.Barrier(4)
    sizes = {"15": 1, "16": 2, "17": 3, "18": 4}
    runs = [
        threading.Thread(target=compute, args=(tmp_path, {day: n}, f"r{day}", Counting(meet=meet)))
        for day, n in sizes.items()
    ]
    for thread in runs:
        thread.start()
    for thread in runs:
        thread.join()
    done = compute(tmp_path, {"19": 5}, "last")
    assert counts(done.trends) == {15: 1, 16: 2, 17: 3, 18: 4, 19: 5}
    assert done.manifest.version == 5


def test_of_two_that_read_the_same_date_the_one_that_saw_more_stays(tmp_path: Path) -> None:
    """The one that listed early and published late must not take newer records away."""
    meet = threading.Barrier(2)
    early = threading.Thread(
        target=compute, args=(tmp_path, {"15": 3}, "early", Counting(meet=meet))
    )
    early.start()
    while not (tmp_path / "partials/early").exists():
        pass
    compute(tmp_path, {"15": 8}, "late")
    meet.wait(20)
    early.join()
    assert publishing.latest(LocalStore(tmp_path)).entries[DAY].found.records == 8


def test_old_versions_go_and_what_is_needed_stays(tmp_path: Path) -> None:
    for number in range(1, 9):
        compute(tmp_path, {"15": number}, f"run{number}")
        done = compute(tmp_path, {"16": 1}, f"other{number}")
    assert counts(done.trends) == {15: 8, 16: 1}
    assert len(list((tmp_path / "manifests").iterdir())) == publishing.KEPT_VERSIONS
    assert len(list((tmp_path / "partials").iterdir())) <= 2 * publishing.KEPT_VERSIONS
    assert (tmp_path / "partials/run8").exists()


def test_what_a_killed_run_left_goes_after_a_week_and_what_counts_stays(tmp_path: Path) -> None:
    counted, killed = "20170515T020000-a", "20170601T020000-b"
    compute(tmp_path, {"15": 1}, counted)
    (tmp_path / f"partials/{killed}/blob_date=2017-05-15").mkdir(parents=True)
    compute(tmp_path, {"16": 1}, "20170607T020000-c")
    assert (tmp_path / "partials" / killed).exists()  # it may still work
    done = compute(tmp_path, {"17": 1}, "20170609T020000-d")
    assert not (tmp_path / "partials" / killed).exists()
    assert (tmp_path / "partials" / counted).exists()
    assert counts(done.trends) == {15: 1, 16: 1, 17: 1}


def test_figures_of_another_shape_are_refused(tmp_path: Path) -> None:
    compute(tmp_path, {"15": 3}, "first")
    request = Request(Shape("Items"), "second", date(2017, 7, 1))
    with pytest.raises(BadOutput, match="'measurement': 'Amount'"):
        run(Files({DAY: 3}), LocalStore(tmp_path), Counting(), request)


def test_another_engine_reads_everything_again_once(tmp_path: Path) -> None:
    """Its partials cannot be put together with those that are there."""
    compute(tmp_path, {"15": 3, "16": 4}, "first")
    found = Files({DAY: 3, "2017-05-16": 5})
    request = Request(SHAPE, "second", date(2017, 7, 1), since=date(2017, 5, 16))
    done = run(found, LocalStore(tmp_path), Counting("other"), request)
    assert counts(done.trends) == {15: 3, 16: 5}
    assert {entry.engine for entry in done.manifest.entries.values()} == {"other"}


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    compute(tmp_path, {"15": 3}, "first")
    (tmp_path / "manifests/000000002.json").write_text("{")
    with pytest.raises(BadOutput, match="000000002"):
        compute(tmp_path, {"15": 3}, "second")


def test_days_without_files_within_a_range_have_been_read(tmp_path: Path) -> None:
    """An event that has stopped must not go unseen."""
    done = compute(tmp_path, {"15": 3, "18": 3}, "first")
    assert counts(done.trends) == {15: 3, 16: 0, 17: 0, 18: 3}
    assert all(trend.complete for trend in done.trends)


def test_today_is_not_complete(tmp_path: Path) -> None:
    request = Request(SHAPE, "run", date(2017, 5, 15))
    (trend,) = run(Files({DAY: 3}), LocalStore(tmp_path), Counting(), request).trends
    assert not trend.complete
    assert trend.verdict == "uncertain"
