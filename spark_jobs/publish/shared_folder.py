"""Tells whether a machine that runs tasks shares the output folder of the driver.

Tasks import this module, so it imports little.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname

from spark_jobs.errors import BadOutput

LOCAL = "file://"
STARTED = ".started"


@contextmanager
def marker_beside(folder: str) -> Iterator[str]:
    """A file by which tasks recognize the output folder, if it is one of a file system.

    On a machine that does not share that folder, Spark would write into another one of the same
    name, and report success.
    """
    if not folder.startswith(LOCAL):
        yield ""
        return
    marker = Path(f"{folder.removeprefix(LOCAL)}{STARTED}")
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    try:
        yield str(marker)
    finally:
        marker.unlink(missing_ok=True)


def require(marker: str) -> None:
    """Tasks call it before they write. An empty name requires nothing. Raises BadOutput."""
    if marker and not Path(marker).exists():
        raise BadOutput(
            f"--output {Path(marker).parents[1]}: {gethostname()} runs tasks and does not share"
            " this folder; name one that all machines of the cluster share, or one at abfss://"
        )
