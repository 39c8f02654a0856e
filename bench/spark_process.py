"""``python -m bench.spark_process ENGINE DATA OUTPUT``: the job, first cold and then warm.

In a process of its own, so that memory and the JVM's state are those of one engine. Prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench import plain_json
from bench.process_memory import cpu_seconds
from spark_jobs.engine_duckdb import DuckDbEngine
from spark_jobs.engine_spark import SparkEngine
from spark_jobs.job import Request, run
from spark_jobs.session import open_session
from spark_jobs.shape import Shape
from spark_jobs.sources import LocalFiles
from spark_jobs.stores import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = tuple[int, float]
"""Records without copies, and their adjusted sum."""


def main(engine: str, data: Path, output: Path) -> None:
    spark = open_session()
    spark.range(1).count()
    job = _job(engine, spark, data)
    seconds, cpu, results = [], [], []
    for turn in range(2):
        started, used = time.perf_counter(), cpu_seconds(os.getpid())
        results.append(job(output / str(turn)))
        seconds.append(time.perf_counter() - started)
        cpu.append(cpu_seconds(os.getpid()) - used)
    assert results[0] == results[1]
    records, adjusted_sum = results[0]
    found = {"cold": seconds[0], "warm": seconds[1], "cold_cpu": cpu[0], "warm_cpu": cpu[1]}
    print(json.dumps({**found, "records": records, "sum": adjusted_sum}))


def _job(engine: str, spark: SparkSession, data: Path) -> Callable[[Path], Result]:
    if engine == "plain_json":
        return partial(plain_json.run, spark, data)
    return partial(_trends, DuckDbEngine(spark) if engine == "duckdb" else SparkEngine(spark), data)


def _trends(engine: DuckDbEngine | SparkEngine, data: Path, output: Path) -> Result:
    request = Request(Shape("Amount"), "bench", date(2017, 7, 1))
    done = run(LocalFiles(str(data)), LocalStore(output), engine, request)
    sums = list(done.totals.days.values())
    return sum(s.records for s in sums), sum(s.adjusted_sum for s in sums)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
