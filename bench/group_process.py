"""``python -m bench.group_process GROUP``: one group, measured in this process."""

from __future__ import annotations

import sys

from bench.registry import measurer


def main(group: str) -> None:
    for measurement in measurer(group)():
        print(measurement.line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
