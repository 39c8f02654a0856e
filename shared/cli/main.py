"""``python -m shared``: see what is decided and why, read event hubs outside Functions, look after
events that failed, and send.

Exit code 0: done; 1: not all of it, refused, or something is wrong; 2: settings, rules or words.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from shared.cli import (
    account,
    command_line,
    dead_letters,
    replay,
    run,
    scaling,
    send_messages,
    send_reading,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says, and print what came of it."""
    options = options_of(arguments)
    return command_line.run(options, options.show)


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line.parser("shared", __doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for each in (scaling, run, account, dead_letters, replay, send_reading, send_messages):
        each.add(commands)
    return parser.parse_args(arguments)
