"""``python -m shared.ingestion``: read an event hub outside Functions, and look after what failed.

Settings are those of the environment, then those of ``local.settings.json`` in the folder, or of
``--settings FILE``. Exit code 0: done; 1: not all of it, or something is wrong; 2: settings.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared import settings, wiring
from shared.ingestion.cli import dead_letters, replay, run
from shared.ingestion.errors import IngestionError

DONE, FAILED, WRONG = 0, 1, 2
LOCAL_SETTINGS = Path("local.settings.json")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    options = _parser().parse_args(arguments)
    try:
        if options.settings or LOCAL_SETTINGS.exists():
            settings.add_file(options.settings or LOCAL_SETTINGS)
        answer = asyncio.run(_run(options))
    except (settings.SettingsError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return WRONG
    except IngestionError as error:
        sys.stderr.write(f"error: {type(error).__name__}: {error}\n")
        return FAILED
    except Exception as error:  # the client libraries: a person wants one line
        sys.stderr.write(f"error: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}\n")
        return FAILED
    _show(options, answer)
    return FAILED if answer and answer.get("failed") else DONE


async def _run(options: argparse.Namespace) -> Any:
    try:
        return await options.run(options)
    finally:
        await wiring.close()


def _show(options: argparse.Namespace, answer: Any) -> None:
    if answer is None:
        return
    if options.json:
        sys.stdout.write(f"{json.dumps(answer, indent=2)}\n")
        return
    from shared.ingestion.cli import console  # noqa: PLC0415  a process that only reads has no need

    getattr(console, options.show)(answer)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m shared.ingestion", description=__doc__)
    parser.add_argument(
        "--settings", type=Path, metavar="FILE", help=f"in the form of {LOCAL_SETTINGS}"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run.add(commands)
    dead_letters.add(commands)
    replay.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
