"""The job: read files into partials, add up the dates of their records, and publish the results."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING

from shared.sampling.trend_rows import Trend
from spark_jobs.errors import BadInput, BadOutput, JobError
from spark_jobs.model import BlobDate, Complaint, Extracted, Shape, Totals
from spark_jobs.publish import publishing, results
from spark_jobs.publish.publishing import Entry, Manifest, Unreadable, unreadable
from spark_jobs.publish.stores import Store
from spark_jobs.read.files import UNDATED, SourceFile, chosen
from spark_jobs.read.sources import Source
from spark_jobs.report.trends import Controls, TrendInputs, trends_of

if TYPE_CHECKING:
    from spark_jobs.engine import Engine


@dataclass(frozen=True, slots=True)
class Request:
    """What to compute. Files of the blob dates from ``since`` to ``until`` are read; None sets no
    limit.
    """

    shape: Shape
    run_id: str
    today: date
    since: date | None = None
    until: date | None = None
    controls: Mapping[str, Controls] = field(default_factory=dict)
    holidays: Collection[date] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """What a run published. ``changed`` has event dates; trends and totals are those of all dates.
    An event date with records of ``unreadable`` blob dates keeps, of all totals ever published for
    it, those with the most records.
    """

    manifest: Manifest
    changed: frozenset[str]
    trends: Sequence[Trend]
    totals: Totals
    complaints: Sequence[Complaint]
    unreadable: Unreadable

    @property
    def changed_trends(self) -> list[Trend]:
        return [trend for trend in self.trends if trend.date in self.changed]


Report = Callable[[str, Sequence[Trend]], None]
"""Writes more files into a results folder before it is published."""


def run(
    source: Source, store: Store, engine: Engine, request: Request, report: Report | None = None
) -> Done:
    """Run the job. If it raises JobError, nothing has changed."""
    base = publishing.latest(store, request.shape)
    this = _Run(source, store, engine, request, base, source.files(), report)
    try:
        return this.publish(this.extract())
    except BaseException:
        store.delete(f"partials/{request.run_id}")
        store.delete(f"quarantine/{request.run_id}")
        raise


@dataclass(frozen=True, slots=True)
class _Run:
    source: Source
    store: Store
    engine: Engine
    request: Request
    base: Manifest
    every: Sequence[SourceFile]
    """All files of the source, of any date."""
    report: Report | None

    def extract(self) -> Extracted:
        files, run_id = self._files(), self.request.run_id
        folder, quarantine = self.store.url(f"partials/{run_id}"), f"quarantine/{run_id}"
        try:
            extracted = self.engine.extract(
                self.source, files, self.request.shape, folder, self.store.url(quarantine)
            )
        except JobError:
            raise
        except Exception as error:  # Spark wraps the error of a task in its own text
            raised = re.search(r"spark_jobs\.errors\.(BadInput|BadOutput): (.*)", str(error))
            if raised is None:
                raise
            kind = {each.__name__: each for each in (BadInput, BadOutput)}[raised[1]]
            raise kind(raised[2]) from error
        if not any(blob_date.records for blob_date in extracted.blob_dates.values()):
            raise BadInput(nothing_read(self.source, files, extracted))
        return extracted

    def _files(self) -> list[SourceFile]:
        """Returns the files of the requested dates, and of dates whose partials have another
        format. Such partials cannot be added to those of this format. So the files of their dates
        are read again once, unless some of these files have been deleted meanwhile.
        """
        name, request = self.source.name, self.request
        if not self.every:
            raise BadInput(f"--input {name}: holds no file such as PT1H.json, *.jsonl or *.gz")
        files = chosen(self.every, request.since, request.until)
        if not files:
            dates = sorted(file.blob_date for file in self.every)
            raise BadInput(
                f"--input {name}: no files of {request.since or 'any date'} to"
                f" {request.until or 'any date'}; there are files of {dates[0]} to {dates[-1]}"
            )
        left_bytes = self._bytes_by_date()
        foreign = {
            day
            for day, entry in self.base.entries.items()
            if entry.engine != self.engine.name and left_bytes[day] >= entry.read.size_bytes
        }
        more = set(self.every).difference(files)
        return files + [f for f in self.every if f in more and f.blob_date in foreign]

    def _bytes_by_date(self) -> Counter[str]:
        sizes = Counter[str]()
        for file in self.every:
            sizes[file.blob_date] += file.size_bytes
        return sizes

    def publish(self, extracted: Extracted) -> Done:
        request = self.request
        # A date that had records keeps them, because a lifecycle rule may have deleted its files.
        had_records = {day for day, entry in self.base.entries.items() if entry.read.event_dates}
        empty = {
            day: BlobDate()
            for day in dates_without_files(extracted.blob_dates, request)
            if day not in had_records
        }
        mine = {
            day: Entry(request.run_id, self.engine.name, blob_date)
            for day, blob_date in {**empty, **extracted.blob_dates}.items()
        }

        compute = partial(self._compute, extracted.complaints)
        return publishing.publish(
            self.store, self.base, mine, request.shape, request.run_id, compute
        )

    def _compute(
        self, complaints: Sequence[Complaint], new: Manifest, changed: set[str], old_results: str
    ) -> Done:
        """Recomputes the changed dates. For dates with unreadable records, the totals with more
        records are kept.
        """
        lost = unreadable(new, self.engine.name, self._bytes_by_date())
        entries = new.holding(changed, self.engine.name)
        folders = {day: self.store.url(f"partials/{e.run_id}") for day, e in entries.items()}
        records = sum(entry.read.records for entry in entries.values())
        computed = self.engine.total(folders, changed, records)
        old = results.read(self.store, old_results)
        stay = results.without_more_records(old, computed, changed & lost.event_dates)
        totals = results.merged(old, changed - stay, computed)
        inputs = TrendInputs(
            new.shape,
            {day: entry.read for day, entry in new.entries.items()},
            self.request.today,
            self.request.controls,
            self.request.holidays,
            lost.event_dates,
        )
        trends = trends_of(totals.days, inputs)
        if not trends:
            raise BadInput(
                f"--input {self.source.name}: holds metrics, but no event, request or trace"
            )
        results.write(self.store, new.results, totals, trends, {"unreadable": lost.as_json()})
        if self.report is not None:
            self.report(f"results/{new.results}", trends)
        return Done(new, frozenset(changed), trends, totals, complaints, lost)


def dates_without_files(blob_dates: Collection[str], request: Request) -> set[str]:
    """Returns the dates of the requested range that have no file. They count as read."""
    dated = sorted(day for day in blob_dates if day != UNDATED)
    first = request.since or (date.fromisoformat(dated[0]) if dated else None)
    last = request.until or (date.fromisoformat(dated[-1]) if dated else None)
    if first is None or last is None:
        return set()
    days = {(first + timedelta(days=n)).isoformat() for n in range((last - first).days + 1)}
    return days.difference(blob_dates)


def nothing_read(source: Source, files: Sequence[SourceFile], extracted: Extracted) -> str:
    lines = [f"--input {source.name}: no telemetry in {len(files)} files; nothing was changed"]
    lines += [describe(complaint) for complaint in extracted.complaints[:5]]
    if not extracted.complaints:
        lines.append(f"  all are empty, or hold only tables without events: {files[0].path}")
    return "\n".join(lines)


def describe(complaint: Complaint) -> str:
    field_name = f", field {complaint.field}" if complaint.field else ""
    return (
        f"  {complaint.count} lines quarantined ({complaint.reason}{field_name}), such as in"
        f" {complaint.file}: {complaint.detail}"
    )
