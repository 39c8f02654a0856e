"""The groups of measurements, one a capability.

A new group is a module in ``bench/groups`` with a function ``measure()`` that yields its
measurements, and its name here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module

from bench.measurement import Measurement

GROUPS = (
    "decide",
    "round_trips",
    "collect",
    "host",
    "backtest",
    "regret",
    "messaging",
    "cold_start",
    "ingest",
    "ingestion_stores",
    "recovery",
    "hostile",
    "spark",
    "verdict",
)


def unknown(names: Iterable[str]) -> Sequence[str]:
    """Those of the names that are no group."""
    return [name for name in names if name not in GROUPS]


def measurer(name: str) -> Callable[[], Iterable[Measurement]]:
    """What measures a group. Only now is it imported: each brings other clients with it."""
    measure: Callable[[], Iterable[Measurement]] = import_module(f"bench.groups.{name}").measure
    return measure


def main(group: str) -> None:
    """``python -m bench.registry GROUP``: one group, measured in this process."""
    for measurement in measurer(group)():
        print(measurement.line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
