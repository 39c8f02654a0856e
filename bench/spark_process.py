"""``python -m bench.spark_process ENGINE DATA OUTPUT [TURNS]`` runs the job cold and then warm.

It is a process of its own, so that memory and the JVM's state are those of one engine. It prints
JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from bench.plain_json import PlainJsonEngine
from bench.process_memory import cpu_seconds
from shared.sampling.estimates import NAMES
from shared.sampling.series import Shape
from spark_jobs.engine import Engine
from spark_jobs.job import Done, run_job
from spark_jobs.options import Options
from spark_jobs.publish.stores import LocalStore
from spark_jobs.read.sources import Files
from spark_jobs.session import LOGGING, open_session

DIGITS = 9
USUAL_JAVA = f"--conf 'spark.driver.extraJavaOptions={LOGGING}' pyspark-shell"
"""Plain Spark gets the JVM's own defaults, with which it is faster."""


def main(engine: str, data: Path, output: Path, turns: int = 3) -> None:
    """Excludes the start of the session. The first job is cold; warm is the median of the rest."""
    plain = engine == "plain_json"
    if plain:
        os.environ["PYSPARK_SUBMIT_ARGS"] = USUAL_JAVA
    spark = open_session()
    spark.range(1).count()
    made: Engine = PlainJsonEngine(spark) if plain else Engine(spark)
    seconds, cpu, results = [], [], []
    for turn in range(turns):
        started, used = time.perf_counter(), cpu_seconds(os.getpid())
        request = Options(Shape("Amount"), "bench", date(2017, 7, 1))
        done = run_job(Files([str(data)]), LocalStore(output / str(turn)), made, request)
        seconds.append(time.perf_counter() - started)
        cpu.append(cpu_seconds(os.getpid()) - used)
        results.append(_result(done))
    assert all(result == results[0] for result in results)
    warm = {"warm": median(seconds[1:]), "warm_cpu": median(cpu[1:])} if turns > 1 else {}
    print(json.dumps({"cold": seconds[0], "cold_cpu": cpu[0], **warm, "result": results[0]}))


def _result(done: Done) -> dict[str, Any]:
    """Returns the figures in which both engines must agree, rounded: they add in another order."""
    sums = [day.sums for day in done.totals.values()]
    entries = done.manifest.entries.values()
    figures = {name: float(f"{sum(getattr(s, name) for s in sums):.{DIGITS}g}") for name in NAMES}
    hours = sum(len({hour.hour for hour in day.hours}) for day in done.totals.values())
    return {**figures, "hours": hours, "quarantined": sum(e.read.quarantined for e in entries)}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
