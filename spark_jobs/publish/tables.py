"""Writes rows to Table Storage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from shared.sampling.trend_rows import ALARMS, ALARMS_UNTIL, Trend, alarm_keys, trend_row
from shared.sampling.verdict import LOST
from spark_jobs.errors import JobError

if TYPE_CHECKING:
    from azure.data.tables import TableServiceClient

TRENDS, SCALING = "Trends", "Scaling"
BATCH_ROWS = 100
"""The most rows of one transaction. All its rows must belong to one partition."""

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


def write_trends(
    service: TableServiceClient, trends: Iterable[Trend], first: str, data_set: str = ""
) -> None:
    """Writes the trends from the date ``first`` on, or from the last date that was written if that
    is earlier, because an earlier run may have failed here. The partition of alarms gets those that
    report a loss, and those that did so when they were last written. Raises JobError.

    ``data_set`` becomes a dimension, so that events of several data sets share no row.
    """
    from spark_jobs.azure_blobs import azure_errors

    with azure_errors(f"--tables: table {TRENDS}"):
        client = service.create_table_if_not_exists(TRENDS)
        stored = client.query_entities(f"PartitionKey eq '{ALARMS}'", select=["RowKey", "date"])
        known = {row["RowKey"]: row["date"] for row in stored}
    until, own = f"{ALARMS_UNTIL} {data_set}".rstrip(), {"data set": data_set} if data_set else {}
    first = min(first, known.get(until, first))
    alarms_from = first if until in known else ""
    rows, last = list[Row](), ""
    for each in trends:
        trend = replace(each, dimensions={**each.dimensions, **own})
        last = max(last, trend.date)
        if trend.date >= first:
            rows.append(trend_row(trend))
        if trend.date >= alarms_from:
            keys = alarm_keys(trend)
            if trend.verdict in LOST or keys["RowKey"] in known:
                rows.append({**trend_row(trend), **keys})
    markers = {ALARMS_UNTIL, until} if last else ()
    rows += [{"PartitionKey": ALARMS, "RowKey": key, "date": last} for key in markers]
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


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    ordered = sorted(rows, key=lambda row: (row["PartitionKey"], row["RowKey"]))
    for _, of_partition in groupby(ordered, key=lambda row: row["PartitionKey"]):
        while batch := list(islice(of_partition, BATCH_ROWS)):
            yield batch
