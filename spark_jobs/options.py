"""The command line of event_trends, checked as a whole before anything is started."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from spark_jobs.shape import Shape


@dataclass(frozen=True, slots=True)
class Options:
    input: str
    output: str
    since: date | None
    until: date | None
    events: tuple[str, ...]
    shape: Shape
    json: bool
    control: str
    holidays: tuple[date, ...]
    tables: str
    profile: tuple[tuple[str, str], ...]
    pictures: bool


def parse(arguments: Sequence[str] | None, today: date) -> Options:
    """``today`` is that of UTC. Ends the process with code 2 and a message for a wrong option."""
    parser = _parser()
    given = parser.parse_args(arguments)
    since, until = _range(parser, given, today)
    if given.profile and not given.tables:
        parser.error("--profile: writes to a table, so it needs --tables")
    try:
        ZoneInfo(given.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        parser.error(f"--time-zone {given.time_zone}: no such zone; one is Europe/Amsterdam")
    return Options(
        input=given.input,
        output=given.output,
        since=since,
        until=until,
        events=tuple(given.event),
        shape=Shape(given.measurement, tuple(given.dimension), given.time_zone),
        json=given.json,
        control=given.control,
        holidays=tuple(given.holiday),
        tables=given.tables,
        profile=tuple(given.profile),
        pictures=not given.no_pictures,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark_jobs.event_trends",
        description="True trends of events from sampled telemetry, and what really went missing.",
        epilog="Azure blobs are opened with AZURE_STORAGE_CONNECTION_STRING where it is set, else"
        " with managed identity. Exit codes: 0 done, 1 nothing could be computed, 2 wrong options.",
    )
    add = parser.add_argument
    add("--input", required=True, metavar="PATH", help="exported telemetry: a folder or file, an"
        " http(s) URL of blobs such as https://ACCOUNT.blob.core.windows.net/CONTAINER/PREFIX, or"
        " a path that Spark reaches (abfss://…)")  # fmt: skip
    add("--output", required=True, metavar="PATH", help="a folder, local or reached by Spark")
    add("--from", dest="since", type=_date, metavar="DATE", help="first date of files to read")
    add("--to", dest="until", type=_date, metavar="DATE", help="last date of files to read")
    add("--date", type=_date, help="the one date of files to read")
    add("--late-days", type=_whole, metavar="DAYS", help="read today's files and those of so many"
        " days before")  # fmt: skip
    add("--event", action="append", default=[], metavar="NAME", help="show only this event;"
        " may be repeated")  # fmt: skip
    add("--measurement", default="", metavar="NAME", help="whose sums to compute, such as"
        " DurationMs; without it each record counts 1")  # fmt: skip
    add("--dimension", action="append", default=[], metavar="NAME", help="one series for each"
        " value of this property (or of AppRoleName); may be repeated")  # fmt: skip
    add("--time-zone", default="UTC", metavar="ZONE", help="whose days are told, UTC by default")
    add("--control", default="", metavar="FILE", help="a daily series that is not"
        " sampled: CSV with date,value or date,event,value; or the JSON of az monitor metrics"
        " list")  # fmt: skip
    add("--holiday", action="append", type=_date, default=[], metavar="DATE", help="less on that"
        " day is no loss where there is no control; may be repeated")  # fmt: skip
    add("--engine", type=_no_engine, help=argparse.SUPPRESS)
    add("--json", action="store_true", help="print what was computed, one object a line")
    add("--tables", default="", metavar="URL", help="write rows to Table Storage: a table endpoint"
        " (managed identity) or the name of a variable with a connection string")  # fmt: skip
    add("--profile", action="append", default=[], type=_pair, metavar="EVENT=RESOURCE",
        help="with --tables: an event's usual week as a scaled resource's profile")  # fmt: skip
    add("--no-pictures", action="store_true", help="draw none")
    return parser


def _range(
    parser: argparse.ArgumentParser, given: argparse.Namespace, today: date
) -> tuple[date | None, date | None]:
    ways = [given.date is not None, given.late_days is not None, bool(given.since or given.until)]
    if sum(ways) > 1:
        parser.error("use one of --date, --late-days and --from/--to")
    if given.late_days is not None:
        return today - timedelta(days=given.late_days), today
    since, until = (given.date, given.date) if given.date else (given.since, given.until)
    for name, day in (("--from", given.since), ("--to", given.until), ("--date", given.date)):
        if day is not None and day > today:
            parser.error(f"{name} {day}: is in the future (today is {today} in UTC)")
    if since and until and since > until:
        parser.error(f"--from {since} --to {until}: is an empty range")
    return since, until


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no date such as 2017-05-15") from None


def _pair(text: str) -> tuple[str, str]:
    event, _, resource = text.rpartition("=")
    if not event or not resource:
        raise argparse.ArgumentTypeError(f"{text!r} is not EVENT=RESOURCE")
    return event, resource


def _no_engine(text: str) -> str:
    raise argparse.ArgumentTypeError(f"there is one engine; leave out --engine {text}")


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 36_500:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days such as 3")
    return int(text)
