"""Trends that the nightly job wrote are read back from Azure Tables."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from local.azurite import Azurite
from shared.sampling.trend_rows import ALARMS, ALARMS_UNTIL, Trend, alarm_keys, trend_row
from shared.sampling.verdict import LOST, VerdictKind
from shared.settings.connections import StorageConnection
from shared.storage.table_requests import put_operation
from shared.storage.tables import Table
from shared.trends.store.trends import TABLE_NAME, TableTrends
from spark_jobs.publish.tables import open_tables, write_trends

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


async def test_losses_are_read_from_the_partition_of_alarms_once_the_job_keeps_it(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE", azurite.connection_string)
    tables = open_tables("STORAGE", os.environ)
    connection = StorageConnection("Storage", azurite.connection_string)
    trends, first = TableTrends(connection), date(2030, 1, 3)

    def night(*verdicts: str, name: str = "alarm") -> list[Trend]:
        """Returns the days from 1 January 2030 on, with these verdicts."""
        days = [str(date(2030, 1, 1 + n)) for n in range(len(verdicts))]
        named = zip(days, verdicts, strict=True)
        return [Trend(day, name, "event", verdict=verdict) for day, verdict in named]

    async def dates(*, of: str = "alarm") -> list[str]:
        lost = await trends.since(first, LOST)
        return [trend.date[-2:] for trend in lost if trend.event == of]

    lost = VerdictKind.EVENTS_LOST
    table = Table(connection, TABLE_NAME)
    await table.overwrite({"PartitionKey": ALARMS, "RowKey": ALARMS_UNTIL})
    await table.delete([{"PartitionKey": ALARMS, "RowKey": ALARMS_UNTIL}])  # of another test
    for trend in night(lost, lost, lost, lost, name="older version"):
        await table.put(trend_row(trend), None)
    assert await dates(of="older version") == ["03", "04"]
    write_trends(tables, night(lost, lost, lost, lost, lost), "2030-01-05")
    assert await dates() == ["03", "04", "05"]
    assert await dates(of="older version") == []  # its series is in no partition that is read
    corrected = night(lost, lost, lost, "normal", VerdictKind.MEASUREMENT_LOST, lost)
    write_trends(tables, corrected, "2030-01-04")
    assert await dates() == ["03", "05", "06"]
    page = [trend for trend in await trends.since(first) if trend.event == "alarm"]
    assert [trend.verdict for trend in page] == ["normal", "measurement lost", lost]
    write_trends(tables, night(*["normal"] * 8, name="missed"), "2030-01-08")
    missed = [trend.date[-2:] for trend in await trends.since(first) if trend.event == "missed"]
    assert missed == ["06", "07", "08"]  # an earlier run may have failed to write the seventh
    write_trends(tables, corrected, "2030-01-06")
    first = date(2030, 1, 8)  # no run for a week, such as after a return to an older version
    for trend in night(*[lost] * 9, name="rolled back")[7:]:
        await table.put(trend_row(trend), None)
    assert await dates(of="rolled back") == ["08", "09"]
    await table.delete([{"PartitionKey": ALARMS, "RowKey": ALARMS_UNTIL}])
    await table.close()
    await trends.close()
    tables.close()


async def test_events_of_two_data_sets_share_no_row_although_their_names_are_equal(
    azurite: Azurite,
) -> None:
    service = open_tables("C", {"C": azurite.connection_string})
    name, days = f"shared by {os.urandom(4).hex()}", ["2029-01-01", "2029-01-02"]
    lost, kept = (
        [Trend(day, name, "event", records=records, verdict=verdict) for day in days]
        for records, verdict in ((3, "events lost"), (7, "normal"))
    )
    write_trends(service, kept, days[0], "web")
    write_trends(service, lost[:1], days[0], "shop")
    write_trends(service, kept, days[0], "web")
    write_trends(service, lost, days[1], "shop")
    trends = TableTrends(StorageConnection("Storage", azurite.connection_string))

    async def stored(*verdicts: str) -> list[Trend]:
        found = await trends.since(date(2029, 1, 1), verdicts)
        return [each for each in found if each.event == name]

    read, alarms = await stored(), await stored(*LOST)
    assert len({each.series for each in read}) == 2
    assert {(each.dimensions["data set"], each.date, each.records) for each in read} == {
        *[("web", day, 7) for day in days], *[("shop", day, 3) for day in days],
    }  # fmt: skip
    assert [(each.dimensions["data set"], each.date) for each in alarms] == [
        ("shop", day) for day in days
    ]
    # A failed run of one data set is repeated, whatever another one has written meanwhile.
    later = [Trend("2029-01-03", name, "event", verdict="normal")]
    write_trends(service, [*kept, *later], later[0].date, "web")
    corrected = [replace(each, records=4) for each in lost]
    write_trends(service, corrected, later[0].date, "shop")
    assert {each.records for each in await stored() if each.date == days[1]} == {4, 7}
    await trends.close()
    table = service.get_table_client(TABLE_NAME)  # other tests read it without alarms
    table.delete_entity(ALARMS, ALARMS_UNTIL)
    service.close()


async def test_rows_of_old_dates_are_deleted_and_no_others(azurite: Azurite) -> None:
    connection = StorageConnection("Storage", azurite.connection_string)
    table, trends = Table(connection, TABLE_NAME), TableTrends(connection)
    today = datetime.now(UTC).date()
    days = [str(today - timedelta(days=n)) for n in (-1, 0, 99, 100, 101, 400)]
    for day in days:
        for name in ("old", "old too"):
            await table.overwrite(trend_row(Trend(day, name, "event", verdict="events lost")))
        trend = Trend(day, "old", "event", verdict="events lost")
        await table.overwrite({**trend_row(trend), **alarm_keys(trend)})
    await table.overwrite({"PartitionKey": ALARMS, "RowKey": ALARMS_UNTIL, "date": days[0]})
    await trends.delete_old()
    left = await table.all_rows(["PartitionKey", "RowKey"])
    keys = [(row["PartitionKey"], row["RowKey"]) for row in left]
    assert {row for at, row in keys if at == "event|old|"} == set(days[:4])
    assert {row for at, row in keys if at == "event|old too|"} == set(days[:4])
    assert {row[:10] for at, row in keys if at == ALARMS and row.endswith("|event|old|")} == set(
        days[:4]
    )
    assert (ALARMS, ALARMS_UNTIL) in keys
    await table.delete([{"PartitionKey": ALARMS, "RowKey": ALARMS_UNTIL}])
    await table.close()
    await trends.close()


async def test_old_trends_that_cannot_be_deleted_are_logged_and_stop_nothing_else(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refused(*_: object) -> None:
        raise OSError("503")

    monkeypatch.setattr(Table, "get", refused)
    trends = TableTrends(StorageConnection("Storage", azurite.connection_string))
    await trends.delete_old()
    await trends.close()
    told = "[trends_not_deleted] old trends stay until the next run: OSError: 503"
    assert caplog.messages == [told]


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
    days = [str(day + timedelta(days=n)) for n in range(1020)]
    rows = [trend_row(Trend(each, "many days", "AppEvents", verdict="normal")) for each in days]
    for start in range(0, len(rows), 100):
        await table.submit([put_operation(row, None) for row in rows[start : start + 100]])
    await table.close()
    trends = TableTrends(connection)
    assert [trend.date for trend in await trends.since(day)] == days
    assert "[trends_cut]" not in caplog.text
    assert len(await trends.since(day, rows_max=1010)) == 1010
    await trends.close()
    assert "[trends_cut]" in caplog.text
