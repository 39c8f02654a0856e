"""What all commands have in common: settings, ``--json``, exit codes, one line for what is wrong.

Settings are those of the environment, then those of ``local.settings.json`` in the folder, or of
``--settings FILE``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from shared import settings
from shared.wiring.app import App

DONE, FAILED, WRONG = 0, 1, 2
"""Done; not all of it, refused, or something is wrong; settings, rules or the command are wrong."""
INTERRUPTED = 128 + signal.SIGINT
LOCAL_SETTINGS = Path("local.settings.json")

SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", metavar="FILE", help=f"In the form of {LOCAL_SETTINGS}."),
]
Answer = tuple[Any, Callable[[Any], None]] | None
"""What a command found, ready for JSON, and the function that prints it for people."""
Action = Callable[..., Coroutine[Any, Any, Answer]]


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> Any:
    kind = inspect.Parameter.KEYWORD_ONLY  # those without a default may follow those with one
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


COMMON = [
    _parameter("context", typer.Context),
    _parameter("settings_file", SettingsFile, None),
]
JSON = _parameter("as_json", Annotated[bool, typer.Option("--json", help="Print JSON.")], False)


class Misused(typer.TyperException):
    """Options that make no sense together; the text says what would."""

    exit_code = WRONG


def group(about: str | None) -> typer.Typer:
    """Commands under one name, which takes ``--settings`` before a command's name too."""
    return typer.Typer(
        help=_unwrapped(about),
        callback=_remember_settings,
        add_completion=False,
        pretty_exceptions_enable=False,  # they print local variables, which can hold secrets
    )


def _unwrapped(text: str | None) -> str:
    """Paragraphs as one line each, for the help to wrap."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _remember_settings(context: typer.Context, file: SettingsFile = None) -> None:
    context.obj = file or context.obj


def command(
    commands: typer.Typer, name: str, *, has_json: bool = True, **typer_options: Any
) -> Callable[[Action], Action]:
    """Make a command of an async function, which is given the app; its docstring is the help, its
    other parameters are the options. ``--settings`` and ``--json`` are added."""

    def register(action: Action) -> Action:
        def call(
            context: typer.Context,
            settings_file: Path | None,
            as_json: bool = False,
            **options: Any,
        ) -> int:
            return run(partial(action, **options), settings_file or context.obj, as_json)

        _app, *own = inspect.signature(action, eval_str=True).parameters.values()
        parameters = [_parameter(each.name, each.annotation, each.default) for each in own]
        parameters += [*COMMON, JSON] if has_json else COMMON
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        commands.command(name, help=_unwrapped(action.__doc__), **typer_options)(call)
        return action

    return register


def run(action: Action, file: Path | None = None, as_json: bool = False) -> int:
    """Do it, and print its answer; an answer with ``failed`` or a false ``ok`` is a failure."""
    if threading.current_thread() is threading.main_thread():  # no other gets signals
        signal.signal(signal.SIGINT, signal.default_int_handler)  # now there is what to close
    try:
        if file or LOCAL_SETTINGS.exists():
            settings.add_file(file or LOCAL_SETTINGS)
        answer = asyncio.run(_with_app(action))
    except KeyboardInterrupt:
        return stopped("interrupted", INTERRUPTED)
    except (settings.SettingsError, Misused) as error:
        return stopped(str(error), WRONG)
    except Exception as error:  # a person wants one line, of the client libraries too
        first_line = next(iter(str(error).splitlines()), "")
        return stopped(f"error: {type(error).__name__}: {first_line}", FAILED)
    if answer is None:
        return DONE
    found, show = answer
    if as_json:
        sys.stdout.write(f"{json.dumps(found, indent=2)}\n")
    else:
        show(found)
    failed = isinstance(found, dict) and (found.get("failed") or found.get("ok") is False)
    return FAILED if failed else DONE


async def _with_app(action: Action) -> Answer:
    async with App() as app:
        return await action(app)


def stopped(why: str, code: int) -> int:
    say(why)
    return code


def say(text: str) -> None:
    """For a person who waits; not part of what was asked for."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
