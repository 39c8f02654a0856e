"""The instances of a month from a file or from the app's decision log, where Azure has none."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise, zip_longest
from pathlib import Path

from backtest.audit_month import Month
from backtest.cpu import instances_of
from backtest.errors import BacktestError
from backtest.history import GAP, read_history
from backtest.traces.samples import MINUTE
from shared.autoscaling.deciding.decide import EntryKind, LogEntry

Span = tuple[datetime, datetime, float]
"""From when until when there were so many instances."""


def from_file(month: Month, path: Path) -> Month:
    """A value counts until the next one, but no longer than the usual step of the file."""
    points = sorted(instances_of(path).items())
    steps = Counter(later - time for (time, _), (later, _) in pairwise(points))
    step = steps.most_common(1)[0][0] if steps else MINUTE
    return _with(month, _spans([(at, at, n) for at, n in points], step, step), f"from {path.name}")


def from_log(month: Month, resource_name: str) -> Month:
    """Each decision was made at a known capacity. Reads the storage of AzureWebJobsStorage."""
    entries, _ = asyncio.run(read_history(resource_name))
    spans = _spans(decided_at(entries), GAP, MINUTE)
    return _with(month, spans, f"from the app's decision log of {resource_name}")


def decided_at(entries: Iterable[LogEntry]) -> list[Span]:
    """The times of decisions with their capacity, oldest first. The log has decisions that said
    the same as one entry."""
    known = (e for e in entries if e.kind is EntryKind.DECISION and e.current is not None)
    return sorted((e.repeated_since or e.time, e.time, float(e.current or 0)) for e in known)


def _spans(spans: Sequence[Span], gap_max: timedelta, alone: timedelta) -> list[Span]:
    """Each up to the next one, if that follows within ``gap_max``, else for ``alone`` more."""
    nexts = [start for start, *_ in spans[1:]]
    return [
        (start, after if after and after - end <= gap_max else end + alone, count)
        for (start, end, count), after in zip_longest(spans, nexts)
    ]


def _with(month: Month, spans: Iterable[Span], source: str) -> Month:
    column: list[float | None] = [None] * month.minutes
    for start, end, count in spans:
        first = max((start - month.start) // MINUTE, 0)
        last = min(-((month.start - end) // MINUTE), month.minutes)
        column[first:last] = [count] * max(last - first, 0)
    if column.count(None) == len(column):
        days = f"the {month.days} days from {month.start:%Y-%m-%d %H:%M} UTC"
        raise BacktestError(f"no instances {source} in {days}. Check its times and names")
    columns = {**month.columns, "instances": column}
    return month.model_copy(update={"columns": columns, "instances_source": source})
