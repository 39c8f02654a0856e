"""The fastest job on plain Spark that is known, as a baseline: Spark's own JSON reader, no Python.

It computes the same figures as the job from telemetry as well-formed as that of the bench. A line
that is not JSON is quarantined and counted, but types, times and weights are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from shared.sampling.diagnostic_export import KEY_COLUMNS, KINDS, SAMPLE_RATE
from shared.sampling.series import Shape, Totals, totals_of
from spark_jobs.engine import Engine, Partials
from spark_jobs.publish.results import Operations
from spark_jobs.read.files import SourceFile
from spark_jobs.read.sources import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

TYPES = {
    "ItemCount": "double",
    "Measurements": "map<string, double>",
    "Properties": "map<string, string>",
}
LINE = ", ".join(f"`{name}` {TYPES.get(name, 'string')}" for name in ("time", *KEY_COLUMNS, "bad"))
PATH = "_metadata.file_path"
TAIL = f"substring_index({PATH}, '/y=', -1)"  # 2017/m=05/d=15/h=09/m=00/PT1H.json
BLOB_DATE = f"concat(substr({TAIL}, 1, 4), '-', substr({TAIL}, 8, 2), '-', substr({TAIL}, 13, 2))"
HOUR = f"cast(concat({BLOB_DATE}, ' ', substr({TAIL}, 18, 2), ':00:00') as timestamp)"
KIND = " ".join(f"when '{table}' then '{kind}'" for table, kind in KINDS.items())
MAPS = ("Measurements", "Properties")
PARTS = [f"map_keys({n}), map_values({n})" if n in MAPS else n for n in ("time", *KEY_COLUMNS)]
RECORD = {
    "blob_date": BLOB_DATE,
    "event_date": "substr(time, 1, 10)",
    "hour": "unix_micros(cast(time as timestamp)) div 3600000000",
    "kind": f"case Type {KIND} end",
    "name": "Name",
    "key": f"xxhash64({', '.join(PARTS)})",
    "op": "coalesce(OperationId, '')",
    "k": f"greatest(coalesce(ItemCount, 1d), coalesce(100 / Properties['{SAMPLE_RATE}'], 1d))",
    "late": f"cast(time as timestamp) < {HOUR} - interval 1 hour",
    "text": "bad",
    "records": "1",
    "file": f"if(bad is not null, {PATH}, null)",
    "reason": "if(bad is not null, 'not_json', null)",
    "detail": "if(bad is not null, 'no JSON', null)",
    "field": "if(bad is not null, '', null)",
}
SERIES = ("event_date", "kind", "name")
HOUR_SUMS = {
    "records": "count(*)",
    "duplicates": "sum(copies)",
    "late": "count_if(late)",
    "valued": "count(x)",
    "raw_sum": "coalesce(sum(x), 0)",
    "weight_sum": "sum(k)",
    "weight_square_sum": "sum(k * k)",
    "weight_max": "max(k)",
    "adjusted_sum": "coalesce(sum(k * x), 0)",
    "count_variance": "sum(k * (k - 1))",
    "sum_variance": "coalesce(sum(k * (k - 1) * x * x), 0)",
}
SHARES = """
select event_date, kind, name, sum(c) as count_shares, sum(t) as sum_shares,
    sum(c * c) as count_share_squares, sum(t * t) as sum_share_squares
from (select event_date, kind, name, sum(step * n * n) as c, sum(step * s * s) as t
    from (select event_date, kind, name, unit,
            1 / coalesce(lead(k) over down, 1d) - 1 / k as step,
            sum(k * n) over down as n, sum(k * s) over down as s
        from (select event_date, kind, name, unit, k, count(*) as n, coalesce(sum(x), 0) as s
            from {once} where k > 1 group by event_date, kind, name, unit, k)
        window down as (partition by event_date, kind, name, unit order by k desc))
    group by event_date, kind, name, unit)
group by event_date, kind, name
"""
"""Σ and Σ² of what each operation adds to the variances; see ``shared.sampling.estimates``."""


class PlainJsonEngine(Engine):
    """Reads by ``spark.read.schema(…).json``, writes rows, and adds them up by groups."""

    name = "plain_json"

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    def rows(
        self, source: Source, files: Sequence[SourceFile], shape: Shape, marker: str
    ) -> DataFrame:
        del source, marker
        read = self._spark.read.schema(LINE).option("columnNameOfCorruptRecord", "bad")
        columns = {**RECORD, "x": f"Measurements['{shape.measurement}']"}
        lines = read.json([file.path for file in files])
        return lines.select(*[F.expr(value).alias(name) for name, value in columns.items()])

    def total(self, partials: Partials, records: Mapping[str, int]) -> tuple[Totals, Operations]:
        """Each run of the bench reads all dates."""
        del records
        rows = self._spark.read.parquet(*partials).where("reason is null")
        unit = F.expr("if(op = '', concat('#', key), op)")
        units = rows.withColumn("unit", unit).repartition("event_date", "unit")
        once = units.groupBy("hour", *SERIES, "unit", "key").agg(
            F.expr("max(k) as k"), F.expr("max(x) as x"), F.expr("min(late) as late"),
            F.expr("count(*) - 1 as copies"),
        )  # fmt: skip
        sums = [F.expr(value).alias(name) for name, value in HOUR_SUMS.items()]
        by_day = self._spark.sql(SHARES, once=once)
        by_hour = once.groupBy("hour", *SERIES).agg(*sums)
        figures = by_hour.unionByName(by_day, allowMissingColumns=True).collect()
        return totals_of(sorted(map(_row, figures), key=itemgetter("part"))), {}


def _row(row: Row) -> dict[str, Any]:
    """Brings a row of one hour, or of a day, into the form of the job's own rows."""
    hours = [] if row.hour is None else [(row.hour, row.records, row.weight_sum)]
    names = {"date": row.event_date, "event": row.name, "dims": ()}
    return {**row.asDict(), **names, "hours": hours, "part": row.hour or 0}
