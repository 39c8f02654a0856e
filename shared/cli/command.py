"""The common behavior of all commands: settings, ``--json``, exit codes, and one-line errors."""

from __future__ import annotations

import asyncio
import inspect
import json
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from shared import settings
from shared.autoscaling.errors import OverrideRefused, UnknownResource
from shared.values.text import last_such_time, number, told, whole
from shared.wiring.app import App, utc_now
from shared.wiring.remedies import with_remedy

DONE, FAILED, WRONG = 0, 1, 2
"""Exit codes: success; failure, refusal, or partial success; wrong settings, rules or command."""
INTERRUPTED = 128 + signal.SIGINT

SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", metavar="FILE", help=f"A file like {settings.LOCAL_FILE}."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Moment = Annotated[
    datetime | None,
    typer.Option(
        parser=lambda text: last_such_time(text, utc_now()),
        metavar="TIME",
        help="ISO 8601, or 14:03 for the last such time; UTC.",
    ),
]
Answer = tuple[Any, Callable[[Any], None]] | None
"""The result of a command as a JSON value, and the function that prints it as text."""
Action = Callable[..., Coroutine[Any, Any, Answer]]


class Misused(typer.TyperException):
    """Invalid arguments or a wrong combination of options. The text says what is valid."""

    exit_code = WRONG


def group(about: str | None) -> typer.Typer:
    """A group of commands. It accepts ``--settings`` before the name of the command, too."""
    return typer.Typer(
        help=_unwrapped(about),
        callback=_remember_settings,
        add_completion=False,
        pretty_exceptions_enable=False,  # they would print local variables, which may be secrets
    )


def _unwrapped(text: str | None) -> str:
    """The text with each paragraph on one line, so that the help can wrap it."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _remember_settings(context: typer.Context, file: SettingsFile = None) -> None:
    context.obj = file or context.obj


def command(
    commands: typer.Typer, name: str, *, has_json: bool = True, **typer_options: Any
) -> Callable[[Action], Action]:
    """Register an async function as a command. The app is its first argument, its docstring the
    help, and the other parameters are options."""

    def register(action: Action) -> Action:
        def call(
            context: typer.Context,
            settings_file: SettingsFile = None,
            as_json: AsJson = False,
            **options: Any,
        ) -> int:
            return run_action(partial(action, **options), settings_file or context.obj, as_json)

        _app, *own = inspect.signature(action, eval_str=True).parameters.values()
        *common, as_json, _options = inspect.signature(call, eval_str=True).parameters.values()
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                each.replace(kind=each.KEYWORD_ONLY, annotation=_numeric(each.annotation))
                for each in (*own, *common, *[as_json][:has_json])
            ]
        )
        commands.command(name, help=_unwrapped(action.__doc__), **typer_options)(call)
        return action

    return register


def _numeric(annotation: Any) -> Any:
    """The annotation of a parameter. Typer alone would accept ``1_0`` as a number."""
    kind, *options = get_args(annotation) or (annotation,)
    kinds = get_args(kind) or (kind,)
    parse = whole if int in kinds else number if float in kinds else None
    if parse and options and options[0].parser is None:
        options[0].parser = partial(_bounded, parse, options[0].min, options[0].max)
    return annotation


def _bounded(
    parse: Callable[[str], float], low: float | None, high: float | None, given: object
) -> float:
    value = parse(str(given))  # Typer parses defaults, too
    if (low is not None and value < low) or (high is not None and value > high):
        span = f"at least {low:,}" if high is None else f"from {low:,} to {high:,}"
        raise ValueError(f"{given} must be {span}")
    return value


def run_action(action: Action, file: Path | None = None, as_json: bool = False) -> int:
    if threading.current_thread() is threading.main_thread():
        # Only the main thread gets signals. From now on, Ctrl-C closes the app before the exit.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    unread = ""
    try:
        unread = settings.add_file_or_local(file)
        answer = asyncio.run(_with_app(action))
    except KeyboardInterrupt:
        return stopped("interrupted", INTERRUPTED)
    except Misused as error:
        return stopped(f"error: {error}", WRONG)
    except settings.SettingsError as error:
        return stopped(f"{error}{unread}", WRONG)
    except Exception as error:  # print one line, even for errors of client libraries
        text = with_remedy(f"error: {next(iter(told(error).splitlines()))}")
        wrong = isinstance(error, UnknownResource | OverrideRefused)
        return stopped(text, WRONG if wrong else FAILED)
    return _printed(*answer, as_json=as_json) if answer else DONE


def _printed(result: Any, show: Callable[[Any], None], *, as_json: bool) -> int:
    if as_json:
        sys.stdout.write(f"{json.dumps(result, indent=2)}\n")
    else:
        show(result)
    failed = isinstance(result, dict) and (result.get("failed") or result.get("ok") is False)
    return FAILED if failed else DONE


async def _with_app(action: Action) -> Answer:
    async with App() as app:
        return await action(app)


def stopped(why: str, code: int) -> int:
    say(why)
    return code


def say(text: str) -> None:
    """Print progress or an error to stderr, apart from the command's result."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
