"""spark: the whole nightly job beside the fastest job on plain Spark that is known.

``python -m bench.groups.spark --gigabytes 0.1 1 3 --repeats 3`` measures other sizes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.measurement import Measurement
from bench.process_memory import run_watched
from bench.telemetry import write_export
from spark_jobs.read.files import SourceFile, spread

GIGABYTES = (0.1, 0.2)
TURNS = 3
PLAIN = "baseline: the same on plain Spark, with its own JSON reader and a schema"
JOB, PLAIN_JOB = "job", "plain_json"
SMALL_DATE, LARGE_DATE = 64_000_000, 256_000_000
"""The records of a date. Those of a large date are 150 GB of telemetry."""
TINY_FILES, TINY_BYTES, HUGE_BYTES = 2_000, 20_000, 3 << 30


@dataclass(frozen=True, slots=True)
class Run:
    """Figures of one process. ``result`` must be the same for both jobs."""

    cold_seconds: float
    warm_seconds: float
    cold_cpu_seconds: float
    warm_cpu_seconds: float
    peak_mb: float
    result: dict[str, Any]


def measure(
    gigabytes: Sequence[float] = GIGABYTES,
    repeats: int = 1,
    turns: int = TURNS,
) -> Iterator[Measurement]:
    """Excludes the start of a session. Its first job is cold, the others are warm."""
    yield _evenness()
    yield _memory_of_a_task()
    by_size: list[tuple[float, Run]] = []
    for size in gigabytes:
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data"
            write_export(data, int(size * 1e9))
            runs = _runs(data, repeats, turns)
        yield from _compared(f"spark.{size:g}_gb", runs[JOB], runs[PLAIN_JOB])
        by_size.append((size, runs[JOB]))
    yield from _growth(by_size)


def _runs(data: Path, repeats: int, turns: int) -> dict[str, Run]:
    """Returns medians. Both jobs take turns, so that other load affects them alike."""
    found: dict[str, list[Run]] = {PLAIN_JOB: [], JOB: []}
    for _ in range(repeats):
        for engine, runs in found.items():
            runs.append(_run(engine, data, turns))
    results = {engine: runs[0].result for engine, runs in found.items()}
    assert all(result == results[JOB] for result in results.values()), results
    return {engine: _median(runs) for engine, runs in found.items()}


def _median(runs: Sequence[Run]) -> Run:
    return Run(
        cold_seconds=median(run.cold_seconds for run in runs),
        warm_seconds=median(run.warm_seconds for run in runs),
        cold_cpu_seconds=median(run.cold_cpu_seconds for run in runs),
        warm_cpu_seconds=median(run.warm_cpu_seconds for run in runs),
        peak_mb=median(run.peak_mb for run in runs),
        result=runs[0].result,
    )


def _compared(name: str, job: Run, plain: Run) -> Iterator[Measurement]:
    """Reports processor time as well, which other load on the machine affects less."""
    for figure, unit, aim in (
        ("cold_seconds", "s", "ratio ≤ 0.33"),
        ("warm_seconds", "s", "ratio ≤ 0.33"),
        ("cold_cpu_seconds", "s of CPU", ""),
        ("warm_cpu_seconds", "s of CPU", ""),
        ("peak_mb", "MB", "ratio ≤ 1"),
    ):
        value, baseline = getattr(job, figure), getattr(plain, figure)
        yield Measurement(f"{name}.{figure}", value, unit, baseline, aim, PLAIN)


def _growth(by_size: Sequence[tuple[float, Run]]) -> Iterator[Measurement]:
    """Compares each size with the smallest one, in which the fixed cost of a job weighs most."""
    (small, first), *larger = by_size
    for size, run in larger:
        yield Measurement(
            f"spark.warm_cpu_seconds_per_gb_at_{size:g}_gb",
            run.warm_cpu_seconds / size,
            "s of CPU/GB",
            first.warm_cpu_seconds / small,
            "ratio ≤ 1.2",
            f"baseline: the same at {small:g} GB, including the fixed cost of a job",
        )
        yield Measurement(
            f"spark.peak_mb_at_{size:g}_gb",
            run.peak_mb,
            "MB",
            first.peak_mb,
            note=f"baseline: the same at {small:g} GB",
        )


def _evenness() -> Measurement:
    files = [SourceFile(f"{n}.json", TINY_BYTES) for n in range(TINY_FILES)]
    tasks = spread([*files, SourceFile("huge.json", HUGE_BYTES)])
    costs = [sum(chunk.cost_bytes for chunk in task) for task in tasks]
    return Measurement(
        "spark.largest_task_bytes",
        max(costs),
        "bytes",
        sum(costs) / len(costs),
        "ratio ≤ 1.1",
        f"baseline: the mean of {len(tasks)} tasks; {TINY_FILES} tiny files and a huge one",
    )


def _memory_of_a_task() -> Measurement:
    """Compares a task that divides and adds up a part of a date with one of a smaller date."""
    command = [sys.executable, "-m", "bench.adding_process"]
    small, large = (
        float(subprocess.run([*command, str(records)], capture_output=True, check=True).stdout)
        for records in (SMALL_DATE, LARGE_DATE)
    )
    return Measurement(
        f"spark.task_mb_at_{LARGE_DATE // 10**6}_million_records_a_date",
        large,
        "MB",
        small,
        "ratio ≤ 1.1",
        f"baseline: the same at {SMALL_DATE // 10**6} million",
    )


def _run(engine: str, data: Path, turns: int) -> Run:
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, "-m", "bench.spark_process", engine, str(data), output]
        try:
            printed, peak_mb = run_watched([*command, str(turns)])
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{engine}: {error.stderr[-2_000:]}") from error
    figures = json.loads(printed.splitlines()[-1])
    return Run(
        figures["cold"], figures["warm"], figures["cold_cpu"], figures["warm_cpu"], peak_mb,
        figures["result"],
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.groups.spark")
    parser.add_argument("--gigabytes", type=float, nargs="+", default=GIGABYTES)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--turns", type=int, default=TURNS, help="jobs a session: one is cold")
    options = parser.parse_args()
    for measurement in measure(options.gigabytes, options.repeats, options.turns):
        print(measurement.line, flush=True)
