"""``send-messages FILE.jsonl --queue Q``: send a file of messages to Service Bus.

Exit code 0: everything was sent. 1: not everything was sent, and it is said what was. 2: nothing
was sent, for the command or the file is wrong. What it waits for it tells as it goes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shared import settings
from shared.cli.command_line import Misused
from shared.messaging.errors import LinkFailed, MessagingError, SendingStopped
from shared.messaging.lines import read_messages
from shared.messaging.model import Message, Order, Progress, Result
from shared.messaging.send import BatchSender
from shared.messaging.sending import RetryBudget
from shared.wiring.app import App
from shared.wiring.batch_sender import batch_sender

ORDERS = {"kept": Order.KEPT, "per-key": Order.KEPT_PER_KEY, "free": Order.FREE}
NOTHING = Result(sent=0, batches=0, bytes=0, retries=0, resent_unknown=0, refused=())
TRIES = 6
"""With pauses of half a second, doubled each time: given up after a quarter of a minute."""


async def _send(app: App, options: argparse.Namespace) -> dict[str, Any]:
    """What became of the messages; with ``failed`` where not all of them were sent."""
    try:
        messages = read_messages(_lines(options.file), raw=options.raw)
    except (MessagingError, OSError, UnicodeDecodeError) as error:
        raise Misused(f"error: {options.file}: {error}") from error
    connection = settings.parse()[0].service_bus(options.connection)
    entity = options.queue or options.topic
    _say(f"{len(messages)} message(s) to {entity} at {connection.host}")
    sender = app.open(
        batch_sender,
        connection,
        entity,
        app.now,
        topic=bool(options.topic),
        patience=RetryBudget(failures_max=options.tries),
        on_pause=lambda why, seconds: _say(f"{why}; trying again in {seconds:g} s"),
    )
    return await _sent(sender, messages, options)


async def _sent(
    sender: BatchSender, messages: list[Message], options: argparse.Namespace
) -> dict[str, Any]:
    told = Told()
    try:
        result = await sender.send(messages, ORDERS[options.order], told)
    except SendingStopped as stopped:
        return {**asdict(stopped.result), "failed": str(stopped)}
    except LinkFailed as error:
        return {**asdict(NOTHING), "failed": str(error)}
    except MessagingError as error:
        raise Misused(f"error: {options.file}: {error}") from error
    except asyncio.CancelledError:  # Ctrl-C: what was sent is sent
        _say(f"{told.sent} of {len(messages)} message(s) are known to be sent")
        raise
    refused = ", ".join(result.refused)
    return {**asdict(result), "failed": f"refused by the service: {refused}" if refused else ""}


class Told:
    """Says how far it is, and remembers it."""

    sent = 0

    def __call__(self, progress: Progress) -> None:
        self.sent = progress.sent
        _say(f"{progress.sent} of {progress.total} sent")


def add(commands: Any) -> None:
    send = commands.add_parser(
        "send-messages", help="send the messages of a file", description=__doc__
    )
    send.add_argument("file", metavar="FILE.jsonl", help="a message a line; - reads the input")
    entity = send.add_mutually_exclusive_group(required=True)
    entity.add_argument("--queue", metavar="Q")
    entity.add_argument("--topic", metavar="T")
    send.add_argument(
        "--connection",
        metavar="NAME",
        default="ServiceBusConnection",
        help="the setting that says how to reach Service Bus (%(default)s)",
    )
    send.add_argument("--order", choices=ORDERS, default="kept", help="default: %(default)s")
    send.add_argument("--raw", action="store_true", help="each line is a body")
    send.add_argument("--json", action="store_true")
    send.add_argument(
        "--tries",
        type=_positive,
        default=TRIES,
        metavar="N",
        help="of one batch in a row, with pauses that double from 0.5 s (%(default)s)",
    )
    send.set_defaults(run=_send, show=_show)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def _lines(file: str) -> list[str]:
    text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    return text.split("\n")


def _show(answer: dict[str, Any]) -> None:
    said = (
        f"{answer['sent']} message(s) sent in {answer['batches']} batch(es), "
        f"{answer['bytes']} bytes, {answer['retries']} retries\n"
    )
    if answer["resent_unknown"]:
        said += (
            f"{answer['resent_unknown']} message(s) were sent again after an unknown outcome: "
            "without duplicate detection they may be there twice\n"
        )
    sys.stdout.write(said)
    if answer["failed"]:
        _say(f"error: {answer['failed']}")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
