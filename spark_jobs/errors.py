"""The error that stops a job, and how commands tell errors and missing packages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from io import TextIOWrapper

LACKING = (
    "It comes with app-service-autoscaler[spark]; in a clone, make setup installs it, and on a"
    " cluster pip install -r spark_jobs/requirements.txt."
)
MISUSED = 2
PACKAGES = ("msgspec", "numpy", "pandas", "pyarrow")
"""The packages that driver and tasks need, besides pyspark."""


class JobError(Exception):
    """The job cannot continue. The message says what is wrong, where, and what to do."""


def first_line(error: Exception) -> str:
    """Returns an error of Spark's JVM or of an Azure client without stack trace or response."""
    java = getattr(error, "java_exception", None)
    text: str = java.toString() if java is not None else str(error)
    first = text.partition("\n")[0] or type(error).__name__
    return first.removeprefix("java.io.FileNotFoundException: ")


def need_packages() -> None:
    """Ends the process with one line if a package is missing."""
    for name in PACKAGES:
        if find_spec(name) is None:
            sys.stderr.write(f"{name} is not installed. {LACKING}\n")
            sys.exit(MISUSED)


def exit_code(command: str, work: Callable[[], None]) -> int:
    """Runs a command. Tells its error in one line."""
    if isinstance(sys.stdout, TextIOWrapper):  # a name that cannot be printed must not end the run
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        work()
    except (JobError, ModuleNotFoundError) as error:
        remedy = "" if isinstance(error, JobError) else f". {LACKING}"
        sys.stderr.write(f"{command}: {error}{remedy}\n")
        return 1
    return 0
