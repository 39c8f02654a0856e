"""Show decisions and their reasons, set overrides, read event hubs outside Functions, handle dead
letters, and send messages.

Exit codes: 0, success; 1, failure, refusal, or partial success; 2, the settings, the rules or the
command line are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import typer

from shared.cli import command, ingestion, messages, notifications, scaling

app = command.group(__doc__)
for commands in (scaling.commands, ingestion.commands, messages.commands, notifications.commands):
    app.add_typer(commands)


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        return int(app(arguments, standalone_mode=False))
    except typer.TyperException as error:
        message = " ".join(error.format_message().replace("Value error, ", "").split())
        return command.stopped(f"error: {message} (see --help)", command.WRONG)
