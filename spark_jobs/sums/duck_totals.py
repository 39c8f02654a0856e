"""Blocks of whole operations to sums by day and hour, in DuckDB: the last step of a task.

Gives what ``engine_spark`` gives: copies are counted once, and each operation adds to the variances
as ``shared.sampling.estimates`` says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spark_jobs.read.duck_blocks import DIM, unpacked
from spark_jobs.read.duck_query import connect
from spark_jobs.sums.sums import NAMES

if TYPE_CHECKING:
    import pyarrow as pa

COUNTS = ("records", "duplicates", "late", "doubtful", "valued")
SCHEMA = ", ".join(
    ["event_date string, hour long, kind string, name string, dims array<string>"]
    + [f"{name} {'long' if name in COUNTS else 'double'}" for name in NAMES]
)
"""Shares of a day where ``hour`` is null, all other sums of an hour."""

SERIES = ("event_date", "kind", "name")
MEASURED = ["hour", "op", "key", "k", "trusted", "late", "x"]
STEPS = (
    "create temp table doubled as select key from found group by key having count(*) > 1",
    """
create temp table records as
select hour, op, series, k, trusted, late, x, 0 as copies from found anti join doubled using (key)
union all
select hour, op, series, max(k) as k, bool_and(trusted) as trusted,
    bool_and(late) as late, max(x) as x, count(*) - 1 as copies
from found semi join doubled using (key) group by hour, op, series, key
""",
    """
create temp table operations as
select series, op, min(k) as k, max(k) as k_max, count(*) as n, sum(coalesce(x, 0)) as s
from records where k > 1 and op != 0 group by series, op
""",
)
LEVELS = """
select series, op, k, count(*) as n, sum(coalesce(x, 0)) as s
from records semi join (from operations where k < k_max) using (series, op)
where k > 1 group by series, op, k
"""
SHARES = f"""
select series, (1 - 1 / k) * (k * n) ** 2 as c, (1 - 1 / k) * (k * s) ** 2 as t
from operations where k = k_max
union all
select series, sum(step * up_count ** 2) as c, sum(step * up_sum ** 2) as t
from (
    select series, op,
        1 / coalesce(lag(k) over (partition by series, op order by k), 1) - 1 / k as step,
        sum(k * n) over (partition by series, op order by k desc) as up_count,
        sum(k * s) over (partition by series, op order by k desc) as up_sum
    from ({LEVELS})
) group by series, op
union all
select series, k * (k - 1) as c, k * (k - 1) * coalesce(x, 0) * coalesce(x, 0) as t
from records where k > 1 and op = 0
"""
BY_DAY = f"""
select series, sum(c) as count_shares, sum(t) as sum_shares,
    sum(c * c) as count_share_squares, sum(t * t) as sum_share_squares
from ({SHARES}) group by all
"""
BY_HOUR = """
select series, hour::bigint as hour,
    count(*) as records, sum(copies)::bigint as duplicates,
    count(*) filter (late) as late, count(*) filter (not trusted) as doubtful,
    count(x) as valued, sum(coalesce(x, 0)) as raw_sum, sum(k) as weight_sum,
    sum(k * k) as weight_square_sum, max(k) as weight_max,
    sum(k * coalesce(x, 0)) as adjusted_sum, sum(k * (k - 1)) as count_variance,
    sum(k * (k - 1) * coalesce(x, 0) * coalesce(x, 0)) as sum_variance
from records group by all
"""


def totals(blocks: Sequence[tuple[str, Any]]) -> pa.Table:
    """In the columns of ``SCHEMA``. ``blocks`` are event dates and packed records."""
    import pyarrow as pa

    connection = connect()
    tables = []
    for event_date, block in blocks:
        records = unpacked(block)
        date = pa.repeat(pa.scalar(event_date), records.num_rows)
        tables.append(records.append_column("event_date", date))
    found = pa.concat_tables(tables, promote_options="permissive")
    numbers, series = _series(found)
    connection.register("found", found.select(MEASURED).append_column("series", numbers))
    for step in STEPS:
        connection.execute(step)
    sums = [connection.sql(sql).to_arrow_table() for sql in (BY_HOUR, BY_DAY)]
    return _named(pa.concat_tables(sums, promote_options="permissive"), series)


def _series(records: pa.Table) -> tuple[pa.Array, list[tuple[str, ...]]]:
    """The number of each record's series, and what it stands for: event date, kind, name and
    dimensions. Numbers are joined and grouped in less time than texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers: Any = pa.repeat(pa.scalar(0, pa.int64()), records.num_rows)
    series: list[tuple[str, ...]] = [()]
    count = sum(name.startswith(DIM) for name in records.column_names)
    for name in (*SERIES, *(f"{DIM}{number}" for number in range(count))):
        found = records[name].dictionary_encode().combine_chunks()
        values = found.dictionary.to_pylist()
        both = pc.add(pc.multiply(numbers, len(values)), found.indices).dictionary_encode()
        series = [
            (*series[pair // len(values)], values[pair % len(values)])
            for pair in both.dictionary.to_pylist()
        ]
        numbers = both.indices.cast(pa.int64())
    return numbers, series


def _named(sums: pa.Table, series: Sequence[tuple[str, ...]]) -> pa.Table:
    """Names stood as JSON in blocks."""
    import pyarrow as pa

    read = [(date, kind, json.loads(name), *dims) for date, kind, name, *dims in series]
    found = [read[number] for number in sums["series"].to_pylist()]
    for position, name in enumerate(SERIES):
        sums = sums.append_column(name, pa.array([one[position] for one in found], pa.string()))
    dims = [list(one[len(SERIES) :]) for one in found]
    sums = sums.append_column("dims", pa.array(dims, pa.list_(pa.string())))
    return sums.select([part.split()[0] for part in SCHEMA.split(", ")])
