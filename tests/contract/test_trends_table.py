"""Trends that the nightly job wrote are read back from Azure Tables."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from local.azurite import Azurite
from shared.adapters.tables.table import Operation, Table
from shared.adapters.tables.trends import TABLE_NAME, TableTrends
from shared.sampling.trend_rows import Trend, trend_row
from shared.sampling.verdict import LOST, VerdictKind
from shared.settings.connections import StorageConnection

DAYS = ["2026-02-27", "2026-02-28", "2026-03-01"]


async def test_trends_of_a_verdict_are_read_and_an_unreadable_row_hides_no_other(
    azurite: Azurite, caplog: pytest.LogCaptureFixture
) -> None:
    connection = StorageConnection("Storage", azurite.connection_string)
    written = [
        Trend(day, f"checkout {verdict}", "AppEvents", dimensions={"c": "ü"}, verdict=verdict)
        for day in DAYS
        for verdict in (VerdictKind.EVENTS_LOST, VerdictKind.MEASUREMENT_LOST, "normal")
    ]
    table = Table(connection, TABLE_NAME)
    for trend in written:
        await table.put(trend_row(trend), None)
    await table.put({"PartitionKey": "0", "RowKey": DAYS[-1], "verdict": "events lost"}, None)
    await table.close()
    trends = TableTrends(connection)
    read = await trends.since(date(2026, 2, 28))
    lost = await trends.since(date(2026, 2, 28), LOST)
    await trends.close()
    read = [trend for trend in read if trend in written]  # other tests write to the same emulator
    assert sorted(read, key=str) == sorted(written[3:], key=str)
    assert {trend.verdict for trend in lost} == LOST
    assert sorted([trend for trend in lost if trend in written], key=str) == sorted(
        [trend for trend in written[3:] if trend.verdict in LOST], key=str
    )
    assert "[trend_not_understood] 0" in caplog.text


async def test_counts_of_more_than_32_bits_are_read_back_as_whole_numbers(azurite: Azurite) -> None:
    connection, day = StorageConnection("Storage", azurite.connection_string), "2026-05-01"
    written = Trend(
        day, "busy", "AppEvents", records=2**31, duplicates_removed=2**40 + 1, quarantined=2**53 - 1
    )
    table = Table(connection, TABLE_NAME)
    await table.put(trend_row(written), None)
    await table.close()
    trends = TableTrends(connection)
    [read] = [each for each in await trends.since(date.fromisoformat(day)) if each.event == "busy"]
    await trends.close()
    assert (read, type(read.records)) == (written, int)


async def test_all_pages_of_trends_are_read_and_reaching_the_limit_is_logged(
    azurite: Azurite, caplog: pytest.LogCaptureFixture
) -> None:
    connection = StorageConnection("Storage", azurite.connection_string)
    day, table = date(2031, 1, 1), Table(connection, TABLE_NAME)
    await table.create()
    days = [str(day + timedelta(days=n)) for n in range(1100)]
    rows = [trend_row(Trend(each, "many days", "AppEvents", verdict="normal")) for each in days]
    for start in range(0, len(rows), 100):
        operations: list[Operation] = [("create", row) for row in rows[start : start + 100]]
        await table.submit(operations)
    await table.close()
    trends = TableTrends(connection)
    assert [trend.date for trend in await trends.since(day)] == days
    assert "[trends_cut]" not in caplog.text
    assert len(await trends.since(day, rows_max=1050)) == 1050
    await trends.close()
    assert "[trends_cut]" in caplog.text
