"""``dead-letters``: list, show, redrive and purge the events that failed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from shared.cli import ingestion_tables as tables
from shared.cli import words
from shared.cli.command_line import Misused
from shared.ingestion.dead_letters.find import DeadLetterQuery, chunks, find, older_than, read
from shared.ingestion.dead_letters.ports import StoredDeadLetter
from shared.ingestion.dead_letters.redrive import DeadLetterResult, forward, purge
from shared.ingestion.errors import NotFound
from shared.ingestion.model import FailureKind
from shared.ingestion.operating import presenting as view
from shared.wiring import ingestion as wiring_ingestion
from shared.wiring import ingestion_state as state

store = state.store
AT_ONCE = 100
"""Taken up in one go; what was done is told after each."""


def add(commands: Any) -> None:
    letters = commands.add_parser("dead-letters", help="the events that failed")
    actions = letters.add_subparsers(required=True, metavar="list|show|redrive|purge")
    listing = _action(actions, "list", _list, tables.listed, "one line for each")
    listing.add_argument("--limit", type=words.count, default=100, help="default: %(default)s")
    listing.add_argument("--after", type=words.count, metavar="SEQUENCE")
    listing.add_argument("--older-than", type=words.age, metavar="30d", help="failed before that")
    _add_show(actions)
    _add_redrive(actions)
    purging = _action(actions, "purge", _purge, tables.done, "give events up for good")
    purging.add_argument("--older-than", type=words.age, metavar="30d", required=True)
    purging.add_argument("--dry-run", action="store_true", help="only list what would go")


def _add_show(actions: Any) -> None:
    show = _action(actions, "show", _show, tables.whole, "one, with its error and body")
    _place(show)
    show.add_argument("--raw", action="store_true", help="nothing but the body, byte by byte")


def _add_redrive(actions: Any) -> None:
    redrive = _action(actions, "redrive", _redrive, tables.done, "put events in again, each once")
    _place(redrive, nargs="?")
    redrive.add_argument("--all", action="store_true", help="all that the options describe")
    redrive.add_argument("--older-than", type=words.age, metavar="30d")
    redrive.add_argument(
        "--to-queue", metavar="Q", help="not into the pipeline but to this Service Bus queue"
    )
    redrive.add_argument(
        "--connection", metavar="NAME", default="ServiceBusConnection", help="default: %(default)s"
    )


async def _list(options: argparse.Namespace) -> Any:
    found = await find(store(), await _wanted(options), options.limit, options.after)
    return view.letters_page(found, options.limit)


async def _show(options: argparse.Namespace) -> Any:
    stored, event = await read(store(), wiring_ingestion.hub(), await _wanted(options))
    if options.raw:
        sys.stdout.buffer.write(event.body)
        return None
    return view.letter_with_body(stored, event)


async def _redrive(options: argparse.Namespace) -> Any:
    if options.all == (options.sequence is not None):
        raise Misused("name one by PARTITION and SEQUENCE, or say --all")
    if options.to_queue is None:
        return await _each(options, _into_the_pipeline)
    hub = wiring_ingestion.hub()
    sender = wiring_ingestion.dead_letter_queue(options.connection, options.to_queue)
    try:
        return await _each(options, lambda some: forward(store(), hub, sender, some))
    finally:
        await sender.close()


async def _into_the_pipeline(letters: Sequence[StoredDeadLetter]) -> DeadLetterResult:
    outcome = await wiring_ingestion.redriver().run(letters)
    await wiring_ingestion.send_redriven(outcome.done)
    return outcome


async def _purge(options: argparse.Namespace) -> Any:
    if options.dry_run:
        return await _each(options, _only_count)
    return await _each(options, lambda some: purge(store(), some))


async def _only_count(letters: Sequence[StoredDeadLetter]) -> DeadLetterResult:
    return DeadLetterResult(done=list(letters))


async def _each(
    options: argparse.Namespace,
    act: Callable[[Sequence[StoredDeadLetter]], Awaitable[DeadLetterResult]],
) -> Any:
    """Take up all that is wanted, a hundred at a time."""
    outcome = DeadLetterResult()
    async for some in chunks(store(), await _wanted(options), AT_ONCE):
        outcome.add(await act(some))
    if options.sequence is not None and not (outcome.done or outcome.failed or outcome.gone):
        raise NotFound("no dead letter of this number")
    return view.result(outcome)


async def _wanted(options: argparse.Namespace) -> DeadLetterQuery:
    return DeadLetterQuery(
        options.hub,
        options.group,
        options.partition,
        options.sequence,
        FailureKind(options.kind) if options.kind else None,
        await _before(options.older_than),
    )


async def _before(age: timedelta | None) -> datetime | None:
    streams = [] if age is None else await store().streams()
    return await older_than(store(), streams[0], age) if age and streams else None


def _action(actions: Any, name: str, run: Any, show: Any, told: str) -> Any:
    parser = actions.add_parser(name, help=told, description=told)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--hub", help="of this hub only")
    parser.add_argument("--group", help="of this consumer group only, GROUP~NAME for a replay's")
    parser.add_argument("--kind", choices=[str(kind) for kind in FailureKind])
    if name in ("list", "purge"):
        parser.add_argument("--partition", help="of this partition only")
    parser.set_defaults(run=run, show=show, partition=None, sequence=None, older_than=None)
    return parser


def _place(parser: Any, nargs: str | None = None) -> None:
    parser.add_argument("partition", metavar="PARTITION", nargs=nargs)
    parser.add_argument("sequence", metavar="SEQUENCE", type=words.count, nargs=nargs)
