"""``python -m shared.ingestion``: read an event hub outside Functions, and look after what failed.

Exit code 0: done; 1: not all of it, or something is wrong; 2: settings or words.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from shared import command_line
from shared.ingestion.cli import account, dead_letters, replay, run, send


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    parser = command_line.parser("shared.ingestion", __doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run.add(commands)
    account.add(commands)
    dead_letters.add(commands)
    replay.add(commands)
    send.add(commands)
    options = parser.parse_args(arguments)

    def show(answer: Any) -> None:
        from shared.ingestion.cli import console  # noqa: PLC0415  who only reads has no need

        getattr(console, options.show)(answer)

    return command_line.run(options, show)


if __name__ == "__main__":
    sys.exit(main())
