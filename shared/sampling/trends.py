"""Turns sums of days into trends: figures, warnings, and a verdict for each day of each series."""

from __future__ import annotations

from collections.abc import Collection as Dates
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from statistics import median
from typing import Any, Literal
from zoneinfo import ZoneInfo

from shared.sampling.baseline import MEMORY_DAYS
from shared.sampling.collection import Collected, arrived
from shared.sampling.companions import CompanionVerdict, judge_days, with_companions
from shared.sampling.comparison import DOUBTFUL_MAX, Day, day_of
from shared.sampling.control import Controls
from shared.sampling.estimates import Estimate, Sums
from shared.sampling.kept_ids import Weights
from shared.sampling.measured import combined, judge_measured
from shared.sampling.model import RecordKind
from shared.sampling.operations import LOGS, DayOperations, limited_to, pairs_of, sampler_of
from shared.sampling.series import (
    UNDATED,
    UNIX_START,
    BlobDate,
    DaySums,
    HourSums,
    Series,
    Shape,
    Totals,
)
from shared.sampling.trend_rows import Trend
from shared.sampling.verdict import CAPPED, Verdict, VerdictKind, judge_all

NOTHING = DaySums(Sums())
SETTLED_DAYS = 3
"""A day is judged as it is when the files of this many days after it were read. Azure accepts
telemetry that is 48 hours old.
"""
HEAVY_SHARE = 0.1
WEEK = timedelta(days=7)
INCOMPLETE = "not all files of this date have been read, or the date is not over"
MIXED = "the names that this series adds up differ from day to day"
ALL_REQUESTS = "requests/duration"
"""The standard metric that every SDK sends. Its item count is the number of requests."""


@dataclass(frozen=True)
class TrendInputs:
    """The inputs of trends besides totals. ``controls`` has figures by event and date; figures
    under an empty name apply to all other events.
    """

    shape: Shape
    blob_dates: Mapping[str, BlobDate]
    today: date
    """In UTC."""
    controls: Controls = field(default_factory=dict)
    holidays: Dates[date] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Event dates with records that cannot be read again, and the format of these records."""
    trust_weights: bool = False
    """Whether days are judged whose senders may not state their sampling."""
    operations: Mapping[str, DayOperations] = field(default_factory=dict)
    """By event date. Dates of earlier versions have none."""

    @cached_property
    def read(self) -> set[str]:
        """The blob dates that were read; empty if only files without a date have records."""
        only_undated = {day for day, each in self.blob_dates.items() if each.records} == {UNDATED}
        return set() if only_undated else set(self.blob_dates) - {UNDATED}

    @cached_property
    def complete(self) -> set[str]:
        """Event dates that are over and whose blob dates were all read."""
        read = {day for day in self.read if not self.blob_dates[day].damaged}
        if not self.read:
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

    @cached_property
    def ages(self) -> Mapping[date, int]:
        """The number of days after each complete date whose files were read, where it is less than
        ``SETTLED_DAYS``. Without dates of files it is unknown, and no date is young.
        """
        if not self.read:
            return {}
        ages: dict[date, int] = {}
        for day in map(date.fromisoformat, self.complete):
            next_date, age = self.last_utc_date(day) + timedelta(days=1), 0
            while next_date.isoformat() in self.read and next_date < self.today:
                next_date, age = next_date + timedelta(days=1), age + 1
                if age == SETTLED_DAYS:
                    break
            else:
                ages[day] = age
        return ages

    @cached_property
    def companions(self) -> Mapping[str, Mapping[Series, CompanionVerdict]]:
        """By complete date."""
        dates = sorted(self.complete & self.operations.keys())
        pairs = [pairs_of(self.operations[day].counts) for day in dates]
        return dict(zip(dates, judge_days(pairs), strict=True))

    @cached_property
    def untold(self) -> Set[str]:
        """The dates on which ids do not tell the weights of a sender, such as for want of
        operations, although they corrected them within the week before. Uncorrected, the date would
        look like a loss.
        """
        corrected, found = dict[str, date](), set[str]()
        for day in sorted(self.operations):
            on = date.fromisoformat(day)
            for sdk, seen in self.operations[day].weights.items():
                if seen.is_repaired:
                    corrected[sdk] = on
                elif seen.weights is Weights.UNKNOWN and sdk in corrected:
                    found |= {day} if on - corrected[sdk] <= WEEK else set()
        return found

    def last_utc_date(self, day: date) -> date:
        return max(_utc_dates(day, ZoneInfo(self.shape.time_zone)))

    def blob_date(self, day: str) -> BlobDate:
        """What was read of the files of an event date, or of those without a date."""
        return self.blob_dates.get(day, self.blob_dates.get(UNDATED, BlobDate()))


@dataclass(frozen=True)
class _Control:
    """A figure for each date, with the shares that had arrived, if the control was exported."""

    values: Mapping[str, float] = field(default_factory=dict)
    exported: bool = False
    arrived: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Context:
    """What all series have in common."""

    inputs: TrendInputs
    controls: Mapping[str, _Control]
    collection: Collected


def collection_of(
    totals: Totals, dates: Iterable[date], zone: ZoneInfo, ages: Mapping[date, int] | None = None
) -> Collected:
    """The collection on these complete dates. Dates whose hours are unknown are left out."""
    records: dict[int, dict[int | None, int]] = {}
    dates_with_data, without_hours = set[str](), set[str]()
    for (day, _), (sums, hours) in totals.items():
        if sums.records:
            (dates_with_data if hours else without_hours).add(day)
        for hour, count, _, age in hours:
            of_hour = records.setdefault(hour, {})
            of_hour[age] = of_hour.get(age, 0) + count
    first = min(dates_with_data, default="")
    known = [day for day in sorted(dates) if str(day) not in without_hours and str(day) >= first]
    return Collected(records, known if first else [], zone, ages or {})


def trends_of(days: Totals, inputs: TrendInputs) -> list[Trend]:
    """Returns a trend for each series and day, from the first day to the last complete day.

    Days without records are included, so that an event that has stopped is noticed. After ten weeks
    without records, which is as long as verdicts remember, the series ends.
    """
    by_series: dict[Series, dict[str, DaySums]] = {}
    for (day, series), sums in days.items():
        by_series.setdefault(series, {})[day] = sums
    given = {name: _Control(values) for name, values in inputs.controls.items()}
    complete, zone = map(date.fromisoformat, inputs.complete), ZoneInfo(inputs.shape.time_zone)
    collection = collection_of(days, complete, zone, inputs.ages)
    controls = {**automatic_controls(days, inputs), **given}
    context = _Context(inputs, controls, collection)
    events = [series for series in by_series if series.kind != RecordKind.METRIC]
    return [
        trend
        for series in sorted(events, key=lambda s: (s.event, s.kind, s.dims))
        for trend in _of_series(series, by_series[series], context)
    ]


def automatic_controls(days: Totals, inputs: TrendInputs) -> Mapping[str, _Control]:
    """Returns control series from metrics, which are aggregated before sampling. The control of an
    event is the metric of the same name. If there is none, the control is the metric that counts
    all requests.
    """
    metrics: dict[str, dict[str, float]] = {}
    hours: dict[str, dict[str, list[HourSums]]] = {}
    for (day, series), of_day in days.items():
        if series.kind == RecordKind.METRIC and day in inputs.complete:
            metric = metrics.setdefault(series.event, {})
            metric[day] = metric.get(day, 0.0) + of_day.sums.weight_sum
            hours.setdefault(series.event, {}).setdefault(day, []).extend(of_day.hours)
    controls = {
        name: _Control(values, True, {d: _arrived(hours[name][d], d, inputs) for d in values})
        for name, values in metrics.items()
    }
    return {"": controls.get(ALL_REQUESTS, _Control()), **controls}


def _arrived(hours: Sequence[HourSums], day: str, inputs: TrendInputs) -> tuple[float, ...]:
    """The share of a day's weights that had arrived at each age; empty if it is unknown."""
    if not inputs.ages or not hours or any(hour.age is None for hour in hours):
        return ()
    if not any(hour.age for hour in hours):
        return (1.0,) * SETTLED_DAYS
    last = (inputs.last_utc_date(date.fromisoformat(day)) - UNIX_START.date()).days
    total = sum(hour.weight_sum for hour in hours)
    return tuple(
        sum(arrived({h.age: h.weight_sum}, h.hour, last, age) for h in hours) / total
        for age in range(SETTLED_DAYS)
    )


def _utc_dates(day: date, zone: ZoneInfo) -> set[date]:
    start = datetime.combine(day, time(), zone)
    end = datetime.combine(day + timedelta(days=1), time(), zone) - timedelta(seconds=1)
    return {start.astimezone(UTC).date(), end.astimezone(UTC).date()}


def _of_series(series: Series, days: Mapping[str, DaySums], context: _Context) -> list[Trend]:
    inputs, collection = context.inputs, context.collection
    dates = _dates(days, inputs.complete)
    sums = {day: days.get(day, NOTHING).sums for day in dates}
    shares = {day: _arrived(days.get(day, NOTHING).hours, day, inputs) for day in dates}
    silent = _silent(days, collection)

    def judged(of: Literal["count", "total"], control: _Control, **rules: Any) -> Sequence[Verdict]:
        def seen(on: str) -> Day:
            day = date.fromisoformat(on)
            figures = day_of(sums[on], day, of, control.values.get(on))
            return replace(
                figures,
                trusted=(figures.trusted and on not in inputs.untold) or inputs.trust_weights,
                excluded=on not in inputs.complete,
                control_exported=control.exported,
                silent=silent.get(on, ""),
                capped=day in collection.caps,
                age=inputs.ages.get(day),
                arrived=shares[on],
                control_arrived=control.arrived.get(on, ()),
                unread=_unread_share(inputs.blob_date(on), sums[on], of),
                key=inputs.unreadable.get(on, ""),
            )

        return judge_all(list(map(seen, dates)), **rules)

    control = context.controls.get(series.event, context.controls[""])
    alone = judged("count", control, holidays=inputs.holidays)
    verdicts = [
        _by_operations(v, day, series, sums[day], context)
        for day, v in zip(dates, alone, strict=True)
    ]
    of_sums: Sequence[Verdict | None] = [None] * len(dates)
    if inputs.shape.measurement and any(day.valued for day in sums.values()):
        counts = {day: sums[day].count.value for day in dates}  # the control series of a sum
        of_sums = judged("total", _Control(counts, arrived=shares), by=judge_measured)
    return [
        _trend(series, day, sums[day], of_count, of_sum, context)
        for day, of_count, of_sum in zip(dates, verdicts, of_sums, strict=True)
    ]


def _by_operations(
    verdict: Verdict, day: str, series: Series, sums: Sums, context: _Context
) -> Verdict:
    """The verdict on the count, combined with what the operations of the date show.

    Companions say nothing about a young date if a part of it usually arrives later.
    """
    operations = context.inputs.operations.get(day, DayOperations())
    seen = context.inputs.companions.get(day, {}).get(series)
    if seen and "usually_arrived" not in verdict.evidence:
        only = limited_to(seen.test, operations.counts) if seen.lost else ""
        verdict = with_companions(verdict, seen, only)
        share = {"operations_left_out": operations.left_out}
        verdict = replace(verdict, evidence={**verdict.evidence, **share})
    if not sums.repaired:
        return verdict
    wrong = {
        sdk: each
        for sdk, each in operations.weights.items()
        if each.is_repaired and sdk == sampler_of(sdk.removesuffix(LOGS), series.kind)
    }
    told = [
        f"item counts of {sdk.removesuffix(LOGS) or '(no SDKVersion)'} are {wrong[sdk].told(sdk)}"
        for sdk in wrong
    ]
    figures = {
        f"item_count_{name}": max(getattr(each, name) for each in wrong.values())
        for name in ("factor", "low", "high")
    }
    reason = f"{verdict.reason}; corrected: {'; '.join(told)}"
    return replace(verdict, reason=reason, evidence={**verdict.evidence, **figures})


def _dates(with_records: Mapping[str, object], complete: Iterable[str]) -> list[str]:
    """Returns the dates with records, and the complete dates of the ten weeks after each."""
    dates, ends = [], date.min
    for day in sorted({*with_records, *complete}):
        on = date.fromisoformat(day)
        if day in with_records:
            ends = on + timedelta(days=min(MEMORY_DAYS, (date.max - on).days))
        if on <= ends:
            dates.append(day)
    return dates


def _silent(days: Mapping[str, DaySums], collection: Collected) -> Mapping[str, str]:
    """The hours in which collection stopped, by date, if the event usually has records then."""
    silent: dict[str, str] = {}
    for day, spans in collection.stops.items():
        hours = {hour % 24 for span in spans for hour in span}
        earlier = [found for at, (_, found) in days.items() if at < str(day)]
        usual = [any(hour.hour % 24 in hours for hour in found) for found in earlier]
        if usual and median(usual):
            silent[str(day)] = collection.named(spans)
    return silent


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
    context: _Context,
) -> Trend:
    inputs = context.inputs
    blob_date = inputs.blob_date(day)
    complete = day in inputs.complete
    if not complete or series.is_combined:
        reason = MIXED if complete else INCOMPLETE
        of_count = replace(of_count, kind=VerdictKind.UNCERTAIN, reason=reason)
        of_sum = of_sum and replace(of_sum, kind=VerdictKind.UNCERTAIN, reason=reason)
    both = combined(of_count, of_sum, inputs.shape.measurement)
    has_sum = bool(sums.valued or not sums.records)
    doubt = inputs.operations.get(day, DayOperations()).factor_error * sums.repaired_share
    return Trend(
        date=day,
        event=series.event,
        kind=series.kind,
        measurement=inputs.shape.measurement,
        dimensions=dict(zip(inputs.shape.dimensions, series.dims, strict=True)),
        records=sums.records,
        raw_sum=sums.raw_sum if has_sum else None,
        sampling_rate=sums.sampling_rate_percent,
        **_adjusted("count", sums.count.widened(doubt)),
        **(_adjusted("sum", sums.total.widened(doubt)) if has_sum else {}),
        n_eff=sums.effective_records,
        weight_max=sums.weight_max,
        duplicates_removed=sums.duplicates,
        quarantined=blob_date.quarantined,
        late_share=sums.late / sums.records if sums.records else None,
        complete=complete,
        warnings=(
            *_warnings(
                sums,
                blob_date,
                unreadable=day in inputs.unreadable,
                trusted=inputs.trust_weights,
            ),
            *_warnings_of_collection(date.fromisoformat(day), of_count, context.collection),
        ),
        verdict=str(both.kind),
        reason=both.reason,
        figure=both.figure,
        count_verdict=str(of_count.kind),
        sum_verdict=str(of_sum.kind) if of_sum else "",
        evidence=dict(both.evidence),
    )


def _adjusted(name: str, estimate: Estimate) -> dict[str, Any]:
    return {
        f"adjusted_{name}": estimate.value,
        f"adjusted_{name}_se": estimate.standard_error,
        f"adjusted_{name}_low": estimate.low,
        f"adjusted_{name}_high": estimate.high,
    }


def _warnings(
    sums: Sums, blob_date: BlobDate, *, unreadable: bool, trusted: bool = False
) -> list[str]:
    warnings, count = [], sums.count.value
    if unreadable:
        warnings.append(
            "some records of this date cannot be read again, because their files are gone and their"
            " partials are in another format: the published totals stay"
        )
    if sums.doubtful and not trusted:
        share = sums.doubtful / sums.records
        effect = "" if share <= DOUBTFUL_MAX else ": a fall may be sampling that was not reported"
        warnings.append(f"weights of {share:.1%} of records cannot be trusted{effect}")
    if count and sums.weight_max > HEAVY_SHARE * count > HEAVY_SHARE:
        share = sums.weight_max / count
        if sums.records > 1 / HEAVY_SHARE:
            warnings.append(f"one record stands for {share:.0%} of all")
    unread = {
        "values of this date's files could not be read": blob_date.bad_values,
        "files of this date are damaged": blob_date.damaged,
        "lines of this date's files could not be read": blob_date.quarantined,
    }
    return [*warnings, *(f"{count} {text}" for text, count in unread.items() if count)]


def _warnings_of_collection(day: date, verdict: Verdict, collection: Collected) -> Iterable[str]:
    if hours := collection.stops.get(day):
        yield (
            f"no table has a record {collection.named(hours)}, in which all earlier days have some:"
            " collection stopped, as at a daily cap or when files are missing, or the application"
            " did"
        )
    if cap := collection.caps.get(day):
        yield f"{CAPPED}, here {collection.named([cap])}: later records of the day are unknown"
    arrived = verdict.evidence.get("usually_arrived")
    if isinstance(arrived, float):
        yield f"{1 - arrived:.0%} of a day's records usually arrive later than these"
