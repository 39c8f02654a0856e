"""Reads a trace file into arrivals per minute for the arena.

The parser is that of ``python -m local --trace``. Here, however, steps without a value count as no
arrivals only if the user says so (``--missing zero``), or if the file evidently leaves empty
minutes out. Otherwise they were not recorded: a gap of up to five minutes gets the mean of the
minutes beside it, and a longer gap is cut out: the next minutes follow at once, with their own time
of day.
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
from backtest.traces.reading import AS_FOUND, Reading, Trace, TraceError, load_trace
from backtest.traces.samples import MINUTE, Missing

FILLED_MINUTES_MAX = 5
MISSING = ("zero", "gap")
MISSING_PLACES, MISSING_SHARE, SMALL_ROW = 3, 0.1, 5
"""How many places, which share of the steps, and how many items in the smallest row tell a file
that leaves out empty steps. Of five items a step on average, one step in 150 is empty.
"""


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


def load_workload(path: Path, reading: Reading = AS_FOUND, missing: str | None = None) -> Workload:
    """``missing`` is one of ``MISSING``. Raises BacktestError with file, place and what to do."""
    try:
        trace = load_trace(path, reading)
    except TraceError as error:
        raise BacktestError(str(error)) from error
    kept, arrivals = np.arange(trace.minutes), np.array(trace.arrivals)
    notices: tuple[str, ...] = ()
    if trace.missing:
        how = missing or ("zero" if leaves_out_empty(trace.missing) else "gap")
        notices = (_told(trace.missing, how, chosen=missing is not None),)
        if how == "gap":
            kept, arrivals, filled = _without_gaps(trace)
            notices += filled
    form = f"{trace.read_as}, {len(kept):,} minutes, {sum(trace.arrivals):,.10g} items in the file"
    starts = [trace.start + MINUTE * int(minute) for minute in kept]
    without = int((np.asarray(trace.covered) == 0).sum())
    return Workload(path.name, arrivals[kept], starts, (form, *trace.notices, *notices), without)


def leaves_out_empty(missing: Missing) -> bool:
    """Whether steps are missing because nothing arrived, rather than because nobody recorded them.

    No other row says 0, several places lack rows, and the arrivals are so few, or so many rows are
    missing, that empty steps are to be expected.
    """
    expected = missing.smallest <= SMALL_ROW or missing.share >= MISSING_SHARE
    return not missing.zeros and missing.places >= MISSING_PLACES and expected


def _told(missing: Missing, how: str, *, chosen: bool) -> str:
    if how == "zero":
        why = "" if chosen else ", because no row of the file is 0 (--missing gap: not recorded)"
        return f"{missing.text}: read as no arrivals{why}"
    return f"{missing.text}: not recorded{'' if chosen else ' (--missing zero: no arrivals)'}"


def workload_of(name: str, start: datetime, arrivals: Floats) -> Workload:
    """A workload from arrivals that do not come from a file."""
    return Workload(name, arrivals, [start + MINUTE * int(m) for m in range(len(arrivals))])


def _without_gaps(trace: Trace) -> tuple[NDArray[np.int64], Floats, tuple[str, ...]]:
    """The minutes that are kept, the arrivals of all minutes, and what was done."""
    covered = np.where(np.asarray(trace.covered) > 1 - 1e-9, 1.0, trace.covered)
    partly = (covered > 0) & (covered < 1)
    partly[-1] = False  # A trace may end within a minute.
    arrivals = np.array(trace.arrivals)
    arrivals[partly] /= covered[partly]
    kept = np.ones(trace.minutes, dtype=bool)
    filled, cut = [], []
    for first, end in runs(covered == 0):
        if first > 0 and end < trace.minutes and end - first <= FILLED_MINUTES_MAX:
            arrivals[first:end] = (arrivals[first - 1] + arrivals[end]) / 2
            filled.append(end - first)
        else:
            kept[first:end] = False
            cut.append(end - first)
    return np.flatnonzero(kept), arrivals, _gap_notices(int(partly.sum()), filled, cut)


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
            f"gaps at the ends or longer ({len(cut)}, {sum(cut)} min in all): cut out; the next "
            "minutes follow at once",
        ),
    )
    return tuple(text for count, text in notices if count)


def runs(missing: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Start and end (not included) of each run of True."""
    edges = np.diff(np.concatenate(([False], missing, [False])).astype(np.int8))
    starts, ends = np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist()
    return list(zip(starts, ends, strict=True))
