"""From lines of an export to verdicts: what happened to the export is not blamed on the events."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from shared.sampling.profile import usual_week
from shared.sampling.series import UNDATED, BlobDate, Shape, Totals, totals_of
from shared.sampling.trend_rows import Trend
from shared.sampling.trends import TrendInputs, trends_of
from spark_jobs.read.files import SourceFile
from spark_jobs.read.lines import batches_of
from tests.spark_jobs.telemetry import event, total_of

DAYS, EVENTS = 30, 240
START = datetime(2017, 5, 1, tzinfo=UTC)
LAST = DAYS - 1
NAME = "OrderPlaced"
When = Callable[[int, datetime], bool]
Columns = Mapping[int, dict[str, Any]]
"""By day."""


def columns_of(
    sdk: str = "dotnet:2.22.0", count: int = 1, usual: Mapping[str, Any] | None = None, **last: Any
) -> Columns:
    """The columns of a record; those of the last day may differ."""
    every_day = {"SDKVersion": sdk, "ItemCount": count, **(usual or {})}
    return {day: {**every_day, **(last if day == LAST else {})} for day in range(DAYS)}


class Export:
    """An event and the metric of all requests, about every six minutes and more often by day."""

    def __init__(
        self,
        collected: When | None = None,
        columns: Columns | None = None,
        late: When | None = None,
        metric: bool = True,
        metric_name: Mapping[str, Any] | None = None,
    ) -> None:
        self.rng = random.Random(5)
        self.lines: dict[date, list[str]] = defaultdict(list)
        for day in range(DAYS):
            for time in self.moments(day):
                if collected and not collected(day, time):
                    continue
                received = time + timedelta(days=bool(late and late(day, time)))
                operation = f"{self.rng.getrandbits(128):032x}"
                record = {"OperationId": operation, **(columns or columns_of())[day]}
                self.put(received, event(f"{time:%Y-%m-%dT%H:%M:%S}", NAME, **record))
                if metric:
                    request = {"Type": "AppMetrics", "ItemCount": 5, "OperationId": operation}
                    named = metric_name or {"Name": "requests/duration"}
                    line = event(f"{time:%Y-%m-%dT%H:%M:%S}", NAME, **request, **named)
                    self.put(received, line)

    def moments(self, day: int) -> list[datetime]:
        start, count = START + timedelta(days=day), round(EVENTS * self.rng.gauss(1, 0.03))
        seconds = sorted(self.rng.triangular(0, 86_399, 50_400) for _ in range(count))
        return [start + timedelta(seconds=each) for each in seconds]

    def put(self, received: datetime, line: str) -> None:
        self.lines[received.date()].append(line)

    def night(
        self, after: int = LAST, more_files: int = 0, trust_weights: bool = False
    ) -> tuple[Totals, list[Trend]]:
        """Totals and trends of the event, in the night after a day. ``more_files`` is the number of
        later dates whose files are not complete yet.
        """
        today = (START + timedelta(days=after + 1)).date()
        until = today + timedelta(days=more_files)
        pieces = [
            (SourceFile(f"{day:y=%Y/m=%m/d=%d}/h=00/PT1H.json", 0), "\n".join(lines).encode())
            for day, lines in sorted(self.lines.items())
            if day < until
        ]
        totals, _ = total_of(list(batches_of(pieces, Shape())))
        dates = [str(START.date() + timedelta(days=day)) for day in range(after + 1 + more_files)]
        read = {day: BlobDate(records={day: 1}) for day in dates}
        inputs = TrendInputs(Shape(), read, today, trust_weights=trust_weights)
        trends = trends_of(totals, inputs)
        return totals, [trend for trend in trends if trend.event == NAME]


def before(hour: int) -> When:
    return lambda day, time: day < LAST or time.hour < hour


def part(share: float) -> When:
    return lambda _, time: time.microsecond < share * 1_000_000


def every(share: float) -> When:
    """Keeps a share of the last day's records."""
    return lambda day, time: day < LAST or part(share)(day, time)


@pytest.mark.parametrize("metric", [True, False])
@pytest.mark.parametrize(
    ("collected", "hours"),
    [
        (before(13), "from 13:00 to "),
        (lambda day, time: day < LAST or not 9 <= time.hour < 16, "from 09:00 to 16:00 (UTC)"),
        (before(0), "no table has a record from 0"),
    ],
    ids=["a daily cap", "seven missing files", "a missing day"],
)
def test_hours_without_any_telemetry_are_a_loss_and_are_named(
    collected: When, hours: str, metric: bool
) -> None:
    """The control lies in the same export and falls, too."""
    _, trends = Export(collected, metric=metric).night()
    assert trends[-1].verdict == "events lost"
    assert hours in trends[-1].reason
    assert any(hours in text for text in trends[-1].warnings)
    assert {trend.verdict for trend in trends[16:-1]} == {"normal"}


def test_a_requested_date_without_a_file_does_not_make_undated_files_incomplete() -> None:
    """``--date`` leaves files without a date as they are."""
    days = {f"2017-05-{day}": 1 for day in range(10, 20)}
    read = {UNDATED: BlobDate(records=days), "2017-05-15": BlobDate()}
    inputs = TrendInputs(Shape(), read, date(2017, 5, 31))
    assert inputs.complete == set(days)
    assert not inputs.ages


@pytest.mark.parametrize("holidays", [(), [date(2017, 5, 30)]])
def test_a_control_from_the_same_export_does_not_clear_the_export(holidays: list[date]) -> None:
    export = Export(every(0.5))
    totals, trends = export.night()
    assert trends[-1].verdict == "uncertain"
    assert "comes from the same export" in trends[-1].reason
    read = {trend.date: BlobDate(records={trend.date: 1}) for trend in trends}
    given = {"": {trend.date: 100 / (1 + (trend is trends[-1])) for trend in trends}}
    inputs = TrendInputs(Shape(), read, date(2017, 5, 31), given, holidays)
    queue = [trend for trend in trends_of(totals, inputs) if trend.event == NAME]
    assert queue[-1].verdict == "traffic changed"


def test_a_cap_that_is_reached_each_day_is_reported_and_its_hours_are_unknown() -> None:
    seen: dict[int, int] = defaultdict(int)

    def fits(day: int, time: datetime) -> bool:
        seen[day] += 1
        return seen[day] <= 130

    totals, trends = Export(fits).night()
    assert {trend.verdict for trend in trends[16:]} == {"uncertain"}
    assert all("as at a daily cap" in trend.reason for trend in trends[16:])
    assert all("later records of the day are unknown" in t.warnings[-1] for t in trends)
    week = usual_week(totals, NAME, [trend.date for trend in trends], "UTC")
    assert not week.absent
    assert week.items_per_minute[7] is not None
    assert {week.items_per_minute[24 * day + 20] for day in range(7)} == {None}


@pytest.mark.parametrize("late_share", [0.12, 0.25, 0.5])
def test_telemetry_that_arrives_a_day_late_each_day_is_not_lost(late_share: float) -> None:
    export = Export(late=part(late_share), metric=False)
    for after in (LAST - 3, LAST):
        _, trends = export.night(after)
        assert trends[-1].verdict == "normal", trends[-1].reason
    assert "usually arrive later" in trends[-1].reason
    assert "usually arrive later" in trends[-1].warnings[-1]
    assert "usually arrive later" not in trends[-4].reason
    _, trends = export.night(LAST - 1, more_files=1)
    (last,) = [trend for trend in trends if trend.date == "2017-05-29"]
    assert (last.verdict, "usually arrive later" in last.reason) == ("normal", True)


def test_a_loss_is_detected_although_telemetry_arrives_late_each_day() -> None:
    _, trends = Export(every(0.5), late=part(0.25), metric=False).night()
    assert trends[-1].verdict == "events lost"


def test_hours_whose_telemetry_always_arrives_the_next_day_do_not_count_as_silent() -> None:
    _, trends = Export(late=lambda _, time: time.hour >= 18).night()
    assert trends[-1].verdict == "normal"
    assert not any("no table" in text for trend in trends for text in trend.warnings)


@pytest.mark.parametrize(
    ("columns", "kept", "verdict", "reason"),
    [
        (columns_of("py3.9.18:oc0.11.3:ext1.1.13"), 0.2, "uncertain", "this may be sampling"),
        (columns_of(), 0.75, "events lost", "1 stands for any rate from 67 to 100 %"),
        (columns_of(ItemCount=2), 0.66, "uncertain", "2 stands for any rate from 40 to 67 %"),
        (columns_of(ItemCount=148), 1.0, "uncertain", "only their weights changed"),
        (columns_of(count=2000), 0.4, "events lost", "of what was expected"),
    ],
)
def test_a_fall_or_rise_that_sampling_may_explain_is_not_called_something_else(
    columns: Columns, kept: float, verdict: str, reason: str
) -> None:
    _, trends = Export(every(kept), columns, metric=False).night()
    assert (trends[-1].verdict, reason in trends[-1].reason) == (verdict, True), trends[-1].reason


@pytest.mark.parametrize(("trust", "verdict"), [(False, "uncertain"), (True, "events lost")])
def test_weights_are_trusted_of_a_sender_that_the_operator_knows(trust: bool, verdict: str) -> None:
    columns = columns_of("py3.11:otel1.25:ext1.0")
    _, trends = Export(every(0.1), columns, metric=False).night(trust_weights=trust)
    assert trends[-1].verdict == verdict, trends[-1].reason
    assert any("cannot be trusted" in text for text in trends[-1].warnings) is not trust


@pytest.mark.parametrize("name", ["Request duration", "http.server.request.duration"])
def test_a_standard_metric_is_a_control_by_its_id_whatever_its_name(name: str) -> None:
    by_id = {"Name": name, "Properties": {"_MS.MetricId": "requests/duration"}}
    found = Export(every(0.5), metric_name=by_id).night()
    assert found == Export(every(0.5)).night()
    assert found[1][-1].evidence["control"]


def test_a_stated_rate_excludes_that_rounding_explains_a_fall() -> None:
    stated = {"SDKVersion": "py3.11:otel1.25", "Properties": {"microsoft.sample_rate": "100"}}
    _, trends = Export(every(0.7), dict.fromkeys(range(DAYS), stated), metric=False).night()
    assert trends[-1].verdict == "events lost"
    assert "sampling" not in trends[-1].reason


@pytest.mark.parametrize("none", ["0" * 32, "0" * 16, "00000000-0000-0000-0000-000000000000"])
def test_records_outside_a_trace_do_not_form_one_operation(none: str) -> None:
    found, wanted = (
        Export(columns=columns_of(count=4, usual={"OperationId": each}), metric=False).night()[1]
        for each in (none, "")
    )
    assert [t.adjusted_count_se for t in found] == [t.adjusted_count_se for t in wanted]
    assert found[-1].adjusted_count_se < 0.2 * found[-1].adjusted_count
    assert {t.verdict for t in found[16:]} == {"normal"}


def test_hours_that_an_earlier_version_stored_have_an_unknown_age() -> None:
    """Never age 0: then they would count as having arrived at once."""
    row = {"date": "2017-05-01", "kind": "event", "event": NAME, "dims": [], "records": 3}
    totals = totals_of([{**row, "hours": [[415_176, 1, 1.0], [415_176, 2, 2.0, 0]]}])
    ((_, hours),) = totals.values()
    assert [hour.age for hour in hours] == [None, 0]
    assert sum(hour.records for hour in hours) == 3


def test_the_age_of_a_record_is_that_of_its_first_copy_and_unknown_without_a_date() -> None:
    noon, next_day = "y=2017/m=05/d=15/h=12/PT1H.json", "y=2017/m=05/d=16/h=12/PT1H.json"
    first, second, moved = (event(f"2017-05-15T09:30:0{n}") for n in range(3))
    files = {noon: [first], next_day: [first, second], "download.json": [moved]}
    pieces = [(SourceFile(at, 0), "\n".join(found).encode()) for at, found in files.items()]
    totals, _ = total_of(list(batches_of(pieces, Shape())))
    ((_, hours),) = totals.values()
    assert [(hour.age, hour.records) for hour in hours] == [(None, 1), (0, 1), (1, 1)]
