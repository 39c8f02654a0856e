"""What the command lines of the app have in common.

Settings are those of the environment, then those of ``local.settings.json`` in the folder, or of
``--settings FILE``. What went wrong is told in one line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared import settings
from shared.wiring.app import App

DONE, FAILED, WRONG = 0, 1, 2
"""Done; not all of it, refused, or something is wrong; settings, rules or words are wrong."""
INTERRUPTED = 128 + signal.SIGINT
LOCAL_SETTINGS = Path("local.settings.json")


class Misused(Exception):
    """Words that make no sense together; the text says what would."""


class Parser(argparse.ArgumentParser):
    """Takes ``--settings`` before a command or after it, for a command's parser is one too."""

    def __init__(self, **words: Any) -> None:
        super().__init__(**words)
        self.add_argument(
            "--settings",
            type=Path,
            metavar="FILE",
            default=argparse.SUPPRESS,  # else a command without it would forget what stood before
            help=f"in the form of {LOCAL_SETTINGS}",
        )


def parser(program: str, told: str | None) -> Parser:
    return Parser(prog=f"python -m {program}", description=told)


def run(options: argparse.Namespace, show: Callable[[Any], None]) -> int:
    """Do what ``options.run`` does, and show its answer, or print it as JSON; None is no answer.

    An answer with ``failed``, or with ``ok`` that is false, is told by the exit code too.
    """
    if threading.current_thread() is threading.main_thread():  # no other gets signals
        signal.signal(signal.SIGINT, signal.default_int_handler)  # now there is what to close
    file = getattr(options, "settings", None)
    try:
        if file or LOCAL_SETTINGS.exists():
            settings.add_file(file or LOCAL_SETTINGS)
        answer = asyncio.run(_closing(options))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except (settings.SettingsError, Misused) as error:
        sys.stderr.write(f"{error}\n")
        return WRONG
    except Exception as error:  # a person wants one line, of the client libraries too
        first_line = next(iter(str(error).splitlines()), "")
        sys.stderr.write(f"error: {type(error).__name__}: {first_line}\n")
        return FAILED
    if answer is not None and options.json:
        sys.stdout.write(f"{json.dumps(answer, indent=2)}\n")
    elif answer is not None:
        show(answer)
    failed = isinstance(answer, dict) and (answer.get("failed") or answer.get("ok") is False)
    return FAILED if failed else DONE


async def _closing(options: argparse.Namespace) -> Any:
    async with App() as app:
        return await options.run(app, options)
