"""Blocks of whole operations → sums by day and hour: what a task does with one bucket of a date.

Copies are counted once, and each operation adds to the variances as ``shared.sampling.estimates``
says. Records are added up in the order of their hashes, and buckets in the order of their numbers:
so the sums are the same to the last bit, whichever files and tasks the records came from.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark_jobs.read.blocks import RECORD, Numbered, unpacked
from spark_jobs.read.blocks import Series as Names
from spark_jobs.sums.sums import NAMES, HourSums, Series, Sums, Totals, sums_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COUNTS = ("records", "duplicates", "late", "doubtful", "valued")
HOURS = ("hours", "hour_records", "hour_weights")
TYPES = {
    "event_date": pa.string(),
    "bucket": pa.int32(),
    "kind": pa.string(),
    "name": pa.string(),
    "dims": pa.list_(pa.string()),
    **{name: pa.int64() if name in COUNTS else pa.float64() for name in NAMES},
    "hours": pa.list_(pa.int32()),
    "hour_records": pa.list_(pa.int64()),
    "hour_weights": pa.list_(pa.float64()),
}
SCHEMA = ", ".join(
    [
        "event_date string, bucket int, kind string, name string, dims array<string>",
        *[f"{name} {'long' if name in COUNTS else 'double'}" for name in NAMES],
        "hours array<int>, hour_records array<long>, hour_weights array<double>",
    ]
)
"""One series in one bucket of a date; its hours that have records."""

Columns = dict[str, Any]


def sums_by_bucket(blocks: DataFrame, tasks: int) -> DataFrame:
    """Blocks of a bucket of a date meet in one task, a few of them at a time go to Python."""
    met = blocks.repartition(tasks, "event_date", "bucket")
    return met.mapInArrow(_work, SCHEMA).select(*TYPES)


def _work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    gc.freeze()
    yield from sums_of_blocks(batches)


def sums_of_blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All blocks of some buckets: columns event_date, bucket, series, block → ``SCHEMA``.

    Together in one batch: each costs Spark about a millisecond.
    """
    found: dict[tuple[str, int], list[tuple[str, bytes]]] = {}
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        for event_date, bucket, series, block in zip(*columns, strict=True):
            found.setdefault((event_date, bucket), []).append((series, block))
    sums = [_sums_of_bucket(*place, found.pop(place)) for place in sorted(found)]
    if sums:
        yield from pa.Table.from_batches(sums).combine_chunks().to_batches()


def _sums_of_bucket(
    event_date: str, bucket: int, blocks: Sequence[tuple[str, bytes]]
) -> pa.RecordBatch:
    series: Numbered[Names, Names] = Numbered(lambda names: names)
    with np.errstate(over="ignore", invalid="ignore"):  # values may be as large as they like
        records = _without_copies(_put_together(blocks, series))
        sums = _sums(records, len(series))
    keys = {
        "event_date": [event_date] * len(series),
        "bucket": [bucket] * len(series),
        "kind": [names[0] for names in series.made],
        "name": [names[1] for names in series.made],
        "dims": [names[2:] for names in series.made],
    }
    columns = {**keys, **sums}
    arrays = [pa.array(columns[name], kind) for name, kind in TYPES.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(TYPES))


def _put_together(blocks: Sequence[tuple[str, bytes]], series: Numbered[Names, Names]) -> Columns:
    found = [unpacked(*block) for block in blocks]
    records = np.concatenate([records for _, records in found])
    numbers = [
        np.array([series[one] for one in names])[records["series"]] for names, records in found
    ]
    columns = {name: np.ascontiguousarray(records[name]) for name in RECORD.names or ()}
    return {**columns, "series": np.concatenate(numbers)}


def _without_copies(found: Columns) -> Columns:
    """One row a record, in the order of hashes; the order of copies that differ is no matter."""
    key, others = found["key"], [found[name] for name in ("hour", "series", "unit")]
    order = np.argsort(key)
    one, next_one = order[:-1], order[1:]
    tied = key[one] == key[next_one]
    if any((column[one[tied]] != column[next_one[tied]]).any() for column in others):
        order = np.lexsort([*others, key])  # a number that the sender gave stands for all of it
    found = {name: column[order] for name, column in found.items()}
    first = _starts(*[found[name] for name in ("key", "hour", "series", "unit")])
    records = {name: found[name][first] for name in ("unit", "series", "hour")}
    return {
        **records,
        "k": np.maximum.reduceat(found["k"], first),
        "x": np.fmax.reduceat(found["x"], first),
        "trusted": np.logical_and.reduceat(found["trusted"], first),
        "late": np.logical_and.reduceat(found["late"], first),
        "copies": np.diff(first, append=len(order)) - 1,
    }


def _sums(records: Columns, count: int) -> Columns:
    """By series."""
    series, k, valued = records["series"], records["k"], ~np.isnan(records["x"])
    x = np.where(valued, records["x"], 0.0)
    operations, c, t = _shares(records["unit"], series, k, x)

    def total(values: Any, of: Any = series) -> Any:
        """Added up one after the other, in the order that they are in."""
        return np.bincount(of, values, count)

    def number(values: Any) -> Any:
        return total(values).astype(np.int64)

    weight_max = np.zeros(count)
    np.maximum.at(weight_max, series, k)
    return {
        "records": np.bincount(series, minlength=count),
        "duplicates": number(records["copies"]),
        "late": number(records["late"]),
        "doubtful": number(~records["trusted"]),
        "valued": number(valued),
        "raw_sum": total(x),
        "weight_sum": total(k),
        "weight_square_sum": total(k * k),
        "weight_max": weight_max,
        "adjusted_sum": total(k * x),
        "count_variance": total(k * (k - 1)),
        "sum_variance": total(k * (k - 1) * x * x),
        "count_shares": total(c, operations),
        "sum_shares": total(t, operations),
        "count_share_squares": total(c * c, operations),
        "sum_share_squares": total(t * t, operations),
        **_by_hour(series, records["hour"], k, count),
    }


def _shares(unit: Any, series: Any, k: Any, x: Any) -> tuple[Any, Any, Any]:
    """Of each sampled operation its series, and what it adds to the variances of count and sum."""
    sampled = np.flatnonzero(k > 1)
    order = sampled[np.lexsort((k[sampled], series[sampled], unit[sampled]))]
    unit, series, k, x = unit[order], series[order], k[order], x[order]
    levels = _starts(unit, series, k)
    level = np.repeat(np.arange(len(levels)), np.diff(levels, append=len(order)))
    weight = k[levels]
    counts, totals = weight * np.bincount(level), weight * np.bincount(level, x)
    lightest = np.isin(levels, _starts(unit, series), assume_unique=True)
    for above in np.flatnonzero(~lightest)[::-1]:  # few: an operation is rarely of several rates
        counts[above - 1] += counts[above]
        totals[above - 1] += totals[above]
    before = np.where(lightest, 1.0, np.roll(weight, 1))
    step = 1 / before - 1 / weight
    operation = np.cumsum(lightest) - 1
    c = np.bincount(operation, step * counts * counts)
    t = np.bincount(operation, step * totals * totals)
    return series[levels][lightest], c, t


def _by_hour(series: Any, hour: Any, k: Any, count: int) -> Columns:
    """Lists by series."""
    first = int(hour.min())
    width = int(hour.max()) - first + 1
    place = series * width + (hour - first)
    records = np.bincount(place, minlength=count * width)
    weights = np.bincount(place, k, count * width)
    some = [np.flatnonzero(row) for row in records.reshape(count, width)]
    return {
        "hours": [hours + first for hours in some],
        "hour_records": [records[n * width + hours] for n, hours in enumerate(some)],
        "hour_weights": [weights[n * width + hours] for n, hours in enumerate(some)],
    }


def _starts(*columns: Any) -> Any:
    """Where a run of equal rows begins."""
    changed = np.zeros(len(columns[0]), np.bool_)
    changed[:1] = True
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changed)


def totals_of(rows: Iterable[Mapping[str, Any]]) -> Totals:
    """All buckets of a date and series together, in the order of their numbers."""
    days: dict[tuple[str, Series], Sums] = {}
    hours: dict[tuple[str, Series], dict[int, HourSums]] = {}
    for row in sorted(rows, key=_order):
        key = row["event_date"], Series(row["kind"], row["name"], tuple(row["dims"]))
        days[key] = days.get(key, Sums()).merge(sums_of(row))
        known = hours.setdefault(key, {})
        for found in map(HourSums, *[row[name] for name in HOURS]):
            known[found.hour] = known[found.hour].merge(found) if found.hour in known else found
    return Totals(
        days, {key: [known[hour] for hour in sorted(known)] for key, known in hours.items()}
    )


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["event_date"], row["kind"], row["name"], list(row["dims"]), row["bucket"]
