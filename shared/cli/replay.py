"""``replay``: read a stretch of a partition again, into an account of its own."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

from shared.cli import ingestion_tables, words
from shared.cli.command_line import Misused
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.replay import Replayed, Stretch, replay, side_stream, silent
from shared.ingestion.operating import presenting as view
from shared.wiring.app import App

TOLD = (
    "Handles a stretch of a partition again. What becomes of it is accounted for under NAME, apart "
    "from the stream itself, whose checkpoint, effects and dead letters stay as they are, and so "
    "do tables of your own. The same NAME goes on where it stopped. Without --send no message "
    "leaves."
)


def add(commands: Any) -> None:
    parser = commands.add_parser("replay", help="read a stretch again", description=TOLD)
    parser.add_argument("partition", metavar="PARTITION")
    parser.add_argument("--into", metavar="NAME", required=True, help="letters, digits, hyphens")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--from-sequence", type=words.count, metavar="N", help="default: 0")
    start.add_argument("--from-time", type=words.time, metavar="TIME", help="ISO 8601, UTC")
    parser.add_argument(
        "--to-sequence", type=words.count, metavar="N", help="default: the newest now"
    )
    parser.add_argument(
        "--send",
        action="store_true",
        help="send the messages too, under the ids of the first time: who remembers them takes "
        "only what it missed",
    )
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=main, show=ingestion_tables.replayed)


async def main(app: App, options: argparse.Namespace) -> Any:
    stream = app.ingestion.stream(options.partition)
    try:
        side = side_stream(stream, options.into)
    except ValueError as error:
        raise Misused(str(error)) from error
    # The handler is that of the stream itself: the ids are those of it.
    line = app.ingestion.pipeline_of(stream, Writer(f"replay {options.into}"))
    consumer = replace(line.consumer, stream=side, store=app.ingestion.store_alone)
    if not options.send:
        consumer = replace(consumer, handle=silent(consumer.handle))
    stretch = Stretch(options.from_sequence, options.from_time, options.to_sequence)
    return view.replayed(
        await replay(consumer, stretch, line.sender if options.send else None, _say)
    )


def _say(so_far: Replayed) -> None:
    done = so_far.checkpoint.sequence if so_far.checkpoint else "nothing"
    sys.stderr.write(f"{done} of {so_far.last}\n")
