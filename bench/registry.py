"""The groups of measurements, one for each capability.

To add a group, write a module in ``bench/groups`` with a function ``measure()`` that yields
measurements, and add its name here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path

from bench.measurement import Measurement

GROUPS = (
    "decide",
    "round_trips",
    "collect",
    "fleet",
    "host",
    "backtest",
    "regret",
    "unfallen",
    "sources",
    "messaging",
    "cold_start",
    "ingest",
    "ingestion_stores",
    "recovery",
    "hostile",
    "spark",
    "new_names",
    "verdict",
    "audit",
    "page",
)


TRACES_GROUP = "regret"
"""The only group that can measure traces from files."""


def unknown(names: Iterable[str]) -> Sequence[str]:
    """The names that are not groups."""
    return [name for name in names if name not in GROUPS]


def measurer(name: str) -> Callable[..., Iterable[Measurement]]:
    """The measuring function of a group, imported late: each group imports different clients."""
    measure: Callable[..., Iterable[Measurement]] = import_module(f"bench.groups.{name}").measure
    return measure


def main(group: str, traces: str | None = None) -> None:
    """``python -m bench.registry GROUP [FOLDER]``: measure one group in this process."""
    measure = measurer(group)
    for measurement in measure() if traces is None else measure(traces=Path(traces)):
        print(measurement.line, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
