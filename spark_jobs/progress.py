"""How far Spark's tasks are, as a bar on a terminal; each reads about as many bytes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.5
WIDTH = 40


@contextmanager
def progress(spark: SparkSession, what: str) -> Iterator[None]:
    """Nothing is shown where nobody looks: standard error is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, what, ended), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        sys.stderr.write("\r\033[K")


def _watch(spark: SparkSession, what: str, ended: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not ended.wait(POLL_SECONDS):
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        tasks = sum(stage.numTasks for stage in known)
        done = sum(stage.numCompletedTasks for stage in known)
        if tasks:
            sys.stderr.write(f"\r\033[K{what} {bar(done, tasks)}")
            sys.stderr.flush()


def bar(done: int, tasks: int) -> str:
    filled = WIDTH * done // tasks
    return f"[{'#' * filled}{'.' * (WIDTH - filled)}] {done}/{tasks} tasks"
