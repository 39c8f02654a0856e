"""The job: read files into partials, add up the dates of their records, and publish the results."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING

from shared.sampling.model import Reason
from shared.sampling.trend_rows import Trend
from shared.sampling.unreadable import spans
from spark_jobs.errors import JobError
from spark_jobs.model import BlobDate, Complaint, Extracted, Shape, Totals
from spark_jobs.publish import publishing, results
from spark_jobs.publish.publishing import Entry, Manifest, event_dates, unreadable
from spark_jobs.publish.stores import Store
from spark_jobs.read.files import UNDATED, SourceFile, bytes_by_date, chosen
from spark_jobs.read.sources import Source
from spark_jobs.report.trends import Controls, TrendInputs, trends_of

if TYPE_CHECKING:
    from spark_jobs.engine import Engine


@dataclass(frozen=True, slots=True)
class Request:
    """What to compute, from the files of the dates ``since`` to ``until``; None sets no limit."""

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
    ``warning`` names the blob dates that cannot be read again; it is empty if there are none. An
    event date with records of such dates keeps, of all totals ever published for it, those with the
    most records.
    """

    manifest: Manifest
    changed: Collection[str]
    trends: Sequence[Trend]
    totals: Totals
    complaints: Sequence[Complaint]
    warning: str


Report = Callable[[Sequence[Trend]], Mapping[str, bytes]]
"""Returns more files of the results by name."""


def run(
    source: Source, store: Store, engine: Engine, request: Request, report: Report = lambda _: {}
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
    report: Report

    def extract(self) -> Extracted:
        files, run_id = self._files(), self.request.run_id
        folders = self.store.url(f"partials/{run_id}"), self.store.url(f"quarantine/{run_id}")
        try:
            extracted = self.engine.extract(self.source, files, self.request.shape, *folders)
        except Exception as error:  # Spark wraps the error of a task in its own text
            raised = re.search(r"spark_jobs\.errors\.JobError: (.*)", str(error))
            if raised is None:
                raise
            raise JobError(raised[1]) from error
        if not any(blob_date.records for blob_date in extracted.blob_dates.values()):
            raise JobError(nothing_read(self.source, files, extracted))
        return extracted

    def _files(self) -> list[SourceFile]:
        """Returns the files of the requested dates, and of dates whose partials have another
        format. Such partials cannot be added to those of this format. So the files of their dates
        are read again once, unless some of these files have been deleted meanwhile.
        """
        name, since, until = self.source.name, self.request.since, self.request.until
        if not self.every:
            raise JobError(f"--input {name}: holds no file such as PT1H.json, *.jsonl or *.gz")
        files = chosen(self.every, since, until)
        if not files:
            dates = sorted(file.blob_date for file in self.every)
            raise JobError(
                f"--input {name}: no files of {since or 'any date'} to {until or 'any date'};"
                f" there are files of {dates[0]} to {dates[-1]}"
            )
        left_bytes = bytes_by_date(self.every)
        foreign = {
            day
            for day, entry in self.base.entries.items()
            if entry.engine != self.engine.name and left_bytes[day] >= entry.read.size_bytes
        }
        more = set(self.every).difference(files)
        return files + [f for f in self.every if f in more and f.blob_date in foreign]

    def publish(self, extracted: Extracted) -> Done:
        request = self.request
        # A date that had records keeps them, because a lifecycle rule may have deleted its files.
        had_records = {day for day, entry in self.base.entries.items() if entry.read.records}
        empty = dates_without_files(extracted.blob_dates, request) - had_records
        read = {**dict.fromkeys(empty, BlobDate()), **extracted.blob_dates}
        mine = {day: Entry(request.run_id, self.engine.name, of) for day, of in read.items()}
        compute = partial(self._compute, extracted.complaints)
        return publishing.publish(
            self.store, self.base, mine, request.shape, request.run_id, compute
        )

    def _compute(
        self, complaints: Sequence[Complaint], new: Manifest, changed: set[str], old_results: str
    ) -> Done:
        """Computes the changed dates, writes the results, and returns what will be published."""
        lost = unreadable(new, self.engine.name)
        partials, records = dict[str, list[str]](), Counter[str]()
        for day, entry in new.entries.items():
            found = {date: n for date, n in entry.read.records.items() if date in changed}
            if found and day not in lost:
                partials.setdefault(self.store.url(f"partials/{entry.run_id}"), []).append(day)
                records.update(found)
        computed = self.engine.total(partials, records)
        unread = _formats(lost)
        totals = results.merged(results.read(self.store, old_results), computed, changed, unread)
        request, read = self.request, {day: entry.read for day, entry in new.entries.items()}
        inputs = TrendInputs(
            new.shape, read, request.today, request.controls, request.holidays, unread
        )
        trends = trends_of({key: day.sums for key, day in totals.items()}, inputs)
        if not trends:
            raise JobError(
                f"--input {self.source.name}: holds metrics, but no event, request or trace"
            )
        warning = describe_unreadable(lost, self.engine.name) if lost else ""
        unreadable_dates = {day: sorted(entry.read.records) for day, entry in lost.items()}
        report = {"unreadable": unreadable_dates, "warning": warning}
        files = {**results.files_of(totals, trends, report), **self.report(trends)}
        for name, content in files.items():
            self.store.write(f"results/{new.results}/{name}", content)
        return Done(new, changed, trends, totals, complaints, warning)


def _formats(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Returns the event dates that have records in any of the partials, with their formats."""
    formats: dict[str, set[str]] = {}
    for entry in entries.values():
        for day in entry.read.records:
            formats.setdefault(day, set()).add(entry.engine)
    return {day: " ".join(sorted(names)) for day, names in formats.items()}


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
    what, name = f"{complaint.count} lines quarantined", complaint.reason
    if complaint.reason == Reason.UNKNOWN_COLUMN:
        return (
            f"  column {complaint.field} is not documented, so records that differ only in it count"
            f" as copies; it is in {complaint.file}"
        )
    if complaint.reason == Reason.DAMAGED:
        what = f"{complaint.count} files could be read only in part"
    if complaint.reason == Reason.BAD_VALUE:
        what = f"{complaint.count} records counted without a value"
    name += f", field {complaint.field}" if complaint.field else ""
    return f"  {what} ({name}), such as in {complaint.file}: {complaint.detail}"


def describe_unreadable(entries: Mapping[str, Entry], engine: str) -> str:
    engines = ", ".join(sorted({entry.engine for entry in entries.values()}))
    return (
        f"files of {spans(entries)}, because some or all of them are gone and {engine} cannot read"
        f" partials of {engines}; the published totals of {spans(event_dates(entries))} stay"
    )
