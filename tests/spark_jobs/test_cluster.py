"""The job on a standalone cluster publishes the bytes of a run on one machine, whatever breaks.

They take minutes, so only ``make cluster`` runs them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.telemetry import write_export
from shared.sampling.series import Shape
from spark_jobs.engine import Engine
from tests.spark_jobs.hostile import hostile_files
from tests.spark_jobs.standalone import Cluster, Job, can_mount, wait_for
from tests.spark_jobs.telemetry import compute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHAPE = Shape("Amount", ("tenant",))
OPTIONS = ("--measurement", "Amount", "--dimension", "tenant", "--no-pictures", "--json")
MEGABYTES = 120
"""Six tasks, each of which takes a worker some tenths of a second."""
UNSHARED_BYTES = 1 << 20

pytestmark = pytest.mark.cluster
needs_a_small_disk = pytest.mark.skipif(
    not can_mount(), reason="this machine lets no process mount a disk that only it sees (unshare)"
)
Published = dict[str, bytes]


def published(output: Path) -> Published:
    """Returns all that readers see, without the name of the run."""
    manifests = sorted((output / "manifests").glob("*.json"))
    assert len(manifests) == 1
    (results,) = [folder for folder in (output / "results").iterdir() if folder.is_dir()]
    run = f'"{results.name}"'.encode()
    lines = [
        line
        for file in (output / "quarantine" / results.name).rglob("part-*.json")
        for line in file.read_bytes().splitlines()
    ]
    return {
        **{file.name: file.read_bytes() for file in results.iterdir()},
        manifests[0].name: manifests[0].read_bytes().replace(run, b'"RUN"'),
        "quarantine": b"\n".join(sorted(lines)),
    }


class World:
    """Telemetry, and what a run on this machine makes of it."""

    def __init__(self, folder: Path, make: Callable[[Path], object]) -> None:
        self.folder = folder
        make(folder / "in")

    @cached_property
    def expected(self) -> tuple[str, Published]:
        """What a run on this machine prints and publishes."""
        printed = succeeded(self.job(None, "expected"))
        found = published(self.folder / "expected")
        assert len(found["sums.jsonl"].splitlines()) > 20
        assert found["quarantine"]
        return printed, found

    def job(self, cluster: Cluster | None, output: str) -> Job:
        """Starts it with relative paths: the workers have other working directories."""
        arguments = ("--input", "in", "--output", output, *OPTIONS)
        return Job(cluster, arguments, self.folder, self.folder / f"events of {output}").start()

    def assert_published(self, job: Job, output: str) -> None:
        assert (succeeded(job), published(self.folder / output)) == self.expected


def succeeded(job: Job) -> str:
    """Returns what the job printed."""
    code, printed, errors = job.done()
    assert code == 0, errors[-3_000:]
    return printed


def refused(job: Job) -> str:
    """Returns the message of a job that gave up, which is one line."""
    code, printed, errors = job.done()
    assert (code, printed) == (1, ""), errors[-3_000:]
    return errors[errors.index("event_trends: ") :]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("small"), lambda root: hostile_files(root, 3))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(
        tmp_path_factory.mktemp("large"), lambda root: write_export(root, MEGABYTES * 10**6)
    )
    yield world
    shutil.rmtree(world.folder)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as running:
        yield running


def test_a_cluster_publishes_the_bytes_of_one_machine_from_relative_paths(
    small: World, cluster: Cluster, classic_session: SparkSession, tmp_path: Path
) -> None:
    compute(Engine(classic_session), small.folder / "in", tmp_path / "out", shape=SHAPE)
    succeeded(small.job(cluster, "smoke"))
    expected, found = published(tmp_path / "out"), published(small.folder / "smoke")
    for name in ("sums.jsonl", "operations.jsonl", "trends.jsonl", "000000001.json"):
        assert found[name] == expected[name]


def test_the_work_is_divided_among_the_cores_of_all_workers(large: World, tmp_path: Path) -> None:
    """Their executors register one after another, while the job begins."""
    with Cluster(tmp_path / "cluster", cores=3) as cluster:
        job = large.job(cluster, "divided")
        large.assert_published(job, "divided")
    stages = [event["Stage Info"] for event in job.happened("StageCompleted")]
    (tasks,) = [s["Number of Tasks"] for s in stages if s["Stage Name"].startswith("parquet")]
    assert (tasks > 6, tasks % 6) == (True, 0)


def wait_until_it_reads(job: Job) -> None:
    """Returns when some tasks have written what they read, and others have not."""

    def halfway() -> bool:
        return any(
            stage["name"].startswith("parquet") and stage["numCompleteTasks"] > 0
            for stage in job.stages()
        )

    wait_for("a task that has read its files", halfway, job.alive)


def wait_until_it_adds_up(job: Job) -> None:
    """Returns when all is read, and blocks are about to be moved between the workers."""

    def quarantined() -> bool:
        return any(stage["name"].startswith("json") for stage in job.stages("complete"))

    wait_for("a partial that is complete", quarantined, job.alive)


@pytest.mark.parametrize("moment", [wait_until_it_reads, wait_until_it_adds_up])
def test_a_worker_lost_in_mid_run_changes_no_byte(
    moment: Callable[[Job], None], large: World, cluster: Cluster
) -> None:
    output = f"lost {moment.__name__}"
    job = large.job(cluster, output)
    moment(job)
    cluster.lose_worker(0)
    large.assert_published(job, output)
    assert cluster.workers_running() == 1
    assert len(job.happened("ExecutorRemoved")) >= 1


def test_a_killed_driver_publishes_nothing_and_the_next_one_publishes_all(
    large: World, cluster: Cluster
) -> None:
    job, output = large.job(cluster, "again"), large.folder / "again"
    wait_until_it_reads(job)
    job.kill()
    assert not (output / "manifests").exists()
    assert not (output / "results").exists()
    large.assert_published(large.job(cluster, "again"), "again")


@needs_a_small_disk
def test_input_that_the_workers_do_not_share_is_an_error_that_says_so(
    small: World, tmp_path: Path
) -> None:
    elsewhere = (small.folder / "in", UNSHARED_BYTES)
    with Cluster(tmp_path / "cluster", {0: elsewhere, 1: elsewhere}) as cluster:
        message = refused(small.job(cluster, "unshared input"))
    assert ": No such file or directory on " in message
    assert "the machines of the cluster do not share the folder" in message
    assert not (small.folder / "unshared input" / "manifests").exists()


@needs_a_small_disk
def test_no_byte_is_lost_on_a_worker_that_does_not_share_the_output_folder(
    large: World, tmp_path: Path
) -> None:
    """Spark would let it write into its own folder of that name, and report success."""
    elsewhere = (large.folder / "unshared output", UNSHARED_BYTES)
    with Cluster(tmp_path / "cluster", {1: elsewhere}) as cluster:
        job = large.job(cluster, "unshared output")
        large.assert_published(job, "unshared output")
    assert "does not share this folder" in str(job.failures())


@needs_a_small_disk
def test_an_output_folder_that_no_worker_shares_is_an_error_that_says_so(
    small: World, tmp_path: Path
) -> None:
    elsewhere = (small.folder / "elsewhere", UNSHARED_BYTES)
    with Cluster(tmp_path / "cluster", {0: elsewhere, 1: elsewhere}) as cluster:
        message = refused(small.job(cluster, "elsewhere"))
    assert message.startswith(f"event_trends: --output {elsewhere[0]}: ")
    assert "runs tasks and does not share this folder; name one that" in message
    assert not (elsewhere[0] / "manifests").exists()
