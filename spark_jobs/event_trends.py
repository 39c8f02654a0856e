"""``python -m spark_jobs.event_trends``, also by spark-submit: the shell around the job."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__" and not __package__:  # by spark-submit, which knows only this file
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared.sampling.trend_rows import Trend, as_json
from spark_jobs import job
from spark_jobs.engine import Engine
from spark_jobs.engine_duckdb import DuckDbEngine
from spark_jobs.engine_spark import SparkEngine
from spark_jobs.errors import JobError
from spark_jobs.options import Options, parse
from spark_jobs.session import open_session
from spark_jobs.sources import source_of
from spark_jobs.stores import store_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTION_STRING = "AZURE_STORAGE_CONNECTION_STRING"


def main(arguments: Sequence[str] | None = None) -> int:
    now = datetime.now(UTC)
    options = parse(arguments, now.date())
    try:
        done = _run(options, now)
    except JobError as error:
        print(f"event_trends: {error}", file=sys.stderr)
        return 1
    _tell(options, done)
    return 0


def _run(options: Options, now: datetime) -> job.Done:
    source = source_of(options.input, os.environ.get(CONNECTION_STRING, ""))
    source.files()  # before Spark is started: a wrong path is told at once
    spark = open_session()
    store = store_of(options.output, lambda: spark)
    request = job.Request(
        shape=options.shape,
        run_id=f"{now:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}",
        today=now.date(),
        since=options.since,
        until=options.until,
    )
    return job.run(source, store, _engine(options, spark), request)


def _engine(options: Options, spark: SparkSession) -> Engine:
    if options.engine == "spark" or (options.engine == "auto" and not find_spec("duckdb")):
        return SparkEngine(spark)
    return DuckDbEngine(spark)


def _tell(options: Options, done: job.Done) -> None:
    for complaint in done.complaints:
        print(f"warning:{job.describe(complaint)}", file=sys.stderr)
    shown = [t for t in done.changed_trends if not options.events or t.event in options.events]
    for trend in shown:
        print(as_json(trend) if options.json else _line(trend))


def _line(trend: Trend) -> str:
    rate = "     -" if trend.sampling_rate is None else f"{trend.sampling_rate:5.1f}%"
    name = " ".join([trend.event, *trend.dimensions.values()])
    return (
        f"{trend.date}  {name[:32]:32} {trend.records:>9,} kept at {rate}  →"
        f" {trend.adjusted_count:>12,.0f} ± {1.96 * trend.adjusted_count_se:<9,.0f}"
        f" {trend.verdict}: {trend.reason}"
    )


if __name__ == "__main__":
    sys.exit(main())
