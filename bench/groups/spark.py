"""spark: the whole nightly job with DuckDB in Spark's tasks, beside plain Spark and the reference.

``python -m bench.groups.spark --gigabytes 0.1 1 10`` measures other sizes.
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

from bench.measurement import Measurement
from bench.process_memory import run_watched
from bench.telemetry import write_export

GIGABYTES = (0.05, 0.2)
PLAIN = "baseline: Spark's own JSON reader, which counts no unreadable line"


@dataclass(frozen=True, slots=True)
class Run:
    cold_seconds: float
    warm_seconds: float
    cold_cpu_seconds: float
    warm_cpu_seconds: float
    peak_mb: float
    records: int
    adjusted_sum: float


def measure(
    gigabytes: Sequence[float] = GIGABYTES, reference: bool = True
) -> Iterator[Measurement]:
    """Session start is excluded; cold is a session's first job, warm its second."""
    per_gb: list[tuple[float, Run]] = []
    for size in gigabytes:
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data"
            write_export(data, int(size * 1e9))
            plain, fast = _run("plain_json", data), _run("duckdb", data)
            assert (plain.records, round(plain.adjusted_sum, 3)) == (
                fast.records,
                round(fast.adjusted_sum, 3),
            ), (plain, fast)
            yield from _compared(f"spark.{size:g}_gb", fast, plain, PLAIN)
            if reference and size == min(gigabytes):
                exact = _run("spark", data)
                assert exact.records == fast.records, (exact, fast)
                note = "baseline: the reference engine, line by line in Python"
                yield from _compared(f"spark.{size:g}_gb.reference", fast, exact, note, aims=False)
        per_gb.append((size, fast))
    (small, first), (large, last) = per_gb[0], per_gb[-1]
    yield Measurement(
        f"spark.warm_cpu_seconds_per_gb_at_{large:g}_gb",
        last.warm_cpu_seconds / large,
        "s of CPU/GB",
        first.warm_cpu_seconds / small,
        "ratio ≤ 1.2",
        f"baseline: the same at {small:g} GB, where what each job costs anyway weighs more",
    )


def _compared(
    name: str, fast: Run, other: Run, note: str, aims: bool = True
) -> Iterator[Measurement]:
    """Processor time beside the clock's: a busy machine stretches the one less than the other."""
    for figure, unit, aim in (
        ("cold_seconds", "s", "ratio ≤ 0.33"),
        ("warm_seconds", "s", "ratio ≤ 0.29"),
        ("cold_cpu_seconds", "s of CPU", ""),
        ("warm_cpu_seconds", "s of CPU", ""),
        ("peak_mb", "MB", "ratio ≤ 1"),
    ):
        value, baseline = getattr(fast, figure), getattr(other, figure)
        yield Measurement(f"{name}.{figure}", value, unit, baseline, aim if aims else "", note)


def _run(engine: str, data: Path) -> Run:
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, "-m", "bench.spark_process", engine, str(data), output]
        try:
            printed, peak_mb = run_watched(command)
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{engine}: {error.stderr[-2_000:]}") from error
    found = json.loads(printed.splitlines()[-1])
    return Run(
        found["cold"], found["warm"], found["cold_cpu"], found["warm_cpu"], peak_mb,
        found["records"], found["sum"],
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.groups.spark")
    parser.add_argument("--gigabytes", type=float, nargs="+", default=GIGABYTES)
    parser.add_argument("--no-reference", action="store_true")
    options = parser.parse_args()
    for measurement in measure(options.gigabytes, not options.no_reference):
        print(measurement.line, flush=True)
