"""Turns blocks into sums by day and hour, in the tasks of the second Spark job.

The job divides each date into buckets of whole operations. A task holds one bucket at a time, so
its memory does not grow with the date. Copies are counted once, and each operation adds to the
variances as ``shared.sampling.estimates`` describes. Records are added in the order of their
hashes, and buckets in the order of their numbers, so the sums are equal to the last bit, whichever
files and tasks the records came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shared.sampling.estimates import NAMES
from shared.sampling.kept_ids import WeightsSeen
from shared.sampling.operations import Counts, DayOperations, bounded, decoded, encoded, sampler_of
from shared.sampling.series import UNKNOWN_AGE, HourSums, Totals, rows_of, totals_of
from spark_jobs.read.blocks import RECORD, Batches, batches, in_task, joined, packed, starts
from spark_jobs.sums.operations import operation_counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BUCKET_RECORDS = 1 << 16
"""The number of records, with copies, for which a date gets one more bucket. A task that adds up a
bucket needs about 250 bytes for each of its records. The sums of a date are added bucket by bucket,
so their last digits depend on this number and on the number of records of the date.
"""
PARTS = 64
"""The most parts of a date. One task adds up all buckets of a part, and the driver adds up the
parts, so this number limits the tasks of a date and the memory of the driver.
"""
JOINED_BLOCKS = 16
"""The number of blocks that are divided together: so many that the pieces do not become tiny."""
COUNTS = ("records", "duplicates", "late", "doubtful", "exact", "valued", "repaired")
AGES = 8
"""More than there are ages."""
HOUR = {"hour": pa.int32(), "records": pa.int64(), "weight_sum": pa.float64(), "age": pa.int32()}
DIVIDED = pa.schema(
    {
        "event_date": pa.string(),
        "part": pa.int32(),
        "bucket": pa.int32(),
        "names": pa.string(),
        "block": pa.binary(),
    }
)
"""A row for each block of a bucket."""
SUMS = pa.schema(
    {
        "part": pa.int32(),
        "date": pa.string(),
        "kind": pa.string(),
        "event": pa.string(),
        "dims": pa.list_(pa.string()),
        **{name: pa.int64() if name in COUNTS else pa.float64() for name in NAMES},
        "hours": pa.list_(pa.struct(HOUR)),
        "operations": pa.string(),
    }
)
"""A row for each series in a part of a date, with the hours and ages that have records, and one for
the operations of the part."""

Columns = dict[str, Any]
Row = Mapping[str, Any]
Factors = Mapping[str, Mapping[str, float]]
"""By event date; see ``DayOperations.factors``."""


def sums_by_part(
    blocks: DataFrame, records: Mapping[str, int], tasks: int, factors: Factors
) -> DataFrame:
    """Returns rows of ``SUMS``. ``blocks`` has the columns event_date, names and block;
    ``records`` has the number of records of each event date.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    divide = in_task(partial(divided, buckets=bucket_counts(records)))
    moved = blocks.mapInArrow(divide, from_arrow_schema(DIVIDED))
    met = moved.repartition(tasks, "event_date", "part")
    ordered = met.sortWithinPartitions("event_date", "part", "bucket")
    work = in_task(partial(sums_of_blocks, factors=factors))
    return ordered.mapInArrow(work, from_arrow_schema(SUMS))


def bucket_counts(records: Mapping[str, int]) -> Mapping[str, int]:
    """Returns the number of buckets of each date from its number of records."""
    return {day: -(-count // BUCKET_RECORDS) for day, count in records.items()}


def divided(blocks: Iterable[pa.RecordBatch], buckets: Mapping[str, int]) -> Batches:
    """Divides blocks into those of buckets: turns the columns event_date, names and block into
    those of ``DIVIDED``. ``buckets`` has the number of buckets of each event date.
    """
    for batch in blocks:
        for first in range(0, batch.num_rows, JOINED_BLOCKS):
            rows = _rows([batch.slice(first, JOINED_BLOCKS)])
            yield from batches(_divided(rows, buckets), DIVIDED)


def _divided(rows: Iterable[Sequence[Any]], buckets: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    for event_date, of_date in groupby(rows, itemgetter(0)):
        names, found = joined(row[1:] for row in of_date)
        count = buckets[event_date]
        groups = (found["unit"] % count).astype(np.min_scalar_type(count))
        for bucket, block in packed(found, names, groups):
            yield {"event_date": event_date, "part": bucket % PARTS, "bucket": bucket, **block}


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Sequence[Any]]:
    for batch in batches:
        for row in zip(*batch.columns, strict=True):
            yield [value.as_py() for value in row]


def sums_of_blocks(blocks: Iterable[pa.RecordBatch], factors: Factors) -> Batches:
    """Adds up whole parts: turns rows of ``DIVIDED``, ordered by date, part and bucket, into rows
    of ``SUMS``. Yields only one batch, because Spark needs about a millisecond for each batch.
    """
    if rows := list(sums_of_parts(blocks, factors)):
        yield pa.RecordBatch.from_pylist(rows, schema=SUMS)


def sums_of_parts(blocks: Iterable[pa.RecordBatch], factors: Factors) -> Iterator[Row]:
    for (event_date, part), of_part in groupby(_rows(blocks), itemgetter(0, 1)):
        operations = Counts()
        found = _of_buckets(event_date, of_part, factors.get(event_date, {}), operations)
        yield from ({"part": part, **row} for row in rows_of(totals_of(found)))
        yield {"part": part, "date": event_date, "operations": encoded(operations)}


def _of_buckets(
    event_date: str, rows: Iterable[Sequence[Any]], factors: Mapping[str, float], operations: Counts
) -> Iterator[Row]:
    """Yields a row for each series of each bucket, in the order of the buckets. Adds the operations
    of all buckets to ``operations``.
    """
    for _, of_bucket in groupby(rows, itemgetter(2)):
        (series, senders), found = joined(row[3:] for row in of_bucket)
        records = _without_copies(found)
        operations.update(operation_counts(records, series, senders))
        kinds, of_series = np.unique([kind for kind, *_ in series], return_inverse=True)
        by_kind = [[factors.get(sampler_of(v, k), 0.0) for k in kinds] for _, v, _ in senders]
        _repair(records, np.array(by_kind)[records["sender"], of_series[records["series"]]])
        with np.errstate(over="ignore", invalid="ignore"):  # measurements may be of any size
            sums = _sums(records, len(series))
        for (kind, event, *dims), *values in zip(series, *sums.values(), strict=True):
            row = dict(zip(sums, values, strict=True))
            yield {"date": event_date, "kind": kind, "event": event, "dims": dims, **row}


def _repair(records: Columns, factors: Any) -> None:
    """Corrects the weights that the ids of operations prove or refute. Records that state their
    rate are right."""
    factor = np.where(records["exact"], 0.0, factors)
    known = factor > 0
    records["k"] = np.where(known, records["k"] * factor, records["k"])
    records["trusted"] = (records["trusted"] | known) & ~np.isnan(factor)
    records["repaired"] = known & (factor != 1)


def _without_copies(found: Any) -> Columns:
    """Returns one row for each record, in the order of hashes. The order of copies is irrelevant.

    Two different records can have the same key if a sender gave both the same id.
    """
    rows = {name: np.ascontiguousarray(found[name]) for name in RECORD.names or ()}
    key, others = rows["key"], [rows[name] for name in ("hour", "series", "unit")]
    order = np.argsort(key)
    one, next_one = order[:-1], order[1:]
    tied = key[one] == key[next_one]
    if any((column[one[tied]] != column[next_one[tied]]).any() for column in others):
        order = np.lexsort([*others, key])
    rows = {name: column[order] for name, column in rows.items()}
    first = starts(*[rows[name] for name in ("key", "hour", "series", "unit")])
    return {
        **{name: rows[name][first] for name in ("key", "unit", "series", "sender", "hour")},
        "k": np.maximum.reduceat(rows["k"], first),
        "x": np.fmax.reduceat(rows["x"], first),
        "trusted": np.logical_and.reduceat(rows["trusted"], first),
        "exact": np.logical_and.reduceat(rows["exact"], first),
        "late": np.logical_and.reduceat(rows["late"], first),
        "near": rows["near"][first],
        "age": np.minimum.reduceat(rows["age"], first),
        "copies": np.diff(first, append=len(order)) - 1,
    }


def _sums(records: Columns, count: int) -> dict[str, list[Any]]:
    """Returns one value for each of ``count`` series in each column."""
    series, k, valued = records["series"], records["k"], ~np.isnan(records["x"])
    x = np.where(valued, records["x"], 0.0)
    operations, c, t = _shares(records["unit"], series, k, x)

    def total(values: Any, of: Any = series) -> Any:
        """Adds values one after the other, in their given order."""
        return np.bincount(of, values, count)

    weight_max = np.zeros(count)
    np.maximum.at(weight_max, series, k)
    columns = {
        "records": np.bincount(series, minlength=count),
        "duplicates": total(records["copies"]).astype(np.int64),
        "late": total(records["late"]).astype(np.int64),
        "doubtful": total(~records["trusted"]).astype(np.int64),
        "exact": total(records["exact"]).astype(np.int64),
        "valued": total(valued).astype(np.int64),
        "repaired": total(records["repaired"]).astype(np.int64),
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
    }
    lists = {name: column.tolist() for name, column in columns.items()}
    return {**lists, "hours": _by_hour(series, records["hour"], records["age"], k, count)}


def _shares(unit: Any, series: Any, k: Any, x: Any) -> tuple[Any, Any, Any]:
    """Returns the series of each sampled operation, and its contribution to both variances. A level
    consists of the records of one operation that have the same weight.
    """
    sampled = np.flatnonzero(k > 1)
    order = sampled[np.lexsort((k[sampled], series[sampled], unit[sampled]))]
    unit, series, k, x = unit[order], series[order], k[order], x[order]
    levels = starts(unit, series, k)
    level = np.repeat(np.arange(len(levels)), np.diff(levels, append=len(order)))
    weight = k[levels]
    counts, totals = weight * np.bincount(level), weight * np.bincount(level, x)
    lightest = np.isin(levels, starts(unit, series), assume_unique=True)
    for above in np.flatnonzero(~lightest)[::-1]:  # few, as most operations have one rate
        counts[above - 1] += counts[above]
        totals[above - 1] += totals[above]
    before = np.where(lightest, 1.0, np.roll(weight, 1))
    step = 1 / before - 1 / weight
    operation = np.cumsum(lightest) - 1
    c = np.bincount(operation, step * counts * counts)
    t = np.bincount(operation, step * totals * totals)
    return series[levels][lightest], c, t


def _by_hour(series: Any, hour: Any, age: Any, k: Any, count: int) -> list[list[HourSums]]:
    """Returns the sums of each series' hours and ages with records."""
    first = int(hour.min())
    width = int(hour.max()) - first + 1
    of_hours = (series.astype(np.int64) * width + (hour - first)) * AGES + (age - UNKNOWN_AGE)
    places, which = np.unique(of_hours, return_inverse=True)
    sums = np.bincount(which).tolist(), np.bincount(which, k).tolist()
    rows: list[list[HourSums]] = [[] for _ in range(count)]
    for place, records, weight_sum in zip(places.tolist(), *sums, strict=True):
        of_hour, slot = divmod(place, AGES)
        number, offset = divmod(of_hour, width)
        known = slot + UNKNOWN_AGE if slot else None
        rows[number].append(HourSums(first + offset, records, weight_sum, known))
    return rows


def factors_of(weights: Mapping[str, Mapping[str, WeightsSeen]]) -> Factors:
    return {day: DayOperations(weights=of_day).factors for day, of_day in weights.items()}


def added(
    rows: Iterable[Row], weights: Mapping[str, Mapping[str, WeightsSeen]]
) -> tuple[Totals, dict[str, DayOperations]]:
    """Adds up rows of ``SUMS``, in whatever order they come."""
    series, counts = list[Row](), dict[str, Counts]()
    for row in sorted(rows, key=itemgetter("part")):
        if operations := row.get("operations"):
            counts.setdefault(row["date"], Counts()).update(decoded(operations))
        else:
            series.append(row)
    return totals_of(series), {
        day: DayOperations(bounded(of_day), weights.get(day, {}))
        for day, of_day in sorted(counts.items())
    }
