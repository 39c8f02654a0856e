"""``python -m shared.ingestion``: read an event hub outside Functions, and look after what failed.

Settings are those of the environment, then those of ``local.settings.json`` in the folder, or of
``--settings FILE``. Exit code 0: done; 1: not all of it, or something is wrong; 2: settings.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from shared import settings
from shared.ingestion.cli import run
from shared.ingestion.errors import IngestionError

DONE, FAILED, WRONG = 0, 1, 2
LOCAL_SETTINGS = Path("local.settings.json")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    options = _parser().parse_args(arguments)
    try:
        if options.settings or LOCAL_SETTINGS.exists():
            settings.add_file(options.settings or LOCAL_SETTINGS)
        answer = asyncio.run(options.run(options))
    except (settings.SettingsError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return WRONG
    except IngestionError as error:
        sys.stderr.write(f"error: {type(error).__name__}: {error}\n")
        return FAILED
    return FAILED if answer is False else DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m shared.ingestion", description=__doc__)
    parser.add_argument(
        "--settings", type=Path, metavar="FILE", help=f"in the form of {LOCAL_SETTINGS}"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
