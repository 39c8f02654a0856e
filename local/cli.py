"""``python -m local``: run the complete system here, with a live view or a JSON summary."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backtest.traces.reading import (
    BUNDLED,
    PLAIN,
    Trace,
    TraceError,
    add_reading,
    busiest,
    load_trace,
    reading_of,
)
from local.amqp_broker import HAS_AMQP, NO_AMQP
from local.azurite import AzuriteFailed
from local.demo.profile import FIRST_HOUR_MINUTES
from local.demo.settings_files import (
    RUNNING_SETTINGS,
    AlreadyRunning,
    SettingsFileExists,
    refuse_second_demo,
)
from local.demo.system import LocalSystem, local_system
from local.demo.view import watch
from local.demo.watching import PartEnded
from local.functions_host.errors import HostStartFailed
from local.node import NodeMissing
from shared.values.text import WHOLE

STATE = RUNNING_SETTINGS.parent
LOG_FILE = "host.log"
POLL_SECONDS = 0.1
FAILED, INTERRUPTED = 1, 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STARTING = """\
Replaying {trace} as queue messages against the complete app, {pace}.
Starting Azurite, the stand-ins for Azure and the functions host. Log: {log}"""
WITHOUT_AMQP = "the demo has no event hub, and nothing else can be sent to its Service Bus"
SUMMARY = "Stopped. Totals of the run (backlog in messages, age in minutes of the trace):"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    try:
        trace = load_trace(options.trace, reading_of(options))
    except TraceError as error:
        print(error, file=sys.stderr)
        return 2
    for notice in _notices(trace):
        print(f"notice: {notice}", file=sys.stderr)
    try:
        refuse_second_demo(options.state / RUNNING_SETTINGS.name)
        _log_to_file(options.state)
    except AlreadyRunning as error:
        print(error, file=sys.stderr)
        return FAILED
    except OSError as error:
        print(f"{error}. Choose another folder with --state FOLDER", file=sys.stderr)
        return FAILED
    return _play(trace, options)


def _notices(trace: Trace) -> Iterator[str]:
    if trace.read_as != PLAIN:
        yield f"{trace.read_as}, {trace.minutes:,} minutes"
    yield from trace.notices
    if trace.missing:
        yield f"{trace.missing.text}: read as no arrivals"


def _play(trace: Trace, options: argparse.Namespace) -> int:
    """Run the demo, print what came of it, and return the exit code."""
    if options.first_hour:
        trace = busiest(trace, FIRST_HOUR_MINUTES)
    minutes = min(options.minutes or len(trace.arrivals), len(trace.arrivals))
    if not HAS_AMQP:
        print(f"notice: {NO_AMQP.format(WITHOUT_AMQP)}", file=sys.stderr)
    if not options.json:
        log = options.state / LOG_FILE
        pace = "in real time" if options.first_hour else "one minute of the trace per second"
        print(STARTING.format(trace=options.trace.name, pace=pace, log=log), file=sys.stderr)
    try:
        summary = asyncio.run(_run(trace, minutes, options))
    except (AzuriteFailed, PartEnded) as error:
        sentence, *output = str(error).splitlines()
        print(f"{sentence}; the demo stops", *output, sep="\n", file=sys.stderr)
        return FAILED
    except (HostStartFailed, NodeMissing, SettingsFileExists) as error:
        print(error, file=sys.stderr)
        return FAILED
    except asyncio.CancelledError:
        print("Stopped during the start.", file=sys.stderr)
        return INTERRUPTED
    return _report(summary, as_json=options.json)


def _report(summary: dict[str, Any], *, as_json: bool) -> int:
    """Print the summary and return the exit code."""
    if not as_json:
        print(SUMMARY, file=sys.stderr)
    print(json.dumps(summary, indent=None if as_json else 2))
    if error := summary.get("night", {}).get("error"):
        print(f"The nightly run failed: {error.splitlines()[0]}", file=sys.stderr)
        return FAILED
    return 0


async def _run(trace: Trace, minutes: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run until the trace has ended or a signal arrives, then stop cleanly. Return the summary.

    A signal during the start raises CancelledError.
    """
    start, interrupted = asyncio.current_task(), asyncio.Event()
    assert start is not None
    _at_the_next_signal(start.cancel)
    with_host = not options.without_host
    async with local_system(
        trace,
        minutes,
        with_host=with_host,
        with_night=options.night,
        first_hour=options.first_hour,
        in_pieces=options.pieces,
        settings_file=options.state / RUNNING_SETTINGS.name,
    ) as system:
        _at_the_next_signal(interrupted.set)
        system.seconds.start()
        if not options.json and not sys.stdout.isatty():
            print(f"Dashboard: {system.page}", file=sys.stderr)
        async with nullcontext() if options.json else _shown(system):
            await _until_ended(system, interrupted)
        summary = dataclasses.asdict(await system.summary())
        return summary | ({"night": system.night.summary()} if system.night else {})


def _at_the_next_signal(act: Callable[[], object]) -> None:
    """Act once. A second signal ends the process, and with it Azurite, at once."""
    loop = asyncio.get_running_loop()

    def once() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        act()

    for number in SIGNALS:
        loop.add_signal_handler(number, once)


@asynccontextmanager
async def _shown(system: LocalSystem) -> AsyncIterator[None]:
    """Show the live view during the ``async with``."""
    viewer = asyncio.create_task(watch(system))
    try:
        yield
    finally:
        viewer.cancel()
        with suppress(asyncio.CancelledError):
            await viewer


async def _until_ended(system: LocalSystem, interrupted: asyncio.Event) -> None:
    """Return when the trace has ended and, if there is a nightly run, that has ended too."""
    while not interrupted.is_set():
        if system.ended and (system.night is None or system.night.over):
            break
        with suppress(TimeoutError):
            await asyncio.wait_for(interrupted.wait(), POLL_SECONDS)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m local",
        description=(
            "Run the autoscaler on this machine against a replayed workload. One minute of the "
            "trace lasts one second, except with --first-hour."
        ),
    )
    parser.add_argument(
        "--trace",
        type=Path,
        default=BUNDLED,
        help=(
            "CSV file with the columns time,arrivals, or an export of metrics: see "
            "docs/traffic.md (default: three days of NASA-HTTP)"
        ),
    )
    add_reading(parser)
    parser.add_argument("--minutes", type=_positive, help="trace minutes to run (default: all)")
    parser.add_argument(
        "--json", action="store_true", help="show no live view; print one JSON object at the end"
    )
    parser.add_argument(
        "--without-host",
        action="store_true",
        help="start everything except the functions; run `func start` in another terminal",
    )
    parser.add_argument(
        "--night",
        action="store_true",
        help="also compute the event trends of a fictitious shop with Spark",
    )
    parser.add_argument(
        "--first-hour",
        action="store_true",
        help=(
            "start a fresh deployment with one instance in the busiest hour of the trace, in real "
            "time: no throughput is given, and the counts of Azure Monitor are two minutes late"
        ),
    )
    parser.add_argument(
        "--pieces",
        action="store_true",
        help="the plan scales asynchronously: two instances start each half minute of the trace",
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=STATE,
        metavar="FOLDER",
        help=(
            "folder for the log and the settings of this run; a second demo at the same time "
            "needs its own (default: .local)"
        ),
    )
    options = parser.parse_args(arguments)
    if options.night and options.without_host:
        parser.error("--night cannot be combined with --without-host: a function starts the job")
    if options.night and find_spec("pyspark") is None:
        parser.error("--night needs PySpark, which is not installed. Run `make night`")
    return options


def _positive(text: str) -> int:
    if not WHOLE.fullmatch(text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _log_to_file(state: Path) -> None:
    """Send all logs to a file, because the live view occupies the terminal."""
    state.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=state / LOG_FILE,
        filemode="w",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        force=True,
    )
    for noisy in ("azure", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
