"""The command line of event_trends, which is checked as a whole before anything starts."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from shared.sampling.control import Controls
from shared.sampling.series import Shape


@dataclass(frozen=True, slots=True)
class Options:
    """What a run computes, from the files of the dates ``since`` to ``until``; None sets no limit.

    The command reads ``controls`` from the file ``control``, and names the run.
    """

    shape: Shape
    run_id: str
    today: date
    since: date | None = None
    until: date | None = None
    controls: Controls = field(default_factory=dict)
    holidays: tuple[date, ...] = ()
    events: Collection[str] = ()
    profile: Sequence[tuple[str, str]] = ()
    """Events and resources."""
    inputs: Sequence[str] = ()
    output: str = ""
    control: str = ""
    """It is no telemetry, also if it lies in the input."""
    tables: str = ""
    data_set: str = ""
    replace: bool = False
    """Whether dates of which files are gone are computed from the files that are left."""
    trust_weights: bool = False
    """Whether days are judged whose senders may not state their sampling."""
    json: bool = False
    no_pictures: bool = False

    @property
    def kept_events(self) -> set[str]:
        """Events that are never added up as ``(other)``."""
        return {*self.events, *(event for event, _ in self.profile)}


def parse(arguments: Sequence[str] | None, today: date) -> Options:
    """Parse the arguments. ``today`` is in UTC. Exits with code 2 and a message for a wrong one."""
    parser = _parser()
    lists = vars(parser.parse_args(arguments)).items()
    given: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in lists}
    day, since, until = given.pop("date"), given["since"], given["until"]
    if day and (since or until):
        parser.error("use either --date, or --from and --to")
    if day:
        given["since"] = given["until"] = day
    for name, chosen in (("--from", since), ("--to", until), ("--date", day)):
        if chosen and chosen > today:
            parser.error(f"{name} {chosen}: is in the future (today is {today} in UTC)")
    if since and until and since > until:
        parser.error(f"--from {since} --to {until}: is an empty range")
    if given["profile"] and not given["tables"]:
        parser.error("--profile: writes to a table, so it needs --tables")
    shape = Shape(given.pop("measurement"), given.pop("dimension"), given.pop("time_zone"))
    return Options(shape, "", today, **given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark_jobs.event_trends",
        description="True trends of events from sampled telemetry, and what really went missing.",
        epilog="Storage accounts are opened with AZURE_STORAGE_CONNECTION_STRING if it names them,"
        " else with managed identity. Exit codes: 0 done, 1 nothing could be computed, 2 wrong"
        " options.",
    )
    add = parser.add_argument
    add("--input", dest="inputs", action="append", type=_path, required=True, metavar="PATH",
        help="exported telemetry: a folder or file, an http(s) URL of blobs such as"
        " https://ACCOUNT.blob.core.windows.net/CONTAINER/PREFIX, or a path that Spark reaches"
        " (abfss://…); repeat it for each container, such as that of metrics")  # fmt: skip
    add("--output", type=_path, required=True, metavar="PATH", help="a local folder, or a"
        " folder of a storage account that Spark reaches (abfss://…)")  # fmt: skip
    add("--from", dest="since", type=_date, metavar="DATE", help="first date of files to read")
    add("--to", dest="until", type=_date, metavar="DATE", help="last date of files to read")
    add("--date", type=_date, help="the only date of files to read")
    add("--event", dest="events", action="append", default=[], metavar="NAME", help="show only this"
        " event; may be repeated")  # fmt: skip
    add("--measurement", default="", metavar="NAME", help="the measurement to add up, such as"
        " DurationMs; without it each record counts 1")  # fmt: skip
    add("--dimension", action="append", default=[], metavar="NAME", help="one series for each"
        " value of this property (or of AppRoleName); may be repeated")  # fmt: skip
    add("--time-zone", type=_zone, default="UTC", metavar="ZONE", help="the zone that dates are in,"
        " UTC by default")  # fmt: skip
    add("--control", default="", metavar="FILE", help="a daily series that is not"
        " sampled: CSV with date,value or date,event,value; or the JSON of az monitor metrics"
        " list")  # fmt: skip
    add("--holiday", dest="holidays", action="append", type=_date, default=[], metavar="DATE",
        help="without a control, less traffic on this date is not called loss; may be"
        " repeated")  # fmt: skip
    add("--json", action="store_true", help="print what was computed, one object a line")
    add("--tables", default="", metavar="URL", help="write rows to Table Storage: a table endpoint"
        " (managed identity) or the name of a variable with a connection string")  # fmt: skip
    add("--data-set", default="", metavar="NAME", help="with --tables: tells the rows of this data"
        " set from those of others")  # fmt: skip
    add("--profile", action="append", default=[], type=_pair, metavar="EVENT=RESOURCE",
        help="with --tables: an event's usual week as a scaled resource's profile")  # fmt: skip
    add("--no-pictures", action="store_true", help="do not draw pictures")
    add("--replace", action="store_true", help="also replace the figures of dates of which files"
        " have been deleted since they were published")  # fmt: skip
    add("--trust-weights", action="store_true", help="judge days although their senders may have"
        " dropped records without marking others, because you know that they do not")  # fmt: skip
    return parser


def _path(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: name a folder")
    return text


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date such as 2017-05-15") from None


def _pair(text: str) -> tuple[str, str]:
    event, _, resource = text.rpartition("=")
    if not event or not resource:
        raise argparse.ArgumentTypeError(f"{text!r} is not EVENT=RESOURCE")
    return event, resource


def _zone(text: str) -> str:
    try:
        return ZoneInfo(text).key
    except (ZoneInfoNotFoundError, ValueError, OSError):
        message = f"{text!r} is not a time zone such as Europe/Amsterdam"
        raise argparse.ArgumentTypeError(message) from None
