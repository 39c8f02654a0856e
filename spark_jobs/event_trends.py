"""``python -m spark_jobs.event_trends``, also by spark-submit: the shell around the job."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__" and not __package__:  # by spark-submit, which knows only this file
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared.sampling import unreadable
from shared.sampling.profile import NoProfile
from shared.sampling.trend_rows import Trend, as_json
from spark_jobs import job
from spark_jobs.engine import Engine
from spark_jobs.errors import BadInput, JobError
from spark_jobs.options import Options, parse
from spark_jobs.publish.publishing import new_run_id
from spark_jobs.publish.stores import store_of
from spark_jobs.read.sources import Source, source_of
from spark_jobs.report.control import read_controls
from spark_jobs.report.pictures import SERIES_MAX, left_out, pictures
from spark_jobs.report.tables import open_tables, usual_week, write_profile, write_trends
from spark_jobs.session import open_session

if TYPE_CHECKING:
    from azure.data.tables import TableServiceClient

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
    controls = read_controls(options.control, open_session) if options.control else {}
    tables = open_tables(options.tables, os.environ) if options.tables else None
    source = source_of(options.input, open_session, os.environ.get(CONNECTION_STRING, ""))
    _look_at(source, options.input)
    store = store_of(options.output, open_session)
    request = job.Request(
        shape=options.shape,
        run_id=new_run_id(now),
        today=now.date(),
        since=options.since,
        until=options.until,
        controls=controls,
        holidays=options.holidays,
    )

    def draw(folder: str, trends: Sequence[Trend]) -> None:
        shown = [trend for trend in trends if _is_chosen(options, trend)]
        for name, content in pictures(shown).items():
            store.write(f"{folder}/pictures/{name}", content)

    report = draw if options.pictures else None
    done = job.run(source, store, Engine(open_session()), request, report)
    if tables is not None:
        _write_tables(options, tables, done)
    return done


def _look_at(source: Source, name: str) -> None:
    """Before Spark is started: a wrong path is told at once."""
    try:
        source.files()
    except OSError as error:
        raise BadInput(f"--input {name}: {error.strerror or error}") from error


def _write_tables(options: Options, tables: TableServiceClient, done: job.Done) -> None:
    """From the first changed date on: later verdicts may have changed with it."""
    first = min(done.changed)
    rows = [t for t in done.trends if t.date >= first and _is_chosen(options, t)]
    write_trends(tables, rows)
    complete = {trend.date for trend in done.trends if trend.complete}
    for event, resource in options.profile:
        week = usual_week(done.totals, event, complete, options.shape.time_zone)
        if isinstance(week, NoProfile):
            print(f"warning: {resource} has no profile: {week.reason}", file=sys.stderr)
        write_profile(tables, resource, week)


def _is_chosen(options: Options, trend: Trend) -> bool:
    return not options.events or trend.event in options.events


def _tell(options: Options, done: job.Done) -> None:
    for complaint in done.complaints:
        print(f"warning:{job.describe(complaint)}", file=sys.stderr)
    drawn = [trend for trend in done.trends if options.pictures and _is_chosen(options, trend)]
    if undrawn := left_out(drawn):
        print(
            f"warning: {SERIES_MAX} series were drawn, {undrawn} were not; --event chooses",
            file=sys.stderr,
        )
    shown = [trend for trend in done.changed_trends if _is_chosen(options, trend)]
    for trend in shown:
        print(as_json(trend) if options.json else _line(trend))
    if told := done.unreadable.told():
        sys.stdout.flush()  # so that it is at the end of the log, where submitters look for it
        print(f"{unreadable.PREFIX}{told}", file=sys.stderr, flush=True)


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
