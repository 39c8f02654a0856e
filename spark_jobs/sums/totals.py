"""Turns blocks of whole operations into sums by day and hour, in the tasks of the second Spark job.

Copies are counted once, and each operation adds to the variances as ``shared.sampling.estimates``
describes. Records are added in the order of their hashes, and buckets in the order of their
numbers, so the sums are equal to the last bit, whichever files and tasks the records came from.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shared.sampling.estimates import NAMES, Sums, sums_of
from spark_jobs.model import HourSums, Series, Totals
from spark_jobs.read.blocks import RECORD, Numbered, SeriesNames, unpacked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COUNTS = ("records", "duplicates", "late", "doubtful", "valued")
HOUR = {"hour": pa.int32(), "records": pa.int64(), "weight_sum": pa.float64()}
SCHEMA = pa.schema(
    {
        "event_date": pa.string(),
        "bucket": pa.int32(),
        "kind": pa.string(),
        "name": pa.string(),
        "dims": pa.list_(pa.string()),
        **{name: pa.int64() if name in COUNTS else pa.float64() for name in NAMES},
        "hours": pa.list_(pa.struct(HOUR)),
    }
)
"""A row for one series in one bucket of a date, with the hours that have records."""

Columns = dict[str, Any]


def sums_by_bucket(blocks: DataFrame, tasks: int) -> DataFrame:
    """Returns rows of ``SCHEMA``. One task gets all blocks of a bucket of a date."""
    from pyspark.sql.pandas.types import from_arrow_schema

    met = blocks.repartition(tasks, "event_date", "bucket")
    return met.mapInArrow(_work, from_arrow_schema(SCHEMA)).select(*SCHEMA.names)


def _work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    gc.freeze()
    yield from sums_of_blocks(batches)


def sums_of_blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Adds up whole buckets: turns the columns event_date, bucket, series and block into those of
    ``SCHEMA``. Yields only one batch, because Spark needs about a millisecond for each batch.
    """
    buckets: dict[tuple[str, int], list[tuple[str, bytes]]] = {}
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        for event_date, bucket, series, block in zip(*columns, strict=True):
            buckets.setdefault((event_date, bucket), []).append((series, block))
    sums = [_sums_of_bucket(*place, buckets.pop(place)) for place in sorted(buckets)]
    if sums:
        yield from pa.Table.from_batches(sums).combine_chunks().to_batches()


def _sums_of_bucket(
    event_date: str, bucket: int, blocks: Sequence[tuple[str, bytes]]
) -> pa.RecordBatch:
    series: Numbered[SeriesNames] = Numbered()
    with np.errstate(over="ignore", invalid="ignore"):  # measurements may be of any size
        records = _without_copies(_concatenated(blocks, series))
        sums = _sums(records, len(series))
    columns = {
        "event_date": [event_date] * len(series),
        "bucket": [bucket] * len(series),
        "kind": [names[0] for names in series],
        "name": [names[1] for names in series],
        "dims": [names[2:] for names in series],
        **sums,
    }
    arrays = [pa.array(columns[each.name], each.type) for each in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _concatenated(blocks: Sequence[tuple[str, bytes]], series: Numbered[SeriesNames]) -> Columns:
    parts = [unpacked(*block) for block in blocks]
    records = np.concatenate([records for _, records in parts])
    numbers = [
        np.array([series[each] for each in names])[records["series"]] for names, records in parts
    ]
    columns = {name: np.ascontiguousarray(records[name]) for name in RECORD.names or ()}
    return {**columns, "series": np.concatenate(numbers)}


def _without_copies(rows: Columns) -> Columns:
    """Returns one row for each record, in the order of hashes. The order of copies is irrelevant.

    Two different records can have the same key if a sender gave both the same id.
    """
    key, others = rows["key"], [rows[name] for name in ("hour", "series", "unit")]
    order = np.argsort(key)
    one, next_one = order[:-1], order[1:]
    tied = key[one] == key[next_one]
    if any((column[one[tied]] != column[next_one[tied]]).any() for column in others):
        order = np.lexsort([*others, key])
    rows = {name: column[order] for name, column in rows.items()}
    first = _starts(*[rows[name] for name in ("key", "hour", "series", "unit")])
    return {
        **{name: rows[name][first] for name in ("unit", "series", "hour")},
        "k": np.maximum.reduceat(rows["k"], first),
        "x": np.fmax.reduceat(rows["x"], first),
        "trusted": np.logical_and.reduceat(rows["trusted"], first),
        "late": np.logical_and.reduceat(rows["late"], first),
        "copies": np.diff(first, append=len(order)) - 1,
    }


def _sums(records: Columns, count: int) -> Columns:
    """Returns one value for each of ``count`` series in each column."""
    series, k, valued = records["series"], records["k"], ~np.isnan(records["x"])
    x = np.where(valued, records["x"], 0.0)
    operations, c, t = _shares(records["unit"], series, k, x)

    def total(values: Any, of: Any = series) -> Any:
        """Adds values one after the other, in their given order."""
        return np.bincount(of, values, count)

    weight_max = np.zeros(count)
    np.maximum.at(weight_max, series, k)
    return {
        "records": np.bincount(series, minlength=count),
        "duplicates": total(records["copies"]).astype(np.int64),
        "late": total(records["late"]).astype(np.int64),
        "doubtful": total(~records["trusted"]).astype(np.int64),
        "valued": total(valued).astype(np.int64),
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
        "hours": _by_hour(series, records["hour"], k, count),
    }


def _shares(unit: Any, series: Any, k: Any, x: Any) -> tuple[Any, Any, Any]:
    """Returns the series of each sampled operation, and its contribution to both variances. A level
    consists of the records of one operation that have the same weight.
    """
    sampled = np.flatnonzero(k > 1)
    order = sampled[np.lexsort((k[sampled], series[sampled], unit[sampled]))]
    unit, series, k, x = unit[order], series[order], k[order], x[order]
    levels = _starts(unit, series, k)
    level = np.repeat(np.arange(len(levels)), np.diff(levels, append=len(order)))
    weight = k[levels]
    counts, totals = weight * np.bincount(level), weight * np.bincount(level, x)
    lightest = np.isin(levels, _starts(unit, series), assume_unique=True)
    for above in np.flatnonzero(~lightest)[::-1]:  # few, as most operations have one rate
        counts[above - 1] += counts[above]
        totals[above - 1] += totals[above]
    before = np.where(lightest, 1.0, np.roll(weight, 1))
    step = 1 / before - 1 / weight
    operation = np.cumsum(lightest) - 1
    c = np.bincount(operation, step * counts * counts)
    t = np.bincount(operation, step * totals * totals)
    return series[levels][lightest], c, t


def _by_hour(series: Any, hour: Any, k: Any, count: int) -> list[list[tuple[int, int, float]]]:
    """Returns the hours with records of each series, each with its hour, number of records, and sum
    of weights.
    """
    first = int(hour.min())
    width = int(hour.max()) - first + 1
    place = series * width + (hour - first)
    records = np.bincount(place, minlength=count * width).tolist()
    weights = np.bincount(place, k, count * width).tolist()
    return [
        [(first + n, records[at + n], weights[at + n]) for n in range(width) if records[at + n]]
        for at in range(0, count * width, width)
    ]


def _starts(*columns: Any) -> Any:
    """Returns the indexes at which runs of equal rows begin."""
    changed = np.zeros(len(columns[0]), np.bool_)
    changed[:1] = True
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changed)


def totals_of(rows: Iterable[Mapping[str, Any]]) -> Totals:
    """Adds up the buckets of each date and series, in the order of their numbers."""
    days: dict[tuple[str, Series], Sums] = {}
    hours: dict[tuple[str, Series], dict[int, HourSums]] = {}
    order = itemgetter("event_date", "kind", "name", "dims", "bucket")
    for row in sorted(rows, key=order):
        key = row["event_date"], Series(row["kind"], row["name"], tuple(row["dims"]))
        days[key] = days.get(key, Sums()).merge(sums_of(row))
        of_series = hours.setdefault(key, {})
        for hour, records, weight_sum in row["hours"]:
            before = of_series.get(hour, HourSums(hour, 0, 0.0))
            of_series[hour] = HourSums(
                hour, before.records + records, before.weight_sum + weight_sum
            )
    return Totals(days, {key: [each[hour] for hour in sorted(each)] for key, each in hours.items()})
