"""A progress bar on stderr if that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


def ignore(_steps: int) -> None:
    """Discard the progress."""


class Progress:
    """Shows one bar at a time. ``advance`` counts the steps of the current task."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars: Bars | None = None

    @contextmanager
    def task(self, name: str, steps: int) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        columns = (TextColumn("{task.description:<22}"), BarColumn(), TimeElapsedColumn())
        with Bars(*columns, console=self._console, transient=True) as self._bars:
            self._bars.add_task(name, total=steps)
            yield
        self._bars = None

    def advance(self, steps: int = 1) -> None:
        if self._bars is not None:
            self._bars.advance(self._bars.task_ids[-1], steps)
