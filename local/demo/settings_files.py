"""The files by which other terminals find what runs here; they know whose they are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shared.settings import is_running, writer_of

ROOT = Path(__file__).parents[2]
LOCAL_SETTINGS = ROOT / "local.settings.json"
RUNNING_SETTINGS = ROOT / ".local" / "settings.json"


class SettingsInTheWay(Exception):
    """A local.settings.json that somebody else wrote."""


class RunningAlready(Exception):
    """Another demo has this folder: its log and its settings are there."""


def refuse_a_second(path: Path = RUNNING_SETTINGS) -> None:
    """Raises RunningAlready."""
    if (process := running_writer(path)) is not None:
        raise RunningAlready(
            f"process {process} runs the demo of this folder: stop it first, or give this one a "
            "folder of its own with --state FOLDER"
        )


@contextmanager
def running_settings_file(
    settings: Mapping[str, str], path: Path = RUNNING_SETTINGS
) -> Iterator[None]:
    """The settings of what runs here, for command lines in another terminal.

    While another process has the file it stays that one's: a test does not take it from a demo.
    """
    if running_writer(path) is not None:
        yield
        return
    path.parent.mkdir(exist_ok=True)
    with _written(settings, path):
        yield


@contextmanager
def local_settings_file(settings: Mapping[str, str], path: Path = LOCAL_SETTINGS) -> Iterator[None]:
    """Write local.settings.json, and take it away again; never over one that a person wrote.

    One that a demo left when it was killed is nobody's.
    """
    if path.exists():
        writer = writer_of(_read(path))
        if writer is None or is_running(writer):
            raise SettingsInTheWay(
                f"{path.name} is there already; move it away, it would be overwritten"
            )
    with _written(settings, path):
        yield


@contextmanager
def _written(settings: Mapping[str, str], path: Path) -> Iterator[None]:
    path.write_text(_document(settings), encoding="utf-8")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def running_writer(path: Path) -> int | None:
    """The other process that wrote the file and still runs."""
    writer = writer_of(_read(path))
    running = writer is not None and writer != os.getpid() and is_running(writer)
    return writer if running else None


def _read(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _document(settings: Mapping[str, str]) -> str:
    values = {"FUNCTIONS_WORKER_RUNTIME": "python", **settings}
    document = {"IsEncrypted": False, "Process": os.getpid(), "Values": values}
    return f"{json.dumps(document, indent=2)}\n"
