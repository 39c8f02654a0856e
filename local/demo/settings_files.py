"""Settings files through which commands in other terminals find a running demo.

Each file names the process that wrote it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shared.settings import is_running, writer_of
from shared.settings.files import read_json

ROOT = Path(__file__).parents[2]
LOCAL_SETTINGS = ROOT / "local.settings.json"
RUNNING_SETTINGS = ROOT / ".local" / "settings.json"


class SettingsFileExists(Exception):
    """A local.settings.json exists that no earlier demo wrote."""


class AlreadyRunning(Exception):
    """Another demo uses this folder for its log and its settings."""


def refuse_second_demo(path: Path = RUNNING_SETTINGS) -> None:
    """Raises AlreadyRunning if another process runs a demo with this settings file."""
    if (process := running_writer(path)) is not None:
        raise AlreadyRunning(
            f"Process {process} already runs a demo in this folder. Stop it first, or start this "
            "one with --state FOLDER"
        )


@contextmanager
def running_settings_file(
    settings: Mapping[str, str], path: Path = RUNNING_SETTINGS
) -> Iterator[None]:
    """Write the settings of this demo for commands in another terminal; delete them at the end.

    A file of another running process is left alone, so a test does not replace a demo's file.
    """
    if running_writer(path) is not None:
        yield
        return
    path.parent.mkdir(exist_ok=True)
    with _written(settings, path):
        yield


@contextmanager
def local_settings_file(settings: Mapping[str, str], path: Path = LOCAL_SETTINGS) -> Iterator[None]:
    """Write local.settings.json and delete it at the end. A file that the user wrote is kept.

    A file of a demo that was killed is replaced. Raises SettingsFileExists.
    """
    if path.exists():
        writer = writer_of(_read(path))
        if writer is None or is_running(writer):
            raise SettingsFileExists(
                f"{path.name} exists and would be overwritten. Move it away first."
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
    """The id of another process that wrote the file and still runs; None if there is none."""
    writer = writer_of(_read(path))
    running = writer is not None and writer != os.getpid() and is_running(writer)
    return writer if running else None


def _read(path: Path) -> dict[str, Any]:
    try:
        settings = read_json(path)
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _document(settings: Mapping[str, str]) -> str:
    values = {"FUNCTIONS_WORKER_RUNTIME": "python", **settings}
    document = {"IsEncrypted": False, "Process": os.getpid(), "Values": values}
    return f"{json.dumps(document, indent=2)}\n"
