"""``python -m shared.messaging send FILE.jsonl --queue Q``: send a file of messages.

Exit code 0: everything was sent. 1: not everything was sent, and it is said what was. 2: nothing
was sent, for the command or the file is wrong. Settings are those of the environment, then those
of ``local.settings.json`` in the folder, or of ``--settings FILE``.
"""

# A shell of its own, hence above all layers.

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from shared import settings
from shared.adapters.messaging_sender import BlockingBatchSender
from shared.connections import ServiceBusConnection
from shared.messaging.errors import MessagingError, SendingStopped
from shared.messaging.lines import read_messages
from shared.messaging.model import Message, Order, Progress, Result

SENT, PARTLY, WRONG = 0, 1, 2
LOCAL_SETTINGS = Path("local.settings.json")
ORDERS = {"kept": Order.KEPT, "per-key": Order.KEPT_PER_KEY, "free": Order.FREE}


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, send, and say what came of it."""
    chosen = _parser().parse_args(arguments)
    try:
        if chosen.settings or LOCAL_SETTINGS.exists():
            settings.add_file(chosen.settings or LOCAL_SETTINGS)
        messages = read_messages(_lines(chosen.file), raw=chosen.raw)
        connection = settings.parse()[0].service_bus(chosen.connection)
        result = _send(connection, chosen, messages)
    except SendingStopped as stopped:
        _say(_summary(stopped.result))
        _say(f"error: {stopped}")
        return PARTLY
    except settings.SettingsError as error:
        _say(f"error: {error}")
        return WRONG
    except (MessagingError, OSError, UnicodeDecodeError) as error:
        _say(f"error: {chosen.file}: {error}")
        return WRONG
    _say(_summary(result))
    return PARTLY if result.refused else SENT


def _send(
    connection: ServiceBusConnection, chosen: argparse.Namespace, messages: list[Message]
) -> Result:
    entity = chosen.queue or chosen.topic
    with BlockingBatchSender(connection, entity, _now, topic=bool(chosen.topic)) as sender:
        return sender.send(messages, ORDERS[chosen.order], _show)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m shared.messaging", description="Service Bus messages"
    )
    commands = parser.add_subparsers(required=True, metavar="send")
    send = commands.add_parser("send", help="send the messages of a file", description=__doc__)
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
    send.add_argument("--settings", type=Path, metavar="FILE", help=f"in place of {LOCAL_SETTINGS}")
    send.add_argument("--order", choices=ORDERS, default="kept", help="default: %(default)s")
    send.add_argument("--raw", action="store_true", help="each line is a body")
    return parser


def _lines(file: str) -> list[str]:
    text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    return text.split("\n")


def _summary(result: Result) -> str:
    lines = [
        f"{result.sent} message(s) sent in {result.batches} batch(es), {result.bytes} bytes, "
        f"{result.retries} retries"
    ]
    if result.resent_unknown:
        lines.append(
            f"{result.resent_unknown} message(s) were sent again after an unknown outcome: without "
            "duplicate detection they may be there twice"
        )
    if result.refused:
        lines.append(f"refused by the service: {', '.join(result.refused)}")
    return "\n".join(lines)


def _show(progress: Progress) -> None:
    _say(f"{progress.sent} of {progress.total} sent")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - a command line is a shell


if __name__ == "__main__":
    sys.exit(main())
