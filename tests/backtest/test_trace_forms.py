"""Traces in the forms in which tools export them: read alike, or refused with what to do."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from backtest.traces import files as trace_files
from backtest.traces.reading import AS_FOUND, Reading, Trace, TraceError, load_trace

START = datetime(2026, 11, 2, tzinfo=UTC)
COUNTS = (300.0, 306.0, 0.0, 1319.5)
TIMES = [START + timedelta(minutes=minute) for minute in range(len(COUNTS))]
QUEUE = "/subscriptions/1/resourceGroups/rg/providers/Microsoft.ServiceBus/namespaces/sb-shop"


def lines(form: str, header: str = "", decimal: str = ".") -> str:
    """One line for each minute. The form is filled with the time, its epoch and the value."""
    rows = [
        form.format(
            t=when, s=int(when.timestamp()), us=f"{when:%I:%M:%S.000 %p}", v=f"{value:.10g}"
        ).replace("~", decimal)
        for when, value in zip(TIMES, COUNTS, strict=True)
    ]
    return "".join(f"{row}\n" for row in (header, *rows) if row)


def points(**others: Any) -> list[dict[str, Any]]:
    return [
        {
            "average": None,
            "count": None,
            "maximum": None,
            "minimum": None,
            "timeStamp": f"{when:%Y-%m-%dT%H:%M:%SZ}",
            "total": value,
            **others,
        }
        for when, value in zip(TIMES, COUNTS, strict=True)
    ]


def azure(*series: Sequence[Any], metric: str = "IncomingMessages") -> dict[str, Any]:
    """The answer of `az monitor metrics list` and of the REST API."""
    return {
        "cost": 1439,
        "interval": "PT1M",
        "namespace": "Microsoft.ServiceBus/namespaces",
        "resourceregion": "westeurope",
        "timespan": "2026-11-02T00:00:00Z/2026-11-03T00:00:00Z",
        "value": [
            {
                "displayDescription": "Incoming Messages for Microsoft.ServiceBus.",
                "errorCode": "Success",
                "errorMessage": None,
                "id": f"{QUEUE}/providers/Microsoft.Insights/metrics/{metric}",
                "name": {"localizedValue": "Incoming Messages", "value": metric},
                "resourceGroup": "rg",
                "timeseries": [
                    {
                        "data": data,
                        "metadatavalues": [
                            {
                                "name": {"localizedValue": "entityname", "value": "entityname"},
                                "value": f"queue-{number}",
                            }
                        ],
                    }
                    for number, data in enumerate(series)
                ],
                "type": "Microsoft.Insights/metrics",
                "unit": "Count",
            }
        ],
    }


def prometheus(*metrics: dict[str, str], kind: str = "matrix") -> dict[str, Any]:
    values = [[when.timestamp(), f"{v:g}"] for when, v in zip(TIMES, COUNTS, strict=True)]
    result = [{"metric": metric, "values": values} for metric in metrics]
    return {"status": "success", "data": {"resultType": kind, "result": result}}


NEWEST_FIRST = list(zip(TIMES, COUNTS, strict=True))[::-1]
CLOUDWATCH = {
    "MetricDataResults": [
        {
            "Id": "m1",
            "Label": "NumberOfMessagesSent",
            "Timestamps": [when.isoformat() for when, _ in NEWEST_FIRST],
            "Values": [value for _, value in NEWEST_FIRST],
            "StatusCode": "Complete",
        }
    ],
    "Messages": [],
}
DATAPOINTS = {
    "Label": "NumberOfMessagesSent",
    "Datapoints": [
        {"Timestamp": when.isoformat(), "Sum": value, "Unit": "Count"}
        for when, value in (NEWEST_FIRST[at] for at in (1, 3, 0, 2))
    ],
}
LOG_ANALYTICS = {
    "tables": [
        {
            "name": "PrimaryResult",
            "columns": [{"name": "TimeGenerated", "type": "datetime"}, {"name": "count_"}],
            "rows": [[when.isoformat(), value] for when, value in NEWEST_FIRST],
        }
    ]
}
AZ_TABLE = lines(
    "{t:%Y-%m-%d %H:%M:%S}  Incoming Messages  queue-0       {v:>7}",
    "Timestamp            Name               Entityname      Total\n"
    "-------------------  -----------------  ------------  -------",
)
PREAMBLE = (
    "Chart title,Sum Incoming Messages for sb-shop\nStart,2026-11-02T00:00:00Z\n"
    "End,2026-11-03T00:00:00Z\n\n"
)
FORMS: dict[str, tuple[Any, str]] = {
    "time,arrivals": (lines("{t:%Y-%m-%dT%H:%MZ},{v}", "time,arrivals"), "CSV, column arrivals"),
    "az": (azure(points()), "the JSON of Azure Monitor, column total of IncomingMessages"),
    "az, the series alone": (azure(points())["value"][0]["timeseries"], "column total"),
    "JSON lines": ("\n".join(map(json.dumps, points())), "JSON, column total"),
    "az, lists": ([[p["timeStamp"], p["total"]] for p in points()], "JSON, column column 2"),
    "az, table": (AZ_TABLE, "a table of az, column Total of Incoming Messages"),
    "batch": ({"values": [{"resourceid": QUEUE, **azure(points())}]}, "column total"),
    "portal": (
        lines("{t:%Y-%m-%dT%H:%M:%SZ},{v}", PREAMBLE + "Timestamp,Incoming Messages (Sum)"),
        "column Incoming Messages (Sum)",
    ),
    "Log Analytics": (
        lines('"{t.month}/{t.day}/{t.year}, {us}",{v}', "TimeGenerated [UTC],count_"),
        "Log Analytics CSV, column count_",
    ),
    "AzureMetrics": (
        lines(
            '"{t.month}/{t.day}/{t.year}, {us}",{v},9,IncomingMessages,PT1M,{s}',
            '"TimeGenerated [UTC]",Total,Average,MetricName,TimeGrain,"Total"',
        ).replace(',"Total"\n', ",Id\n"),
        "Log Analytics CSV, column Total of IncomingMessages",
    ),
    "Log Analytics, JSON": (LOG_ANALYTICS, "Log Analytics JSON, column count_"),
    "Grafana": (
        lines("{s}000,{v}", 'sep=,\n"Time","orders"'),
        "Grafana CSV, column orders",
    ),
    "Grafana, rows": (
        lines('"orders";{t:%Y-%m-%dT%H:%M:%S+00:00};{v}', '"Series";"Time";"Value"'),
        "Grafana CSV, column Value",
    ),
    "Prometheus": (prometheus({"queue": "orders"}), "Prometheus JSON, column value"),
    "Prometheus, result": (prometheus({})["data"]["result"], "Prometheus JSON, column value"),
    "CloudWatch data": (CLOUDWATCH, "CloudWatch JSON, column value"),
    "CloudWatch statistics": (DATAPOINTS, "CloudWatch JSON, column Sum"),
    "CloudWatch CSV with its statistic": (
        lines("{t:%Y/%m/%d %H:%M:%S},{v}", "Label,Sent\nStat,Sum\nPeriod,60"),
        "CloudWatch CSV, column Sent Sum",
    ),
    "portal, without the lines above": (
        lines('"{t:%Y-%m-%d %H:%M}",{v}', "Time,Incoming Messages (Sum)"),
        "CSV of the Azure portal, column Incoming Messages (Sum)",
    ),
    "items per minute": (lines("{s},{v}", "time,orders_per_min"), "column orders_per_min"),
    "az, two metrics": (
        {"value": azure(points(average=4.0, total=None), metric="ActiveMessages")["value"]
         + azure(points())["value"]},
        "column IncomingMessages total",
    ),
    "decimal comma": (
        lines("{t:%d.%m.%Y %H:%M};{v}", "Zeit;Nachrichten").replace(".5", ",5"),
        "CSV with semicolons, column Nachrichten",
    ),
    "day before month": (lines("{t:%d/%m/%Y %H:%M},{v}", "Date,n") , "CSV, column n"),
    "month by name": (lines("{t:%d-%b-%Y %H:%M:%S},{v}", "Date,n"), "CSV, column n"),
    "text above, without a header": (
        lines("{t:%Y/%m/%d %H:%M},{v}", "Report,Queue\nExported,2026/11/03 10:00\n"),
        "CSV, column column 2",
    ),
}  # fmt: skip
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be")


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Trace]:
    def read(content: Any, reading: Reading = AS_FOUND, encoding: str = "utf-8") -> Trace:
        text = content if isinstance(content, str | bytes) else json.dumps(content, indent=2)
        path = tmp_path / "export"
        path.write_bytes(text.encode(encoding) if isinstance(text, str) else text)
        return load_trace(path, reading)

    return read


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_read_alike_and_named(read: Callable[..., Trace], form: str) -> None:
    content, told = FORMS[form]
    if form == "day before month":
        content = content.replace("02/11", "22/11")
    trace = read(content)
    assert trace.arrivals == COUNTS
    assert trace.start == (START + timedelta(days=20) if form == "day before month" else START)
    assert told in trace.read_as
    assert trace.missing is None


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("form", ["az", "decimal comma"])
def test_utf_8_and_utf_16_are_read(read: Callable[..., Trace], form: str, encoding: str) -> None:
    assert read(FORMS[form][0], encoding=encoding).arrivals == COUNTS


TWO_COLUMNS = lines("{s},{v},7", "time,orders,mails")
BOTH = azure(points(), points(total=1.0))
LOCAL = "time,n\n2026-11-02T00:00:00+01:00,1\n2026-11-02 00:01:00,2\n"
WORKBOOK = b"PK\x03\x04 xl/workbook.xml"


@pytest.mark.parametrize(
    ("content", "problem", "fix"),
    [
        (TWO_COLUMNS, "could be the arrivals: 'orders', 'mails'", "--series 'orders'"),
        (azure(points(average=3.0, total=None)), "'average' is not a number of arrivals", "Total"),
        (azure(points(), metric="ActiveMessages"), "'ActiveMessages' is not", "IncomingMessages"),
        (azure(points(), metric="X") | {"value": [{**azure(points())["value"][0],
         "unit": "CountPerSecond"}]}, "is a rate", "--per-second"),
        (lines("{s},{v}", "time,CpuPercentage"), "not a number of arrivals", "--series"),
        (prometheus({"__name__": "jobs_total"}), "jobs_total is a running total", "increase("),
        (prometheus({}, kind="vector") | {"data": {"result": [{"metric": {}, "value": [1, "2"]}],
         "resultType": "vector"}}, "instant query", "query_range"),
        ({"status": "error", "errorType": "bad_data", "error": "x"}, "bad_data", "Repeat"),
        (lines("{t:%Y/%m/%d %H:%M:%S},{v}", "Label,ApproximateNumberOfMessagesVisible\nPeriod,60"),
         "'Approximate' is not a number of arrivals", "--series"),
        (CLOUDWATCH | {"NextToken": "x"}, "one page of several", "NextToken"),
        (azure([]), "holds no values", "docs/traffic.md"),
        ("0\tPT1M\tns\twesteurope\t2026-11-02/2026-11-03\t1\n", "summary of az", "output json"),
        (lines("{s},{v} req/s", "Time,orders"), "orders holds '300 req/s'", "Formatted data"),
        ("time;n\n2026-11-02;1,300\n", "the comma in '1,300' may mark decimals", "point"),
        ("time,n\n2026-10-25 02:00,1\n2026-10-25 02:00,2\n", "is already on line 2", "delete one"),
        (LOCAL, "has no offset, others have one", "--time-zone"),
        (WORKBOOK, "an Excel workbook", "CSV UTF-8"),
        (b"\x1f\x8b..", "compressed", "Unpack"),
        ("<html>", "a page of HTML", "Export"),
        ('{"value": [', "not JSON", "again"),
        ('{"time": 1, "n": 2}\n{"time"', "not JSON (Expecting ':' delimiter)", "again"),
        ("[[[[]]]]", "holds no values", "docs"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_alone_is_refused_with_the_way_out(
    read: Callable[..., Trace], content: Any, problem: str, fix: str
) -> None:
    with pytest.raises(TraceError) as caught:
        read(content)
    assert problem in caught.value.problem
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("content", "series", "arrivals"),
    [
        (TWO_COLUMNS, "MAILS", (7.0,) * 4),
        (BOTH, "queue-1", (1.0,) * 4),
        (azure(points(average=3.0)), "average", (3.0,) * 4),
        (prometheus({"q": "a"}, {"q": "b"}), "q=b", COUNTS),
    ],
)
def test_the_option_series_chooses_a_column_or_a_series(
    read: Callable[..., Trace], content: Any, series: str, arrivals: tuple[float, ...]
) -> None:
    assert read(content, Reading(series=series)).arrivals == arrivals
    with pytest.raises(TraceError, match=r"has no series 'other'.*--series one of"):
        read(content, Reading(series="other"))


def test_rates_of_prometheus_and_grafana_become_items(read: Callable[..., Trace]) -> None:
    for form in ("Prometheus", "Grafana"):
        content = FORMS[form][0]
        assert any("--per-second" in notice for notice in read(content).notices)
        trace = read(content, Reading(per_second=True))
        assert trace.arrivals == pytest.approx([60 * count for count in COUNTS])
        assert "items per second" in trace.read_as
        assert not any("--per-second" in notice for notice in trace.notices)
    named = lines("{s},{v}", "time,orders per second")
    assert read(named, Reading(per_second=True)).arrivals[0] == 60 * COUNTS[0]
    each_15_s = "".join(f"{1793577600 + 15 * at},2\n" for at in range(8))
    assert read("time,n\n" + each_15_s, Reading(per_second=True)).arrivals == (120.0, 120.0)


def test_a_file_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_files, "BYTES_MAX", 1_000_000)
    path = tmp_path / "export"
    path.write_bytes(b"1" * 1_000_001)
    with pytest.raises(TraceError, match=r"larger than 1 MB\. Export a shorter time"):
        load_trace(path)


# --- times ------------------------------------------------------------------------------------


def minutes(start: str, count: int, form: str = "%Y-%m-%d %H:%M") -> str:
    first = datetime.fromisoformat(start)
    return "".join(f"{first + timedelta(minutes=at):{form}},1\n" for at in range(count))


AUTUMN = "time,n\n" + minutes("2026-10-25 01:30", 90) + minutes("2026-10-25 02:00", 90)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    "order", [list, lambda rows: rows[::-1], sorted], ids=["as written", "newest first", "sorted"]
)
def test_an_hour_that_repeats_is_told_as_the_clock_change(
    read: Callable[..., Trace], order: Callable[[list[str]], list[str]]
) -> None:
    header, *rows = AUTUMN.splitlines()
    with pytest.raises(TraceError) as caught:
        read("\n".join((header, *order(rows))))
    assert "clock change in autumn" in caught.value.problem
    assert "--time-zone Europe/Berlin" in caught.value.fix


def test_a_time_zone_resolves_the_clock_changes(read: Callable[..., Trace]) -> None:
    header, *rows = AUTUMN.splitlines()
    for text in (AUTUMN, "\n".join((header, *rows[::-1]))):
        trace = read(text, Reading(time_zone=BERLIN))
        assert trace.start == datetime(2026, 10, 24, 23, 30, tzinfo=UTC)
        assert trace.arrivals == (1.0,) * 180
    spring = "time,n\n" + minutes("2026-03-29 01:00", 60) + minutes("2026-03-29 03:00", 60)
    assert read(spring, Reading(time_zone=BERLIN)).arrivals == (1.0,) * 120
    (notice,) = read(spring).notices
    assert "the hour before 2026-03-29T03:00:00 is missing" in notice
    assert "clock change in spring" in notice


def test_times_that_do_not_exist_in_the_named_zone_are_refused(read: Callable[..., Trace]) -> None:
    """A file in UTC, read as that zone, would have the hour after the gap twice."""
    with pytest.raises(TraceError, match="02:00:00 does not exist in Europe/Berlin") as caught:
        read("time,n\n" + minutes("2026-03-29 01:30", 90), Reading(time_zone=BERLIN))
    assert "leave out --time-zone if its times are UTC" in caught.value.fix


def test_two_equal_hours_out_of_order_are_never_added_up(read: Callable[..., Trace]) -> None:
    header, *rows = AUTUMN.splitlines()
    with pytest.raises(TraceError, match="clock change in autumn") as caught:
        read("\n".join((header, *sorted(rows))), Reading(time_zone=BERLIN))
    assert caught.value.fix == "Export the times in UTC"


@pytest.mark.parametrize(
    ("seconds", "step", "count"),
    [
        ((0.2, 61, 119.1, 182, 240, 299), "1 min", 6),
        ((0, 60, 95, 180, 240), None, 0),
        ((0, 15.2, 29.9, 45.1, 60), "15 s", 5),
    ],
)
def test_jitter_of_seconds_is_moved_to_the_step(
    read: Callable[..., Trace], seconds: Sequence[float], step: str | None, count: int
) -> None:
    rows = "".join(f"{(START + timedelta(seconds=at)).isoformat()},1\n" for at in seconds)
    if step is None:
        with pytest.raises(TraceError, match="Keep one step in the whole file"):
            read("time,n\n" + rows)
        return
    trace = read("time,n\n" + rows)
    assert trace.start == START
    assert sum(trace.arrivals) == pytest.approx(len(seconds))
    assert "moved to the nearest one" in trace.notices[0]
    assert step in trace.notices[0]


def test_the_order_of_day_and_month_is_told_where_the_file_does_not_tell_it(
    read: Callable[..., Trace],
) -> None:
    unsure = read("time,n\n" + minutes("2026-11-02", 3, "%m/%d/%Y %H:%M"))
    assert "dates such as 02/11/2026 are read as month/day" in unsure.notices
    assert unsure.start == START
    sure = read("time,n\n" + minutes("2026-11-12T23:59", 2, "%d/%m/%Y %H:%M"))
    assert (sure.start.day, sure.start.month) == (12, 11)
    shorter = read("time,n\n" + minutes("2026-11-02T23:00", 90, "%d/%m/%Y %H:%M"))
    assert (shorter.start.day, shorter.start.month, shorter.missing) == (2, 11, None)
    assert not any("month/day" in notice for notice in sure.notices)


@pytest.mark.parametrize(("step", "told"), [(3, True), (0, False), (-3, False)])
def test_values_that_never_fall_are_told_as_a_possible_running_total(
    read: Callable[..., Trace], step: int, told: bool
) -> None:
    rows = [f"2026-11-02 00:{minute:02}Z,{300 + step * minute}" for minute in range(40)]
    notices = read("\n".join(("time,n", *rows))).notices
    assert any("as in a running total" in notice for notice in notices) == told
