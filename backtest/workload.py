"""Reads a trace file into arrivals per minute for the arena.

The parser is that of ``python -m local --trace``. Here, however, missing rows do not count as zero
arrivals. A gap of up to five minutes gets the mean of the minutes beside it. A longer gap is cut
out: the next minutes follow at once, with their own time of day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backtest.arena import Floats
from backtest.errors import BacktestError
from local.demo.traces import MINUTE, Trace, TraceError, load_trace

FILLED_MINUTES_MAX = 5
GAP_NOTICE = "missing steps"


@dataclass(frozen=True)
class Workload:
    """Arrivals by minute. ``starts`` are the times of the minutes, which may jump."""

    name: str
    arrivals: Floats
    starts: Sequence[datetime]
    notices: tuple[str, ...] = ()
    without_data: int | None = None
    """Minutes of the trace without data. None: not known."""
    start_instances: int | None = None
    """The instances at the beginning, if the arrivals are CPU time in instance-minutes, not items.
    """

    @property
    def minutes(self) -> int:
        return len(self.arrivals)

    @cached_property
    def ends(self) -> Sequence[datetime]:
        return [start + MINUTE for start in self.starts]

    @cached_property
    def listed(self) -> Sequence[float]:
        return [float(arrivals) for arrivals in self.arrivals]

    def part(self, first: int, end: int) -> Workload:
        """Minutes from ``first`` up to, but not including, ``end``."""
        return Workload(self.name, self.arrivals[first:end], self.starts[first:end], self.notices)


def load_workload(path: Path) -> Workload:
    """Raises BacktestError with file, line, value and what to do."""
    try:
        trace = load_trace(path)
    except TraceError as error:
        raise BacktestError(str(error)) from error
    if not any(GAP_NOTICE in notice for notice in trace.notices):
        return _workload(path, trace, np.arange(trace.minutes), trace.notices)
    return _without_gaps(path, trace)


def workload_of(name: str, start: datetime, arrivals: Floats) -> Workload:
    """A workload from arrivals that do not come from a file."""
    return Workload(name, arrivals, [start + MINUTE * int(m) for m in range(len(arrivals))])


def _workload(
    path: Path, trace: Trace, kept: NDArray[np.int64], notices: tuple[str, ...]
) -> Workload:
    arrivals = np.asarray(trace.arrivals, dtype=np.float64)[kept]
    starts = [trace.start + MINUTE * int(minute) for minute in kept]
    missing = int((np.asarray(trace.covered) == 0).sum())
    return Workload(path.name, arrivals, starts, notices, missing)


def _without_gaps(path: Path, trace: Trace) -> Workload:
    covered = np.where(np.asarray(trace.covered) > 1 - 1e-9, 1.0, trace.covered)
    partly = (covered > 0) & (covered < 1)
    partly[-1] = False  # A trace may end within a minute.
    arrivals = np.array(trace.arrivals)
    arrivals[partly] /= covered[partly]
    kept = np.ones(trace.minutes, dtype=bool)
    filled, cut = [], []
    for first, end in _runs(covered == 0):
        if end - first <= FILLED_MINUTES_MAX:
            arrivals[first:end] = (arrivals[first - 1] + arrivals[end]) / 2
            filled.append(end - first)
        else:
            kept[first:end] = False
            cut.append(end - first)
    notices = tuple(n for n in trace.notices if GAP_NOTICE not in n)
    notices += _gap_notices(int(partly.sum()), filled, cut)
    whole = Trace(trace.start, tuple(arrivals), trace.notices, trace.covered)
    return _workload(path, whole, np.flatnonzero(kept), notices)


def _gap_notices(partly: int, filled: Sequence[int], cut: Sequence[int]) -> tuple[str, ...]:
    notices = (
        (partly, f"{partly} minutes lack some of their rows: scaled up to whole minutes"),
        (
            len(filled),
            f"{len(filled)} gaps of up to {FILLED_MINUTES_MAX} min, {sum(filled)} min in all: "
            "filled with the mean of the minutes beside them",
        ),
        (
            len(cut),
            f"longer gaps ({len(cut)}, {sum(cut)} min in all): cut out; the next minutes follow "
            "at once",
        ),
    )
    return tuple(text for count, text in notices if count)


def _runs(missing: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Start and end (not included) of each run of True."""
    edges = np.diff(np.concatenate(([False], missing, [False])).astype(np.int8))
    return list(zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True))
