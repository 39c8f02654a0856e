"""``python -m bench [GROUP…]``: print one JSON line for each measurement. Default: all groups."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from bench.registry import GROUPS, TRACES_GROUP, unknown


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the groups one after the other. Return the exit code of the first one that failed."""
    groups, traces = _parse(arguments)
    codes = [_run(group, *(traces if group == TRACES_GROUP else ())) for group in groups]
    return next((code for code in codes if code), 0)


def _parse(arguments: Sequence[str] | None) -> tuple[Sequence[str], Sequence[str]]:
    """The groups, and the arguments of the group that reads traces."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument(
        "--traces",
        metavar="FOLDER",
        help=f"for {TRACES_GROUP}: CSV files with the columns time,arrivals, not made-up traffic",
    )
    options = parser.parse_args(arguments)
    groups: Sequence[str] = options.groups
    if wrong := unknown(groups):
        parser.error(f"unknown group: {', '.join(wrong)}. The groups are {', '.join(GROUPS)}.")
    if options.traces is None:
        return groups or GROUPS, ()
    if not {TRACES_GROUP}.issuperset(groups):
        parser.error(f"--traces is for the group {TRACES_GROUP} alone")
    return (TRACES_GROUP,), (options.traces,)


def _run(group: str, *arguments: str) -> int:
    """Run a group in its own process, so that groups do not affect each other."""
    command = [sys.executable, "-m", "bench.registry", group, *arguments]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
