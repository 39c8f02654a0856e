"""See what is decided and why, read event hubs outside Functions, look after events that failed,
and send.

Exit code 0: done; 1: not all of it, refused, or something is wrong; 2: the settings, the rules or
the command are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import typer

from shared.cli import command, ingestion, messages, scaling

app = command.group(__doc__)
for commands in (scaling.commands, ingestion.commands, messages.commands):
    app.add_typer(commands)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for, and give the exit code."""
    try:
        return int(app(arguments, standalone_mode=False))
    except typer.TyperException as error:
        message = " ".join(error.format_message().split())
        return command.stopped(f"error: {message} (see --help)", command.WRONG)
