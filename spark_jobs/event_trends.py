"""The command ``python -m spark_jobs.event_trends``, which spark-submit runs, too."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__" and not __package__:  # spark-submit runs only this file
    # The launcher of Databricks compiles the file itself, and does not define __file__.
    sys.path.insert(0, str(Path(sys._getframe().f_code.co_filename).resolve().parents[1]))

from spark_jobs.errors import JobError, exit_code, need_packages

if __name__ == "__main__":
    need_packages()

from shared.sampling import unreadable
from shared.sampling.profile import profile_row, usual_week
from shared.sampling.trend_rows import Trend, as_json
from spark_jobs import job
from spark_jobs.options import Options, parse
from spark_jobs.publish.pictures import SERIES_MAX, pictures
from spark_jobs.publish.publishing import new_run_id, show_latest
from spark_jobs.publish.stores import store_of
from spark_jobs.publish.tables import SCALING, open_tables, write, write_trends
from spark_jobs.read.sources import read_controls, source_of
from spark_jobs.session import open_session

if TYPE_CHECKING:
    from azure.data.tables import TableServiceClient

CONNECTION_STRING = "AZURE_STORAGE_CONNECTION_STRING"
NEVER = str(date.max)


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code("event_trends", partial(_main, arguments))


def _main(arguments: Sequence[str] | None) -> None:
    now = datetime.now(UTC)
    options = replace(parse(arguments, now.date()), run_id=new_run_id(now))
    _print(options, _run(options))


def _run(options: Options) -> job.Done:
    connection_string = os.environ.get(CONNECTION_STRING, "")
    if options.control:
        options = replace(options, controls=read_controls(options.control, connection_string))
    tables = open_tables(options.tables, os.environ) if options.tables else None
    source = source_of(options.inputs, open_session, connection_string)
    source.files()  # reports a wrong path before Spark starts
    store = store_of(options.output, connection_string)
    spark = open_session()
    from spark_jobs.engine import Engine  # needs PySpark

    def draw(trends: Sequence[Trend]) -> Mapping[str, bytes]:
        if trends and options.events and not _chosen(options, trends):
            raise JobError(f"--event: {_not_named(options.events, trends)}")
        drawn = {} if options.no_pictures else pictures(_chosen(options, trends))
        return {f"pictures/{name}": content for name, content in drawn.items()}

    done = job.run_job(source, store, Engine(spark), options, draw)
    for warning in _warnings(options, done):
        print(f"warning: {warning}", file=sys.stderr)
    try:
        show_latest(store)
        if tables is not None:
            _write_tables(options, tables, done)
    except (JobError, FileNotFoundError) as error:
        raise JobError(f"{error} (the results themselves are published)") from error
    return done


def _write_tables(options: Options, tables: TableServiceClient, done: job.Done) -> None:
    """Writes trends from the first changed date on, as later verdicts depend on earlier dates."""
    first = min(done.changed, default=NEVER)
    write_trends(tables, _chosen(options, done.trends), first, options.data_set)
    complete = {trend.date for trend in done.trends if trend.complete}
    events = {trend.event for trend in done.trends}
    for event, resource in options.profile:
        if options.data_set and event not in events:  # another data set may have it
            continue
        week = usual_week(done.totals, event, complete, options.shape.time_zone)
        if week.absent:
            print(f"warning: {resource} has no profile: {week.absent}", file=sys.stderr)
        write(tables, SCALING, [profile_row(resource, week)])


def _warnings(options: Options, done: job.Done) -> Iterator[str]:
    """Yields what is missing although an option names it."""
    if not done.trends:
        yield (
            f"--input {', '.join(options.inputs)}: holds metrics, but no event, request or trace,"
            " so there are no trends; add an --input with the events"
        )
        return
    if lacking := job.missing_option(done.totals, options.shape):
        yield f"{lacking}: no record has it"
    events = {trend.event for trend in done.trends}
    if unknown := set(options.events) - events:
        yield f"--event: {_not_named(unknown, done.trends)}"
    if unknown := set(filter(None, options.controls)) - events:
        yield f"--control {options.control}: {_not_named(unknown, done.trends)}"


def _not_named(names: Iterable[str], trends: Sequence[Trend]) -> str:
    found = job.there_are(trend.event for trend in trends)
    return f"no event is named {' or '.join(sorted(names))}; {found}"


def _chosen(options: Options, trends: Sequence[Trend]) -> list[Trend]:
    return [trend for trend in trends if not options.events or trend.event in options.events]


def _print(options: Options, done: job.Done) -> None:
    chosen = _chosen(options, done.trends)
    notes = list(done.notes)
    missing = len({trend.series for trend in chosen}) - SERIES_MAX
    if missing > 0 and not options.no_pictures:
        text = f"{SERIES_MAX} series were drawn, {missing} were not; choose series with --event"
        notes.append(text)
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
    for trend in chosen:
        if trend.date in done.changed:
            print(as_json(trend) if options.json else _line(trend))
    if done.warning:
        sys.stdout.flush()  # the app looks for the warning at the end of the log
        print(f"{unreadable.PREFIX}{done.warning}", file=sys.stderr, flush=True)


def _line(trend: Trend) -> str:
    rate = "     -" if trend.sampling_rate is None else f"{trend.sampling_rate:5.1f}%"
    name = " ".join([trend.event, *trend.dimensions.values()])
    return (
        f"{trend.date}  {name[:32]:32} {trend.records:>9,} kept at {rate}  →"
        f" {trend.adjusted_count:>12,.0f} ± {1.96 * trend.adjusted_count_se:<9,.0f}"
        f" {trend.verdict}: {trend.reason}"
    )


if __name__ == "__main__" and (code := main()):  # some launchers take any exit for a failure
    sys.exit(code)
