"""The command line of the proof: runs it here or against a deployment, and writes its report."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from local.amqp_broker import HAS_AMQP, NO_AMQP
from local.azurite import AzuriteFailed
from local.node import NodeMissing
from local.prove import report
from local.prove.checks import checks
from local.prove.places import AzFailed, InAzure, Place, this_machine
from local.prove.run import NotReady, prove
from local.prove.script import PART, WHOLE
from shared.settings.files import read_json, values_of
from shared.values.redaction import redacted
from shared.wiring.app import App

HERE, AZURE = 10.0, 120.0
"""The minutes of a run."""
FAILED, MISUSED, INTERRUPTED = 1, 2, 130
CANCEL_SECONDS = 15.0
REPORT = Path(".local") / "proof.html"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    script = PART if options.part else WHOLE
    speed = script.minutes / (options.minutes or (AZURE if options.plan else HERE))
    if options.what_if:
        print("\n".join(f"- {each}" for each in report.quantities(script, speed)))
        return 0
    if not options.plan and not HAS_AMQP:
        print(NO_AMQP.format("there are no messages to prove anything with"), file=sys.stderr)
        return MISUSED
    options.html.parent.mkdir(parents=True, exist_ok=True)
    log = options.html.with_suffix(".log")
    logging.basicConfig(filename=log, filemode="w", level=logging.WARNING, force=True)
    try:
        return asyncio.run(_interruptible(_proved(options, speed)))
    except (AzFailed, AzuriteFailed, NodeMissing, NotReady) as error:
        print(f"{error}. Log: {log}", file=sys.stderr)
        return FAILED


async def _interruptible(work: Coroutine[Any, Any, int]) -> int:
    """The exit code of the work. A signal cancels it; again later, because a client may swallow a
    cancellation, but not so soon that it would interrupt the return of the role."""
    stopped, task = asyncio.Event(), asyncio.create_task(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    stop = asyncio.create_task(stopped.wait())
    await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
    if not stopped.is_set():
        return task.result()
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=CANCEL_SECONDS)
    print("Stopped. There is no report.", file=sys.stderr)
    return INTERRUPTED


async def _proved(options: argparse.Namespace, speed: float) -> int:
    script = PART if options.part else WHOLE
    async with _place(options, speed) as (place, settings), App(settings) as app:
        seen = await prove(place, app, script, _say)
    if options.anonymous:
        seen = report.anonymous(seen, settings)
    found = checks(seen)
    options.html.write_text(report.as_html(seen, found, place.where), "utf-8")
    for each in found:
        print(f"{report.WORDS[each.holds]}: {each.name}: {redacted(each.evidence)}")
    print(f"Report: {options.html}", "For docs/status.md:", sep="\n")
    print(report.status_line(found, place.where, datetime.now(UTC)))
    return FAILED if any(each.holds is False for each in found) else 0


@asynccontextmanager
async def _place(
    options: argparse.Namespace, speed: float
) -> AsyncIterator[tuple[Place, Mapping[str, str]]]:
    """Where it runs, and the settings of the app there."""
    if options.plan:
        values = values_of(read_json(options.settings))
        yield InAzure(speed, options.plan, options.app), {**os.environ, **values}
    else:
        async with this_machine(speed, options.html.parent) as here:
            yield here


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m local.prove", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, help=f"how long it takes ({HERE:g} here, {AZURE:g} in Azure)")
    add("--part", action="store_true", help="a few minutes of the script instead of two hours")
    add("--html", type=Path, default=REPORT, metavar="FILE", help="default: %(default)s")
    add("--anonymous", action="store_true", help="leave names and IDs out of the report")
    add("--what-if", action="store_true", help="print what it would do, and nothing else")
    add("--plan", metavar="RESOURCE_ID", help="the plan of a deployment by infra/prove.sh")
    add("--app", metavar="NAME", help="the function app of that deployment")
    add("--settings", type=Path, metavar="FILE", help="the settings of that deployment")
    options = parser.parse_args(arguments)
    if len({bool(each) for each in (options.plan, options.app, options.settings)}) > 1:
        parser.error("give --plan, --app and --settings together")
    if options.minutes is not None and not 0 < options.minutes <= 24 * 60:
        parser.error(f"--minutes {options.minutes:g}: must be above 0, and at most a day")
    return options


def _say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S}  {text}", file=sys.stderr, flush=True)
