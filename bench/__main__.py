"""``python -m bench [GROUP…]``: one JSON line a measurement; without a name, every group."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from bench.registry import GROUPS, unknown


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the groups one after the other; the exit code is the first one's that failed."""
    groups = _parse(arguments)
    codes = [_run(group) for group in groups]
    return next((code for code in codes if code), 0)


def _parse(arguments: Sequence[str] | None) -> Sequence[str]:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    groups: Sequence[str] = parser.parse_args(arguments).groups
    if wrong := unknown(groups):
        parser.error(f"unknown group: {', '.join(wrong)} (there are {', '.join(GROUPS)})")
    return groups or GROUPS


def _run(group: str) -> int:
    """In a process of its own: no group meets the caches, the garbage or the host of another."""
    return subprocess.run([sys.executable, "-m", "bench.registry", group], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
