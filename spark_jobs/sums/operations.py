"""Counts the operations of a bucket that have an event, and those that have another one, too.

A bucket has whole operations. Operations with a record near midnight, or with a late one, may have
records elsewhere. They are left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shared.sampling.model import RecordKind, Sender
from shared.sampling.operations import AWAY, BOTH, HOUR, KEPT, LEFT_OUT, OF, Counts
from shared.sampling.weights import ROUNDING
from spark_jobs.read.blocks import Names, starts

EVENTS_MAX = 64
"""Only so many events of a bucket, those with the most operations, are counted."""
SLICES_MAX = 200
LIKE = 1.01
"""Weights whose ratio is below this are equal, and so are whole numbers that differ by rounding."""


def operation_counts(records: dict[str, Any], series: Names, senders: Names) -> Counts:
    """See ``shared.sampling.operations`` for the result. ``records`` are in the order of their
    hashes, so the order in which they came is irrelevant.
    """
    events = np.array([kind != RecordKind.METRIC for kind, *_ in series])
    chosen = np.flatnonzero((records["unit"] != records["key"]) & events[records["series"]])
    if not len(chosen):
        return Counts()
    columns = [records[name][chosen] for name in ("k", "series", "unit")]
    chosen = chosen[np.lexsort(columns)]  # of an event's records, that of the smallest weight first
    unit, number, sender, hour, k = (
        records[name][chosen] for name in ("unit", "series", "sender", "hour", "k")
    )
    first = starts(unit)
    sizes = np.diff(first, append=len(chosen))
    left_out = np.logical_or.reduceat((records["near"] | records["late"])[chosen], first)
    operation = np.repeat(np.cumsum(~left_out) - 1, sizes)
    rows = starts(unit, number)  # one for each event of an operation
    rows = rows[~np.repeat(left_out, sizes)[rows]]
    found = Counts({(KEPT,): len(first) - int(left_out.sum()), (LEFT_OUT,): int(left_out.sum())})
    of = np.bincount(number[rows], minlength=len(series))
    most = sorted(np.flatnonzero(of).tolist(), key=lambda n: (-of[n], series[n]))[:EVENTS_MAX]
    place = np.full(len(series), -1)
    place[most] = range(len(most))
    rows = rows[place[number[rows]] >= 0]
    table = np.full((found[KEPT,], len(most)), -1)
    table[operation[rows], place[number[rows]]] = rows
    names = [series[n] for n in most]
    found.update(_shared(table >= 0, names))
    uneven = np.maximum.reduceat(k, first) > np.minimum.reduceat(k, first)
    few = table[uneven[~left_out]]
    found.update(_sampled_away(np.where(few >= 0, k[few], 0.0), names))
    slices = _slices(senders, sender, hour)
    for event, companion in _nearest(table >= 0):
        at = table[:, companion][table[:, companion] >= 0]
        has = table[:, event][table[:, companion] >= 0] >= 0
        for name, (values, codes) in slices.items():
            of = np.bincount(codes[at], minlength=len(values))
            both = np.bincount(codes[at][has], minlength=len(values))
            for n in np.argsort(-of, kind="stable")[:SLICES_MAX].tolist():
                if of[n]:
                    key = names[event], names[companion], name, values[n]
                    found[OF, *key], found[BOTH, *key] = int(of[n]), int(both[n])
    return found


def _slices(senders: Names, sender: Any, hour: Any) -> dict[str, tuple[list[str], Any]]:
    """The values of each slice in order, and their numbers for all rows."""
    found = {HOUR: ([f"{h:02}:00 UTC" for h in range(24)], hour % 24)}
    for name, column in zip(Sender._fields, zip(*senders, strict=True), strict=True):
        values, codes = np.unique(np.array(column, object), return_inverse=True)
        found[name] = values.tolist(), codes[sender]
    return found


def _together(has: Any) -> Any:
    """The number of operations that have both, for each pair of events."""
    ones = has.astype(np.float32)  # exact, as a bucket has fewer than 2²⁴ records
    return (ones.T @ ones).astype(np.int64)


def _shared(has: Any, names: Sequence[tuple[str, ...]]) -> Counts:
    both = _together(has)
    found = Counts({(OF, name): int(both[n, n]) for n, name in enumerate(names)})
    for one, other in zip(*map(np.ndarray.tolist, np.nonzero(both)), strict=True):
        if one != other:
            found[BOTH, names[one], names[other]] = int(both[one, other])
    return found


def _sampled_away(weights: Any, names: Sequence[tuple[str, ...]]) -> Counts:
    """Of a record of weight k that shares an operation with one of weight l < k, k / l - 1 more had
    been sent, whose other record was kept. ``weights`` are 0 where an operation has no such event.
    """
    limits = np.where(weights >= 2, weights + ROUNDING, weights * LIKE)
    found = Counts()
    for event, own in enumerate(weights.T[:, :, None]):
        apart = (own >= limits) & (weights > 0)
        away = np.divide(own - weights, weights, out=np.zeros_like(weights), where=apart).sum(
            axis=0
        )
        for companion in np.flatnonzero(away >= 1).tolist():
            found[AWAY, names[event], names[companion]] = round(away[companion])
    return found


def _nearest(has: Any) -> Iterator[tuple[int, int]]:
    """Each event, and the one whose operations are the most similar to its own (Jaccard 1901)."""
    both = _together(has)
    of = both.diagonal()
    similar = both / np.maximum(of[:, None] + of - both, 1)
    np.fill_diagonal(similar, 0.0)
    for event, companion in enumerate(similar.argmax(axis=1).tolist() if len(of) > 1 else ()):
        if similar[event, companion]:
            yield event, companion
