"""Rows in Table Storage: trends for the dashboard, the usual week for the scaling rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from shared.sampling.profile import (
    WEEKS,
    HourCount,
    NoProfile,
    UsualWeek,
    profile_row,
    week_profile,
)
from shared.sampling.trend_rows import Trend, trend_row
from spark_jobs.errors import BadOutput
from spark_jobs.sums.sums import UNIX_START, Totals, hours_until

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


def write_profile(
    service: TableServiceClient, resource_name: str, profile: UsualWeek | NoProfile
) -> None:
    """Raises BadOutput."""
    _write(service, SCALING, [profile_row(resource_name, profile)])


def usual_week(
    totals: Totals, event: str, complete: Collection[str], time_zone: str
) -> UsualWeek | NoProfile:
    """Of an event, all its kinds and dimensions together, in the last weeks.

    From the event's first hour on, an hour without records had none, if its date is complete and
    there is telemetry of that date at all, of this event or another. Other hours are not known.
    """
    hours = _hours_of(totals, event)
    if not hours:
        return NoProfile(time_zone, f"there are no records of {event}")
    with_data = {day for (day, _), sums in totals.days.items() if sums.records}
    dates = {date.fromisoformat(day) for day in with_data.intersection(complete)}
    if not dates:
        return NoProfile(time_zone, f"no date is complete on which {event} could have come")
    zone = ZoneInfo(time_zone)
    end = datetime.combine(max(dates) + timedelta(days=1), time(), zone).astimezone(UTC)
    first = max(min(hours), hours_until(end - timedelta(weeks=WEEKS, days=1)))
    counts = [
        HourCount(start, *hours.get(number, (0.0, 0)))
        for number in range(first, hours_until(end) + 1)
        if _within(dates, start := UNIX_START + timedelta(hours=number), zone)
    ]
    found = week_profile(counts, end, time_zone)
    if isinstance(found, UsualWeek):
        return found
    seen = (UNIX_START + timedelta(hours=min(hours))).astimezone(zone).date()
    return NoProfile(time_zone, f"{event} is known since {seen}: {found.reason}")


def _hours_of(totals: Totals, event: str) -> dict[int, tuple[float, int]]:
    """By hour: items and records."""
    found: dict[int, tuple[float, int]] = {}
    for (_, series), hours in totals.hours.items():
        for hour in hours if series.event == event else ():
            items, records = found.get(hour.hour, (0.0, 0))
            found[hour.hour] = items + hour.weight_sum, records + hour.records
    return found


def _within(dates: Collection[date], start: datetime, zone: ZoneInfo) -> bool:
    """Whether all of the hour belongs to these local dates; some zones are half an hour off."""
    last_quarter = start + timedelta(minutes=45)
    return all(at.astimezone(zone).date() in dates for at in (start, last_quarter))


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
