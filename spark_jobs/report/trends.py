"""From sums of days to trends: figures, warnings, and a verdict for each day of each series."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from shared.sampling.comparison import DOUBTFUL_MAX, Day, day_of
from shared.sampling.estimates import EventEstimates
from shared.sampling.measured import combined, judge_measured
from shared.sampling.model import RecordKind
from shared.sampling.trend_rows import Trend
from shared.sampling.verdict import Verdict, VerdictKind, judge_all
from spark_jobs.read.extracted import BlobDate
from spark_jobs.read.files import UNDATED
from spark_jobs.shape import Shape
from spark_jobs.sums.sums import Series, Sums

Days = Mapping[tuple[str, Series], Sums]
Controls = Mapping[str, float]
NO_SUMS = Sums()
HEAVY_SHARE = 0.1
ALL_REQUESTS = "requests/duration"
"""The standard metric that every SDK sends: its item count is that of requests."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known beside the sums.

    ``controls`` holds a series that is not sampled by event (empty: of all events), by date.
    """

    shape: Shape
    blob_dates: Mapping[str, BlobDate]
    today: date
    """In UTC."""
    controls: Mapping[str, Controls] = field(default_factory=dict)
    holidays: Collection[date] = ()
    unreadable: Collection[str] = ()
    """Event dates of which some records cannot be read again."""


def trends_of(days: Days, known: Known) -> list[Trend]:
    """One row a series and day, from its first to the last that is complete, by series and day.

    Days without records are there: an event that has stopped coming must not go unseen.
    """
    by_series: dict[Series, dict[str, Sums]] = {}
    for (day, series), sums in days.items():
        by_series.setdefault(series, {})[day] = sums
    complete = complete_dates(known)
    known = replace(known, controls={**automatic_controls(days, complete), **known.controls})
    events = [series for series in by_series if series.kind != RecordKind.METRIC]
    order = sorted(events, key=lambda s: (s.event, s.kind, s.dims))
    return [
        trend
        for series in order
        for trend in _of_series(series, by_series[series], complete, known)
    ]


def automatic_controls(days: Days, complete: Collection[str]) -> Mapping[str, Controls]:
    """Metrics are aggregated before sampling: that of an event's own name, else of all requests."""
    found: dict[str, dict[str, float]] = {}
    for (day, series), sums in days.items():
        if series.kind == RecordKind.METRIC and day in complete:
            of_metric = found.setdefault(series.event, {})
            of_metric[day] = of_metric.get(day, 0.0) + sums.weight_sum
    return {**({"": found[ALL_REQUESTS]} if ALL_REQUESTS in found else {}), **found}


def complete_dates(known: Known) -> set[str]:
    """Event dates all of whose blob dates were read, and are over."""
    read = {day for day in known.blob_dates if day != UNDATED}
    if not read:
        return {
            day
            for found in known.blob_dates.values()
            for day in found.event_dates
            if day < known.today.isoformat()
        }
    zone = ZoneInfo(known.shape.time_zone)
    first, last = date.fromisoformat(min(read)), date.fromisoformat(max(read))
    days = [first + timedelta(days=n) for n in range((last - first).days + 1)]
    return {
        day.isoformat()
        for day in days
        if all(utc.isoformat() in read and utc < known.today for utc in _utc_dates(day, zone))
    }


def _utc_dates(day: date, zone: ZoneInfo) -> set[date]:
    start = datetime.combine(day, time(), zone)
    end = datetime.combine(day + timedelta(days=1), time(), zone) - timedelta(seconds=1)
    return {start.astimezone(UTC).date(), end.astimezone(UTC).date()}


def _of_series(
    series: Series, found: Mapping[str, Sums], complete: Collection[str], known: Known
) -> list[Trend]:
    dates = sorted(set(found) | {day for day in complete if day > min(found)})
    figures = {day: found.get(day, NO_SUMS).figures for day in dates}
    controls = known.controls.get(series.event, known.controls.get("", {}))
    counts = [
        day_of(figures[day], date.fromisoformat(day), control=controls.get(day)) for day in dates
    ]
    verdicts = judge_all(_told_apart(counts, complete), known.holidays)
    measured = _measured(found, figures, dates, complete, known)
    return [
        _trend(
            series, day, found.get(day, NO_SUMS), figures[day], (verdict, of_sum), complete, known
        )
        for day, verdict, of_sum in zip(dates, verdicts, measured, strict=True)
    ]


def _measured(
    found: Mapping[str, Sums],
    figures: Mapping[str, EventEstimates],
    dates: Sequence[str],
    complete: Collection[str],
    known: Known,
) -> Sequence[Verdict | None]:
    """Of the sums; None where nothing was ever measured. The count is the control of its sum."""
    if not known.shape.measurement or not any(sums.valued for sums in found.values()):
        return [None] * len(dates)
    days = [
        day_of(figures[day], date.fromisoformat(day), "total", control=figures[day].count.value)
        for day in dates
    ]
    return judge_all(_told_apart(days, complete), by=judge_measured)


def _told_apart(days: Sequence[Day], complete: Collection[str]) -> list[Day]:
    """A day that is not complete tells nothing of later ones."""
    return [replace(day, excluded=str(day.day) not in complete) for day in days]


def _trend(
    series: Series,
    day: str,
    sums: Sums,
    figures: EventEstimates,
    verdicts: tuple[Verdict, Verdict | None],
    complete: Collection[str],
    known: Known,
) -> Trend:
    blob_date = known.blob_dates.get(day, known.blob_dates.get(UNDATED, BlobDate()))
    of_count, of_sum = verdicts
    if day not in complete:
        of_count, of_sum = _unread(of_count), of_sum and _unread(of_sum)
    verdict_of_both = combined(of_count, of_sum, known.shape.measurement)
    count = figures.count
    total = figures.total if sums.valued or not sums.records else None
    return Trend(
        date=day,
        event=series.event,
        kind=series.kind,
        measurement=known.shape.measurement,
        dimensions=dict(zip(known.shape.dimensions, series.dims, strict=True)),
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
        complete=day in complete,
        warnings=tuple(_warnings(figures, blob_date, unreadable=day in known.unreadable)),
        verdict=str(verdict_of_both.kind),
        reason=verdict_of_both.reason,
        figure=verdict_of_both.figure,
        count_verdict=str(of_count.kind),
        sum_verdict=str(of_sum.kind) if of_sum else "",
        evidence=dict(verdict_of_both.evidence),
    )


def _unread(verdict: Verdict) -> Verdict:
    reason = "not all files of this date have been read, or it is not over"
    return replace(verdict, kind=VerdictKind.UNCERTAIN, reason=reason)


def _warnings(figures: EventEstimates, blob_date: BlobDate, *, unreadable: bool) -> list[str]:
    found = []
    if unreadable:
        found.append(
            "some records of this date cannot be read again, since their files are gone and their"
            " partials are in another format: the fullest totals that were ever published stand"
        )
    if figures.doubtful_records:
        share = figures.doubtful_records / figures.records
        effect = "" if share <= DOUBTFUL_MAX else ": a fall may be sampling that nobody told"
        found.append(f"weights of {share:.1%} of records cannot be trusted{effect}")
    if figures.count.value and figures.weight_max > HEAVY_SHARE * figures.count.value > HEAVY_SHARE:
        share = figures.weight_max / figures.count.value
        if figures.records > 1 / HEAVY_SHARE:
            found.append(f"one record stands for {share:.0%} of all")
    if blob_date.quarantined:
        found.append(f"{blob_date.quarantined} lines of this date's files could not be read")
    return found
