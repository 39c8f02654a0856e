"""Says in one line which package is not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

OURS = {"appservice_autoscaler", "backtest", "local", "shared", "spark_jobs"}
MISUSED = 2


@contextmanager
def packages_of(extra: str) -> Iterator[None]:
    """End the program if a package is not installed that comes with the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in OURS:
            raise
        sys.stderr.write(
            f"{package} is not installed. It comes with app-service-autoscaler[{extra}]; in a "
            "clone, make setup installs it.\n"
        )
        sys.exit(MISUSED)
