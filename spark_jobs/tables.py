"""Rows in Table Storage: trends for the dashboard, the usual week for the scaling rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

from shared.sampling.profile import HourCount, Profile, week_profile
from shared.sampling.profile_rows import profile_row
from shared.sampling.trend_rows import Trend, trend_row
from spark_jobs.engine import Totals
from spark_jobs.errors import BadOutput
from spark_jobs.rows import UNIX_START

if TYPE_CHECKING:
    from azure.data.tables import TableServiceClient

TRENDS, SCALING = "Trends", "Scaling"
BATCH_ROWS = 100
"""Of one transaction, and of one partition."""

Row = dict[str, Any]


def open_tables(location: str, environ: Mapping[str, str]) -> TableServiceClient:
    """A table endpoint with managed identity, or a variable that holds a connection string.

    Raises BadOutput.
    """
    from azure.data.tables import TableServiceClient

    if location.startswith(("http://", "https://")):
        from azure.identity import DefaultAzureCredential

        return TableServiceClient(location, credential=DefaultAzureCredential())
    connection_string = environ.get(location, "")
    if not connection_string:
        raise BadOutput(
            f"--tables {location}: is neither an endpoint such as"
            " https://ACCOUNT.table.core.windows.net nor a variable with a connection string"
        )
    try:
        return TableServiceClient.from_connection_string(connection_string)
    except ValueError as error:
        raise BadOutput(f"--tables {location}: {error}") from error


def write_trends(service: TableServiceClient, trends: Iterable[Trend]) -> int:
    """Replaces rows of the same series and date; how many were written. Raises BadOutput."""
    return _write(service, TRENDS, [trend_row(trend) for trend in trends])


def write_profile(service: TableServiceClient, resource_name: str, profile: Profile) -> None:
    """Raises BadOutput."""
    _write(service, SCALING, [profile_row(resource_name, profile)])


def usual_week(
    totals: Totals, event: str, complete: Collection[str], time_zone: str
) -> Profile | None:
    """Of an event, all its kinds and dimensions together; None where too little is known.

    Of the last weeks that are complete. An hour of a complete date in which nothing came had none;
    other hours are not known.
    """
    known: dict[int, list[float]] = {}
    for (_, series), hours in totals.hours.items():
        for hour in hours if series.event == event else ():
            found = known.setdefault(hour.hour, [0.0, 0])
            found[0] += hour.weight_sum
            found[1] += hour.records
    if not known or not complete:
        return None
    counts = []
    for day in complete:
        first = (date.fromisoformat(day) - UNIX_START.date()).days * 24
        for number in range(first, first + 24):
            items, records = known.get(number, (0.0, 0))
            start = UNIX_START + timedelta(hours=number)
            counts.append(HourCount(start, items, int(records)))
    end = datetime.combine(date.fromisoformat(max(complete)), time(), UTC) + timedelta(days=1)
    return week_profile(counts, end, time_zone)


def _write(service: TableServiceClient, table: str, rows: Sequence[Row]) -> int:
    from azure.core.exceptions import AzureError
    from azure.data.tables import UpdateMode

    try:
        client = service.create_table_if_not_exists(table)
        for batch in _batches(rows):
            client.submit_transaction(
                [("upsert", row, {"mode": UpdateMode.REPLACE}) for row in batch]
            )
    except AzureError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadOutput(f"--tables: table {table}: {reason}") from error
    return len(rows)


def _batches(rows: Sequence[Row]) -> Iterator[list[Row]]:
    ordered = sorted(rows, key=lambda row: (row["PartitionKey"], row["RowKey"]))
    for _, found in groupby(ordered, key=lambda row: row["PartitionKey"]):
        partition = list(found)
        for start in range(0, len(partition), BATCH_ROWS):
            yield partition[start : start + BATCH_ROWS]
