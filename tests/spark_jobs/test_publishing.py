"""Runs that fail or overlap: readers see whole results, and no record that was read is lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

import pytest

from shared.sampling.estimates import Sums
from shared.sampling.series import BlobDate, DaySums, Series, Shape, Totals
from shared.sampling.trend_rows import Trend
from spark_jobs.engine import Engine, Partials
from spark_jobs.errors import JobError
from spark_jobs.job import Done, run_job
from spark_jobs.model import Extracted, extracted
from spark_jobs.options import Options
from spark_jobs.publish import publishing
from spark_jobs.publish.results import Operations
from spark_jobs.publish.stores import LocalStore
from spark_jobs.read.files import SourceFile, bytes_by_date
from spark_jobs.read.sources import Files, Source

DAY = "2017-05-15"
SHAPE = Shape("Amount")
ORDERS = Series("event", "OrderPlaced")


@dataclass(frozen=True)
class Sized(Files):
    """A source of files with one record a byte, all of the file's own date, by date or by path."""

    locations: Sequence[str] = ("files",)
    sizes: Mapping[str, int] = field(default_factory=dict)

    def files(self) -> list[SourceFile]:
        names = {name if "/" in name else f"{name}/PT1H.json": n for name, n in self.sizes.items()}
        return [SourceFile(name, size) for name, size in names.items()]


@dataclass
class Counting(Engine):
    """An engine that counts bytes. Its partials are real files, so a wrong deletion is noticed."""

    name: str = "counting"
    fail: str = ""
    meet: threading.Barrier | None = field(default=None, compare=False)

    def extract(
        self,
        source: Source,
        files: Sequence[SourceFile],
        shape: Shape,
        folder: str,
        quarantine: str,
    ) -> Extracted:
        sizes = bytes_by_date(files)
        for day, size in sizes.items():
            path = Path(folder.removeprefix("file://")) / f"blob_date={day}"
            path.mkdir(parents=True, exist_ok=True)
            (path / "part").write_text(str(size))
        if self.meet is not None:
            self.meet.wait(20)
        if self.fail == "extract":
            raise RuntimeError("task 3: spark_jobs.errors.JobError: a.json: no permission\n at x")
        readable = self.fail != "no telemetry"
        dates = extracted(files, []).blob_dates.items()
        records = {d: {d: sizes[d]} if sizes[d] and readable else {} for d in sizes}
        return Extracted({day: replace(read, records=records[day]) for day, read in dates})

    def total(self, partials: Partials, records: Mapping[str, int]) -> tuple[Totals, Operations]:
        if self.fail == "total":
            raise RuntimeError("out of memory")
        counts = {
            day: int((Path(folder.removeprefix("file://")) / f"blob_date={day}/part").read_text())
            for folder, days in partials.items()
            for day in days
        }
        found = {(d, ORDERS): DaySums(Sums(n, valued=n, weight_sum=n)) for d, n in counts.items()}
        return found, {}


def compute(
    output: Path, sizes: Mapping[str, int], run_id: str, engine: Counting | None = None
) -> Done:
    days = [f"2017-05-{int(day):02d}" for day in sizes]
    found = Sized(sizes=dict(zip(days, sizes.values(), strict=True)))
    request = Options(SHAPE, run_id, date(2017, 7, 1))
    return run_job(found, LocalStore(output), engine or Counting(), request)


def counts(trends: Sequence[Trend]) -> dict[int, int]:
    return {int(trend.date[-2:]): trend.records for trend in trends}


@pytest.mark.parametrize("step", ["extract", "no telemetry", "total"])
def test_a_run_that_fails_changes_no_file(step: str, tmp_path: Path) -> None:
    compute(tmp_path, {"15": 3}, "first")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises((JobError, RuntimeError)):
        compute(tmp_path, {"15": 9}, "second", Counting(fail=step))
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_the_message_of_a_bad_input_in_a_task_is_that_of_the_job(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"^a\.json: no permission$"):
        compute(tmp_path, {"15": 9}, "run", Counting(fail="extract"))


@pytest.mark.parametrize("round_", range(5))
def test_concurrent_runs_are_all_published(round_: int, tmp_path: Path) -> None:
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


def test_of_two_runs_that_read_the_same_date_the_one_that_saw_more_bytes_stays(
    tmp_path: Path,
) -> None:
    """A run that lists files early and publishes late must not remove newer records."""
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
    assert publishing.latest(LocalStore(tmp_path), SHAPE).entries[DAY].read.records == {DAY: 8}


def test_event_dates_that_only_the_replaced_partial_had_are_computed_again(tmp_path: Path) -> None:
    """Otherwise they would keep totals that no partial supports."""
    computed = list[set[str]]()

    def publish(run_id: str, **read: Mapping[str, int]) -> None:
        base = publishing.latest(LocalStore(tmp_path), SHAPE)
        mine = {
            day: publishing.Entry(run_id, "counting", BlobDate(9, records))
            for day, records in read.items()
        }
        publishing.publish(
            LocalStore(tmp_path), base, mine, SHAPE, run_id, lambda _, d, __: computed.append(d)
        )

    publish("r1", monday={"sunday": 1, "monday": 5}, tuesday={"tuesday": 7})
    publish("r2", monday={"monday": 6, "friday": 1})
    publish("r3", monday={})
    assert computed == [
        {"sunday", "monday", "tuesday"},
        {"sunday", "monday", "friday"},
        {"monday", "friday"},
    ]


def test_readers_of_each_kept_version_find_its_files_however_old_they_are(tmp_path: Path) -> None:
    """A reader takes its time between the manifest and the files that it names."""
    runs = [f"2017{month:02}01T020000-a" for month in range(1, 10)]
    for number, run_id in enumerate(runs, 1):
        compute(tmp_path, {"15": number}, run_id)
    kept = runs[-publishing.KEPT_VERSIONS :]
    for folder in ("partials", "results"):
        assert {path.name for path in (tmp_path / folder).iterdir()} >= {*kept}
        assert not {path.name for path in (tmp_path / folder).iterdir()} & {*runs} - {*kept}


def test_superseded_folders_are_deleted_after_a_week_and_needed_ones_stay(tmp_path: Path) -> None:
    compute(tmp_path, {"14": 5}, "20170601T010000-needed")
    for day in range(1, 21):
        compute(tmp_path, {"15": day}, f"201706{day:02}T020000-a")
        done = compute(tmp_path, {"16": 1}, f"201706{day:02}T030000-b")
    assert counts(done.trends) == {14: 5, 15: 20, 16: 1}
    assert len(list((tmp_path / "manifests").iterdir())) == publishing.KEPT_VERSIONS
    superseded, needed = range(1, 13), range(13, 21)
    for folder in ("partials", "results"):
        names = {path.name for path in (tmp_path / folder).iterdir()}
        assert not names & {f"201706{day:02}T020000-a" for day in superseded}
        assert names >= {f"201706{day:02}T030000-b" for day in needed}
    assert (tmp_path / "partials/20170601T010000-needed").exists()


def test_folders_of_a_killed_run_are_deleted_after_a_week_and_needed_ones_stay(
    tmp_path: Path,
) -> None:
    counted, killed = "20170515T020000-a", "20170601T020000-b"
    compute(tmp_path, {"15": 1}, counted)
    (tmp_path / f"partials/{killed}/blob_date=2017-05-15").mkdir(parents=True)
    (tmp_path / f"partials/{killed}.started").touch()
    compute(tmp_path, {"16": 1}, "20170607T020000-c")
    assert (tmp_path / "partials" / killed).exists()  # the run may still be working
    done = compute(tmp_path, {"17": 1}, "20170609T020000-d")
    assert not list((tmp_path / "partials").glob(f"{killed}*"))
    assert (tmp_path / "partials" / counted).exists()
    assert counts(done.trends) == {15: 1, 16: 1, 17: 1}


@dataclass(frozen=True)
class Failing(LocalStore):
    """A folder in which one call fails once a manifest has been created."""

    call: tuple[str, ...]
    error: BaseException
    created: list[str] = field(default_factory=list)

    def _fail(self, *call: str) -> None:
        if self.created and call[: len(self.call)] == self.call:
            raise self.error

    def names(self, folder: str) -> list[str]:
        self._fail("names", folder)
        return super().names(folder)

    def read(self, name: str) -> bytes:
        self._fail("read", name)
        return super().read(name)

    def create(self, name: str, content: bytes) -> bool:
        is_new = super().create(name, content)
        self.created.append(name)
        self._fail("create")
        return is_new

    def delete(self, name: str) -> None:
        self._fail("delete", *name.split("/"))
        super().delete(name)


@pytest.mark.parametrize("kind", [JobError, OSError, KeyboardInterrupt])
@pytest.mark.parametrize(
    "call",
    [
        ("create",),
        ("names", "manifests"),
        ("names", "partials"),
        ("read", "manifests/000000004.json"),
        ("delete",),
        ("delete", "manifests"),
        ("delete", "partials"),
    ],
    ids=" ".join,
)
def test_a_failure_after_publishing_loses_no_published_result(
    call: tuple[str, ...], kind: type[BaseException], tmp_path: Path
) -> None:
    for day in range(1, 5):
        compute(tmp_path, {"15": day}, f"201706{day:02}T020000-a")
    store = Failing(tmp_path, call, kind("503"))
    request = Options(SHAPE, "20170620T020000-b", date(2017, 7, 1))
    found = Sized(sizes={DAY: 7, "2017-05-16": 8})
    if call == ("create",) or kind is KeyboardInterrupt:
        with pytest.raises(kind):
            run_job(found, store, Counting(), request)
    else:
        done = run_job(found, store, Counting(), request)
        assert any("503" in note for note in done.notes)
    assert (tmp_path / "partials/20170620T020000-b").exists()
    for path in (tmp_path / "manifests").iterdir():
        entries = json.loads(path.read_bytes())["entries"].values()
        assert all((tmp_path / "partials" / entry["run_id"]).exists() for entry in entries)
    done = compute(tmp_path, {"17": 9}, "20170621T020000-c")
    assert counts(done.trends) == {15: 7, 16: 8, 17: 9}
    assert not done.notes


def test_nothing_is_deleted_while_an_older_manifest_cannot_be_read(tmp_path: Path) -> None:
    for number in range(2):
        compute(tmp_path, {"15": 3}, f"20170601T02000{number}-a")
    (tmp_path / "manifests/000000001.json").write_text("{")
    (tmp_path / "partials/20170501T020000-old").mkdir()
    done = compute(tmp_path, {"16": 4}, "20170620T020000-b")
    assert counts(done.trends) == {15: 3, 16: 4}
    (note,) = done.notes
    assert "000000001.json" in note
    assert (tmp_path / "partials/20170501T020000-old").exists()
    for version in range(3):  # the manifest that cannot be read is deleted when it is old
        done = compute(tmp_path, {"17": 5}, f"2017062{version + 1}T020000-c")
    assert not done.notes
    assert not (tmp_path / "partials/20170501T020000-old").exists()


def test_a_run_that_fails_deletes_no_folder_that_a_manifest_names(tmp_path: Path) -> None:
    compute(tmp_path, {"15": 3}, "same")
    with pytest.raises(JobError):
        compute(tmp_path, {"16": 3}, "same", Counting(fail="extract"))
    assert counts(compute(tmp_path, {"17": 5}, "next").trends) == {15: 3, 17: 5}


HOURS = {f"2017-05-15/{hour:02}/PT1H.json": 10 for hour in range(24)}
TABLES = {f"{table}/{path}": n for table in ("events", "requests") for path, n in HOURS.items()}


def left(files: Mapping[str, int], hour: int) -> dict[str, int]:
    """Returns the files from that hour on."""
    return {path: n for path, n in files.items() if int(path.split("/")[-2]) >= hour}


@pytest.mark.parametrize(
    ("published", "found", "records"),
    [
        pytest.param(HOURS, left(HOURS, 14), 240, id="hours are deleted"),
        pytest.param(HOURS, left(HOURS, 1), 240, id="one hour is deleted"),
        pytest.param(HOURS, dict.fromkeys(left(HOURS, 23), 0), 240, id="an empty hour is left"),
        pytest.param(HOURS, {**HOURS, "2017-05-15/09/PT1H.json": 0}, 240, id="one is empty now"),
        pytest.param(HOURS, {}, 240, id="all are deleted"),
        pytest.param(HOURS, {"2017-05-16/00/PT1H.json": 1}, 240, id="only another date is left"),
        pytest.param(TABLES, HOURS, 480, id="one table is deleted"),
        pytest.param(left(HOURS, 12), HOURS, 240, id="late hours arrive"),
        pytest.param(left(HOURS, 2), {**left(HOURS, 3), "late/2017-05-15/03/a.json": 90}, 300,
                     id="fewer hours have more records"),
        pytest.param(HOURS, {f"{path}.gz": 9 for path in HOURS}, 216, id="compressed"),
        pytest.param({**HOURS, **{f"{path}.gz": 10 for path in HOURS}},
                     {f"{path}.gz": 10 for path in HOURS}, 240, id="compressed copies stay"),
        pytest.param(HOURS, {f"moved/{path}": 9 for path in HOURS}, 216, id="moved"),
        pytest.param(HOURS, {**HOURS, "2017-05-15/03/PT1H.json": 2}, 232, id="records are deleted"),
    ],
)  # fmt: skip
def test_a_date_is_not_replaced_by_one_with_fewer_files_and_fewer_records(
    published: Mapping[str, int], found: Mapping[str, int], records: int, tmp_path: Path
) -> None:
    def night(files: Mapping[str, int], run_id: str, *, replace: bool = False) -> Done:
        day = date(2017, 5, 15)
        request = Options(SHAPE, run_id, date(2017, 7, 1), day, day, replace=replace)
        return run_job(Sized(sizes=files), LocalStore(tmp_path), Counting(), request)

    night(published, "first")
    done = night(found, "second")
    assert counts(done.trends) == {15: records}
    assert done.warning.startswith("files of 2017-05-15, because") == (not done.changed)
    some = sum(n for path, n in found.items() if "2017-05-15" in path)
    if some:
        replaced = night(found, "third", replace=True)
        assert counts(replaced.trends) == {15: some}
        assert not replaced.warning


def test_a_date_without_counts_of_files_is_compared_by_its_size(tmp_path: Path) -> None:
    """Older versions did not count files."""
    compute(tmp_path, {"15": 9, "16": 4}, "first")
    manifest = tmp_path / "manifests/000000001.json"
    content = json.loads(manifest.read_bytes())
    for entry in content["entries"].values():
        del entry["read"]["files"]
    manifest.write_text(json.dumps(content))
    done = compute(tmp_path, {"15": 8, "16": 5}, "second")
    assert counts(done.trends) == {15: 9, 16: 5}
    assert "2017-05-15, because some of them are gone" in done.warning


def test_figures_of_another_shape_are_refused(tmp_path: Path) -> None:
    compute(tmp_path, {"15": 3}, "first")
    request = Options(Shape("Items"), "second", date(2017, 7, 1))
    with pytest.raises(JobError, match="'measurement': 'Amount'"):
        run_job(Sized(sizes={DAY: 3}), LocalStore(tmp_path), Counting(), request)


def test_an_engine_of_another_format_reads_all_dates_again_once(tmp_path: Path) -> None:
    """Its partials cannot be added to those of the earlier format."""
    compute(tmp_path, {"15": 3, "16": 4}, "first")
    found = Sized(sizes={DAY: 3, "2017-05-16": 5})
    request = Options(SHAPE, "second", date(2017, 7, 1), since=date(2017, 5, 16))
    done = run_job(found, LocalStore(tmp_path), Counting("other"), request)
    assert counts(done.trends) == {15: 3, 16: 5}
    assert {entry.engine for entry in done.manifest.entries.values()} == {"other"}


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    compute(tmp_path, {"15": 3}, "first")
    (tmp_path / "manifests/000000002.json").write_text("{")
    with pytest.raises(JobError, match="000000002"):
        compute(tmp_path, {"15": 3}, "second")


def test_dates_without_files_within_a_range_count_as_read(tmp_path: Path) -> None:
    """An event that has stopped must be noticed."""
    done = compute(tmp_path, {"15": 3, "18": 3}, "first")
    assert counts(done.trends) == {15: 3, 16: 0, 17: 0, 18: 3}
    assert all(trend.complete for trend in done.trends)


def test_today_is_not_complete(tmp_path: Path) -> None:
    request = Options(SHAPE, "run", date(2017, 5, 15))
    (trend,) = run_job(Sized(sizes={DAY: 3}), LocalStore(tmp_path), Counting(), request).trends
    assert not trend.complete
    assert trend.verdict == "uncertain"
