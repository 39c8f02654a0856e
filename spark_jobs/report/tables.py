"""Writes rows to Table Storage and to Spark's catalog, and computes the usual week that scaling
rules read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from shared.sampling.profile import WEEKS, HourCount, NoProfile, UsualWeek, week_profile
from shared.sampling.trend_rows import ALARMS, ALARMS_UNTIL, Trend, alarm_keys, trend_row
from shared.sampling.verdict import CAPPED, LOST
from spark_jobs.errors import JobError, first_line
from spark_jobs.model import UNIX_START, Totals, hours_until
from spark_jobs.report.trends import collection_of

if TYPE_CHECKING:
    from azure.data.tables import TableServiceClient
    from pyspark.sql import SparkSession

TRENDS, SCALING = "Trends", "Scaling"
BATCH_ROWS = 100
"""The most rows of one transaction. All its rows must belong to one partition."""
OWN_COLUMNS = {"date", "event", "adjusted_count", "verdict"}
"""Columns by which a table of trends is recognized, so that no other table is replaced."""

Row = dict[str, Any]


def open_tables(location: str, environ: Mapping[str, str]) -> TableServiceClient:
    """``location`` is a table endpoint, which is opened with managed identity, or the name of a
    variable that holds a connection string. Raises JobError."""
    from azure.data.tables import TableServiceClient

    if location.startswith(("http://", "https://")):
        from spark_jobs.azure_blobs import login

        return TableServiceClient(location, credential=login())
    if not (connection_string := environ.get(location, "")):
        raise JobError(
            f"--tables {location}: is neither an endpoint such as"
            " https://ACCOUNT.table.core.windows.net nor a variable with a connection string"
        )
    try:
        return TableServiceClient.from_connection_string(connection_string)
    except ValueError as error:
        raise JobError(f"--tables {location}: {error}") from error


def usual_week(
    totals: Totals, event: str, complete: Collection[str], time_zone: str
) -> UsualWeek | NoProfile:
    """Returns the usual week of an event, over all its kinds and dimensions, from the last weeks.
    An hour without records counts as zero if it is after the event's first hour and its date is
    complete and has telemetry of any event. Any other hour without records is unknown, and so are
    hours in which collection had stopped.
    """
    items, records = dict[int, float](), dict[int, int]()
    for (_, series), day in totals.items():
        for hour, count, weight_sum, _ in day.hours if series.event == event else ():
            items[hour] = items.get(hour, 0.0) + weight_sum
            records[hour] = records.get(hour, 0) + count
    if not items:
        return NoProfile(time_zone, f"there are no records of {event}")
    with_data = {date for (date, _), day in totals.items() if day.sums.records}
    dates = {date.fromisoformat(day) for day in with_data.intersection(complete)}
    if not dates:
        return NoProfile(time_zone, f"no date on which {event} could have occurred is complete")
    zone = ZoneInfo(time_zone)
    end = datetime.combine(max(dates) + timedelta(days=1), time(), zone).astimezone(UTC)
    first = max(min(items), hours_until(end - timedelta(weeks=WEEKS, days=1)))
    collection = collection_of(totals, dates, zone)
    unknown = collection.unknown_hours
    counts = [
        HourCount(
            start, None if number in unknown else items.get(number, 0.0), records.get(number, 0)
        )
        for number in range(first, hours_until(end) + 1)
        if _within(dates, start := UNIX_START + timedelta(hours=number), zone)
    ]
    week = week_profile(counts, end, time_zone)
    if isinstance(week, UsualWeek):
        return week
    since = (UNIX_START + timedelta(hours=min(items))).astimezone(zone).date()
    cap = f", and {CAPPED}" if collection.caps else ""
    return NoProfile(time_zone, f"{event} has records since {since} only{cap}: {week.reason}")


def _within(dates: Collection[date], start: datetime, zone: ZoneInfo) -> bool:
    """Returns whether the whole hour is in these local dates. In some zones, it may be in two."""
    last_quarter = start + timedelta(minutes=45)
    return all(at.astimezone(zone).date() in dates for at in (start, last_quarter))


def write_trends(service: TableServiceClient, trends: Iterable[Trend], first: str) -> None:
    """Writes the trends from the date ``first`` on, or from the last date that was written if that
    is earlier, because an earlier run may have failed here. The partition of alarms gets those that
    report a loss, and those that did so when they were last written. Raises JobError.
    """
    from spark_jobs.azure_blobs import azure_errors

    with azure_errors(f"--tables: table {TRENDS}"):
        client = service.create_table_if_not_exists(TRENDS)
        stored = client.query_entities(f"PartitionKey eq '{ALARMS}'", select=["RowKey", "date"])
        known = {row["RowKey"]: row["date"] for row in stored}
    first = min(first, known.get(ALARMS_UNTIL, first))
    alarms_from = first if ALARMS_UNTIL in known else ""
    rows, last = list[Row](), ""
    for trend in trends:
        last = max(last, trend.date)
        if trend.date >= first:
            rows.append(trend_row(trend))
        if trend.date >= alarms_from:
            keys = alarm_keys(trend)
            if trend.verdict in LOST or keys["RowKey"] in known:
                rows.append({**trend_row(trend), **keys})
    if last:
        rows.append({"PartitionKey": ALARMS, "RowKey": ALARMS_UNTIL, "date": last})
    write(service, TRENDS, rows)


def write(service: TableServiceClient, table: str, rows: Iterable[Row]) -> None:
    """Replaces rows that have the same keys. Raises JobError."""
    from azure.data.tables import UpdateMode

    from spark_jobs.azure_blobs import azure_errors

    with azure_errors(f"--tables: table {table}"):
        client = service.create_table_if_not_exists(table)
        for batch in _batches(rows):
            client.submit_transaction(
                [("upsert", row, {"mode": UpdateMode.REPLACE}) for row in batch]
            )


def replace_table(spark: SparkSession, name: str, file: str) -> None:
    """Replaces a table of Spark's catalog by the trends of a Parquet file. Raises JobError."""
    quoted = ".".join(f"`{part}`" for part in name.split("."))
    try:
        rows = spark.read.parquet(file)
        exists = spark.catalog.tableExists(quoted)
        if exists and not OWN_COLUMNS.issubset(spark.table(quoted).columns):
            raise JobError(f"--table {name}: is a table of something else; name another one")
        rows.write.mode("overwrite").option("overwriteSchema", "true").saveAsTable(quoted)
    except JobError:
        raise
    except Exception as error:  # PySpark has no common class for errors of the JVM
        raise JobError(f"--table {name}: {first_line(error)}") from error


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    ordered = sorted(rows, key=lambda row: (row["PartitionKey"], row["RowKey"]))
    for _, of_partition in groupby(ordered, key=lambda row: row["PartitionKey"]):
        while batch := list(islice(of_partition, BATCH_ROWS)):
            yield batch
