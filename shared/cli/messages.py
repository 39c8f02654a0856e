"""The command ``send-messages``, which sends a file of messages to Service Bus."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from shared import settings
from shared.cli.command import Answer, Misused, command, say
from shared.messaging.batch_sender import WINDOW_PASSED, BatchSender
from shared.messaging.lines import read_messages
from shared.messaging.model import Progress, SendingStopped
from shared.messaging.send_state import RetryBudget
from shared.values.messages import (
    LinkFailed,
    Message,
    MessagesRefused,
    MessagingError,
    Order,
    Result,
)
from shared.wiring.app import App
from shared.wiring.remedies import with_remedy

commands = typer.Typer()
ORDERS = {"kept": Order.KEPT, "per-key": Order.KEPT_PER_KEY, "free": Order.FREE}
NOTHING = Result(sent=0, batches=0, bytes=0, retries=0, resent_unknown=0, refused=())
GAP = "Messages that follow a refused message are sent without it, even in the same session."
TRIES = 6
"""The pauses start at 0.5 s and double, so the command gives up after about 15 s."""


@command(commands, "send-messages")
async def send_messages(  # noqa: PLR0913, PLR0917  a parameter is an option
    app: App,
    file: Annotated[
        str, typer.Argument(metavar="FILE.jsonl", help="One message per line; - is stdin.")
    ],
    queue: Annotated[str, typer.Option(metavar="Q", show_default=False)] = "",
    topic: Annotated[str, typer.Option(metavar="T", show_default=False)] = "",
    connection: Annotated[
        str, typer.Option(metavar="NAME", help="The setting with the Service Bus connection.")
    ] = "ServiceBusConnection",
    order: Literal["kept", "per-key", "free"] = "kept",
    raw: Annotated[
        bool, typer.Option("--raw", help="Each line is a message body in JSON.")
    ] = False,
    tries: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Attempts per batch, with pauses that double from 0.5 s.",
        ),
    ] = TRIES,
    resend_unknown: Annotated[
        bool,
        typer.Option(
            "--resend-unknown",
            help="Send messages again that may have arrived, even after the duplicate detection "
            "window. They may then arrive twice.",
        ),
    ] = False,
) -> Answer:
    """Send the messages of a file to a queue or a topic of Service Bus.

    A message that may have arrived is sent again under the same ID. Once the queue's duplicate
    detection window has passed, the command stops and names such messages.

    Exit codes: 0, all messages were sent; 1, not all were sent, and the output says how many; 2,
    none was sent, because the command line or the file is wrong.
    """
    if bool(queue) == bool(topic):
        raise Misused("give either --queue or --topic")
    try:
        messages = read_messages(_lines(file), raw=raw)
    except (MessagingError, OSError, UnicodeDecodeError) as error:
        raise Misused(f"{file}: {getattr(error, 'strerror', '') or error}") from error
    namespace = settings.parse()[0].service_bus(connection)
    say(f"{len(messages)} message(s) to {queue or topic} at {namespace.host}")
    from shared.azure.service_bus import duplicate_window  # noqa: PLC0415  heavy to import
    from shared.wiring.batch_sender import batch_sender  # noqa: PLC0415  heavy to import

    try:
        sender = app.open(
            batch_sender,
            namespace,
            queue or topic,
            app.now,
            topic=bool(topic),
            budget=RetryBudget(failures_max=tries),
            on_pause=lambda why, seconds: say(f"{why}; next attempt in {seconds:g} s"),
        )
        unread = ""
        if not resend_unknown:
            window = await duplicate_window(namespace, queue or topic, topic=bool(topic))
            if isinstance(window, str):
                unread = window
            else:
                sender.duplicate_window = window
        return await _send(sender, messages, ORDERS[order]) | {"window_unread": unread}, _show
    except MessagingError as error:
        raise Misused(f"{file}: {error}") from error


async def _send(sender: BatchSender, messages: Sequence[Message], order: Order) -> dict[str, Any]:
    """The result of sending, with ``failed`` if not all messages were sent."""
    sent = 0

    def on_progress(progress: Progress) -> None:
        nonlocal sent
        sent = progress.sent
        say(f"{sent} of {progress.total} sent")

    result, failed, unknown = NOTHING, "", tuple[str, ...]()
    try:
        result = await sender.send(messages, order, on_progress)
    except SendingStopped as stopped:
        result, failed, unknown = stopped.result, str(stopped), stopped.unknown
        if WINDOW_PASSED in failed:
            failed += ". Check whether they arrived, or give --resend-unknown to send them again"
    except LinkFailed as error:
        failed = str(error)
    except asyncio.CancelledError:  # Ctrl-C
        say(f"{sent} of {len(messages)} message(s) are known to be sent")
        raise
    if result.refused:
        failed = f"{MessagesRefused(result.refused)}. {GAP} {failed}".rstrip()
    shown = {"refused": [*map(str, result.refused)], "unknown": [*unknown], "failed": failed}
    return {**asdict(result), **shown}


def _lines(file: str) -> list[str]:
    """UTF-16, which PowerShell 5.1 writes, is read too."""
    data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    return data.decode(json.detect_encoding(data)).split("\n")


def _show(answer: dict[str, Any]) -> None:
    text = (
        f"{answer['sent']} message(s) sent in {answer['batches']} batch(es), "
        f"{answer['bytes']} bytes, {answer['retries']} retries\n"
    )
    if answer["resent_unknown"]:
        text += (
            f"{answer['resent_unknown']} message(s) were sent again after an unknown outcome; "
            "they may be duplicated unless the queue detected duplicates all that time\n"
        )
        if answer["window_unread"]:
            text += f"the queue's window could not be read: {answer['window_unread']}\n"
    sys.stdout.write(text)
    if answer["failed"]:
        say(with_remedy(f"error: {answer['failed']}"))
