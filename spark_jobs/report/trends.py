"""Turns sums of days into trends: figures, warnings, and a verdict for each day of each series."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from typing import Any, Literal
from zoneinfo import ZoneInfo

from shared.sampling.comparison import DOUBTFUL_MAX, day_of
from shared.sampling.estimates import Sums
from shared.sampling.measured import combined, judge_measured
from shared.sampling.model import RecordKind
from shared.sampling.trend_rows import Trend
from shared.sampling.verdict import Verdict, VerdictKind, judge_all
from spark_jobs.model import BlobDate, Series, Shape
from spark_jobs.read.files import UNDATED

Days = Mapping[tuple[str, Series], Sums]
Controls = Mapping[str, float]
NO_SUMS = Sums()
HEAVY_SHARE = 0.1
COPIES_SHARE = 0.01
INCOMPLETE = "not all files of this date have been read, or the date is not over"
ALL_REQUESTS = "requests/duration"
"""The standard metric that every SDK sends. Its item count is the number of requests."""


@dataclass(frozen=True)
class TrendInputs:
    """The inputs of trends besides sums. ``controls`` has figures by event and date; figures under
    an empty name apply to all other events.
    """

    shape: Shape
    blob_dates: Mapping[str, BlobDate]
    today: date
    """In UTC."""
    controls: Mapping[str, Controls] = field(default_factory=dict)
    holidays: Collection[date] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Event dates with records that cannot be read again, and the format of these records."""

    @cached_property
    def complete(self) -> set[str]:
        """Event dates that are over and whose blob dates were all read."""
        read = {d for d, of in self.blob_dates.items() if d != UNDATED and not of.damaged}
        if self.blob_dates.keys() <= {UNDATED}:
            whole = [each for each in self.blob_dates.values() if not each.damaged]
            event_dates = {day for each in whole for day in each.records}
            return {day for day in event_dates if day < self.today.isoformat()}
        zone = ZoneInfo(self.shape.time_zone)
        if not read:
            return set()
        first, last = date.fromisoformat(min(read)), date.fromisoformat(max(read))
        days = [first + timedelta(days=n) for n in range((last - first).days + 1)]
        return {
            day.isoformat()
            for day in days
            if all(utc.isoformat() in read and utc < self.today for utc in _utc_dates(day, zone))
        }

    def blob_date(self, day: str) -> BlobDate:
        """What was read of the files of an event date, or of those without a date."""
        return self.blob_dates.get(day, self.blob_dates.get(UNDATED, BlobDate()))


def trends_of(days: Days, inputs: TrendInputs) -> list[Trend]:
    """Returns a trend for each series and day, from the first day to the last complete day.

    Days without records are included, so that an event that has stopped is noticed.
    """
    by_series: dict[Series, dict[str, Sums]] = {}
    for (day, series), sums in days.items():
        by_series.setdefault(series, {})[day] = sums
    automatic = automatic_controls(days, inputs.complete)
    inputs = replace(inputs, controls={**automatic, **inputs.controls})
    events = [series for series in by_series if series.kind != RecordKind.METRIC]
    return [
        trend
        for series in sorted(events, key=lambda s: (s.event, s.kind, s.dims))
        for trend in _of_series(series, by_series[series], inputs)
    ]


def automatic_controls(days: Days, complete: Collection[str]) -> Mapping[str, Controls]:
    """Returns control series from metrics, which are aggregated before sampling. The control of an
    event is the metric of the same name. If there is none, the control is the metric that counts
    all requests.
    """
    controls: dict[str, dict[str, float]] = {}
    for (day, series), sums in days.items():
        if series.kind == RecordKind.METRIC and day in complete:
            metric = controls.setdefault(series.event, {})
            metric[day] = metric.get(day, 0.0) + sums.weight_sum
    return {"": controls.get(ALL_REQUESTS, {}), **controls}


def _utc_dates(day: date, zone: ZoneInfo) -> set[date]:
    start = datetime.combine(day, time(), zone)
    end = datetime.combine(day + timedelta(days=1), time(), zone) - timedelta(seconds=1)
    return {start.astimezone(UTC).date(), end.astimezone(UTC).date()}


def _of_series(series: Series, sums: Mapping[str, Sums], inputs: TrendInputs) -> list[Trend]:
    dates = sorted(set(sums) | {day for day in inputs.complete if day > min(sums)})
    figures = {day: sums.get(day, NO_SUMS).figures for day in dates}

    def judged(
        of: Literal["count", "total"], controls: Controls, **rules: Any
    ) -> Sequence[Verdict]:
        days = [
            replace(
                day_of(figures[d], date.fromisoformat(d), of, controls.get(d)),
                excluded=d not in inputs.complete,
                unread=_unread_share(inputs.blob_date(d), sums.get(d, NO_SUMS), of),
                key=inputs.unreadable.get(d, ""),
            )
            for d in dates
        ]
        return judge_all(days, **rules)

    controls = inputs.controls.get(series.event, inputs.controls.get("", {}))
    verdicts = judged("count", controls, holidays=inputs.holidays)
    of_sums: Sequence[Verdict | None] = [None] * len(dates)
    if inputs.shape.measurement and any(day.valued for day in sums.values()):
        counts = {day: figures[day].count.value for day in dates}  # the control series of a sum
        of_sums = judged("total", counts, by=judge_measured)
    return [
        _trend(series, day, sums.get(day, NO_SUMS), of_count, of_sum, inputs)
        for day, of_count, of_sum in zip(dates, verdicts, of_sums, strict=True)
    ]


def _unread_share(blob_date: BlobDate, sums: Sums, of: Literal["count", "total"]) -> float:
    if of == "count":
        unread, read = blob_date.quarantined, sums.records + sums.duplicates
    else:
        unread, read = blob_date.bad_values, sums.valued
    return unread / (unread + read) if unread else 0.0


def _trend(
    series: Series,
    day: str,
    sums: Sums,
    of_count: Verdict,
    of_sum: Verdict | None,
    inputs: TrendInputs,
) -> Trend:
    blob_date = inputs.blob_date(day)
    figures, complete = sums.figures, day in inputs.complete
    if not complete:
        of_count = replace(of_count, kind=VerdictKind.UNCERTAIN, reason=INCOMPLETE)
        of_sum = of_sum and replace(of_sum, kind=VerdictKind.UNCERTAIN, reason=INCOMPLETE)
    both = combined(of_count, of_sum, inputs.shape.measurement)
    count = figures.count
    total = figures.total if sums.valued or not sums.records else None
    return Trend(
        date=day,
        event=series.event,
        kind=series.kind,
        measurement=inputs.shape.measurement,
        dimensions=dict(zip(inputs.shape.dimensions, series.dims, strict=True)),
        records=figures.records,
        raw_sum=figures.raw_sum if total else None,
        sampling_rate=figures.sampling_rate_percent,
        adjusted_count=count.value,
        adjusted_count_se=count.standard_error,
        adjusted_count_low=count.low,
        adjusted_count_high=count.high,
        adjusted_sum=total.value if total else None,
        adjusted_sum_se=total.standard_error if total else None,
        adjusted_sum_low=total.low if total else None,
        adjusted_sum_high=total.high if total else None,
        n_eff=figures.effective_records,
        weight_max=figures.weight_max,
        duplicates_removed=sums.duplicates,
        quarantined=blob_date.quarantined,
        late_share=sums.late / sums.records if sums.records else None,
        complete=complete,
        warnings=tuple(_warnings(sums, blob_date, unreadable=day in inputs.unreadable)),
        verdict=str(both.kind),
        reason=both.reason,
        figure=both.figure,
        count_verdict=str(of_count.kind),
        sum_verdict=str(of_sum.kind) if of_sum else "",
        evidence=dict(both.evidence),
    )


def _warnings(sums: Sums, blob_date: BlobDate, *, unreadable: bool) -> list[str]:
    warnings, figures = [], sums.figures
    if unreadable:
        warnings.append(
            "some records of this date cannot be read again, because their files are gone and their"
            " partials are in another format: the published totals with the most records stay"
        )
    if figures.doubtful_records:
        share = figures.doubtful_records / figures.records
        effect = "" if share <= DOUBTFUL_MAX else ": a fall may be sampling that was not reported"
        warnings.append(f"weights of {share:.1%} of records cannot be trusted{effect}")
    if figures.count.value and figures.weight_max > HEAVY_SHARE * figures.count.value > HEAVY_SHARE:
        share = figures.weight_max / figures.count.value
        if figures.records > 1 / HEAVY_SHARE:
            warnings.append(f"one record stands for {share:.0%} of all")
    if sums.beside > sums.duplicates / 2 > COPIES_SHARE * sums.records / 2:
        warnings.append(
            f"{sums.beside} of {sums.duplicates} copies lie beside the record that they repeat, so"
            " they may be other events: write times with fractions of a second, or a property such"
            " as a message ID"
        )
    unread = {
        "values of this date's files could not be read": blob_date.bad_values,
        "files of this date are damaged": blob_date.damaged,
        "lines of this date's files could not be read": blob_date.quarantined,
    }
    return [*warnings, *(f"{count} {text}" for text, count in unread.items() if count)]
