"""The job: extract files to partials, total what they touch, publish. What it needs is given."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

from shared.sampling.trend_rows import Trend
from spark_jobs.engine import Engine
from spark_jobs.errors import BadInput, JobError
from spark_jobs.publish import publishing, results
from spark_jobs.publish.manifest import NOTHING_UNREADABLE, Entry, Manifest, Unreadable, unreadable
from spark_jobs.publish.stores import Store
from spark_jobs.read.extracted import BlobDate, Complaint, Extracted
from spark_jobs.read.files import UNDATED, SourceFile, chosen
from spark_jobs.read.sources import Source
from spark_jobs.report.trends import Controls, Known, trends_of
from spark_jobs.shape import Shape
from spark_jobs.sums.sums import Totals


@dataclass(frozen=True, slots=True)
class Request:
    """Read the files of blob dates ``since`` to ``until``; None is no limit."""

    shape: Shape
    run_id: str
    today: date
    since: date | None = None
    until: date | None = None
    controls: Mapping[str, Controls] = field(default_factory=dict)
    holidays: Collection[date] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """``changed`` are event dates; trends are those of all dates. Of event dates that hold records
    of ``unreadable`` blob dates the fullest figures stand that were ever computed."""

    manifest: Manifest
    changed: frozenset[str]
    trends: Sequence[Trend]
    totals: Totals
    complaints: Sequence[Complaint]
    unreadable: Unreadable = NOTHING_UNREADABLE

    @property
    def changed_trends(self) -> list[Trend]:
        return [trend for trend in self.trends if trend.date in self.changed]


Report = Callable[[str, Sequence[Trend]], None]
"""Write more into a results folder before it is published."""


def run(
    source: Source, store: Store, engine: Engine, request: Request, report: Report | None = None
) -> Done:
    """Raises BadInput or BadOutput, and then nothing has changed."""
    base = publishing.of_shape(store, request.shape)
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
    """All files that there are, whatever their dates."""
    report: Report | None

    def extract(self) -> Extracted:
        """What a task says of its input comes back within whatever Spark says of the task."""
        files, run_id = self._files(), self.request.run_id

        def set_apart(name: str, content: bytes) -> None:
            self.store.write(f"quarantine/{run_id}/{name}", content)

        folder = self.store.url(f"partials/{run_id}")
        try:
            found = self.engine.extract(self.source, files, self.request.shape, folder, set_apart)
        except JobError:
            raise
        except Exception as error:
            said = re.search(r"spark_jobs\.errors\.BadInput: (.*)", str(error))
            if said is None:
                raise
            raise BadInput(said[1]) from error
        if not any(blob_date.records for blob_date in found.blob_dates.values()):
            raise BadInput(nothing_read(self.source, files, found))
        return found

    def _files(self) -> list[SourceFile]:
        """What to read. Partials of another format cannot be put together with this one's: once,
        all their dates are read again, if nothing of their files was deleted meanwhile."""
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
            if entry.engine != self.engine.name and left_bytes[day] >= entry.found.size_bytes
        }
        more = set(self.every).difference(files)
        return files + [f for f in self.every if f in more and f.blob_date in foreign]

    def _bytes_by_date(self) -> Counter[str]:
        found = Counter[str]()
        for file in self.every:
            found[file.blob_date] += file.size_bytes
        return found

    def publish(self, found: Extracted) -> Done:
        request = self.request
        # that there are no files now does not mean that none were sent: a rule has deleted them
        known = {day for day, entry in self.base.entries.items() if entry.found.event_dates}
        empty = empty_dates(found.blob_dates, request)
        blob_dates = {day: none for day, none in empty.items() if day not in known}
        mine = {
            day: Entry(request.run_id, self.engine.name, blob_date)
            for day, blob_date in {**blob_dates, **found.blob_dates}.items()
        }
        computed: dict[str, Done] = {}

        def compute(new: Manifest, changed: set[str], old_results: str) -> None:
            computed[new.results] = self._compute(new, changed, old_results, found.complaints)

        published = publishing.publish(
            self.store, self.base, mine, request.shape, request.run_id, compute
        )
        return computed[published.results]

    def _compute(
        self,
        new: Manifest,
        changed: set[str],
        old_results: str,
        complaints: Sequence[Complaint],
    ) -> Done:
        lost = unreadable(new, self.engine.name, self._bytes_by_date())
        totals = self._totals(new, changed, lost, old_results)
        known = Known(
            new.shape,
            {day: entry.found for day, entry in new.entries.items()},
            self.request.today,
            self.request.controls,
            self.request.holidays,
            lost.event_dates,
        )
        trends = trends_of(totals.days, known)
        if not trends:
            raise BadInput(
                f"--input {self.source.name}: holds metrics, but no event, request or trace"
            )
        results.write(self.store, new.results, totals, trends, {"unreadable": lost.as_json()})
        if self.report is not None:
            self.report(f"results/{new.results}", trends)
        return Done(new, frozenset(changed), trends, totals, complaints, lost)

    def _totals(
        self, new: Manifest, changed: set[str], lost: Unreadable, old_results: str
    ) -> Totals:
        """The new figures of what changed; where a part cannot be read again, the fuller ones."""
        entries = new.holding(changed, self.engine.name)
        folders = {day: self.store.url(f"partials/{e.run_id}") for day, e in entries.items()}
        records = sum(entry.found.records for entry in entries.values())
        old = results.read(self.store, old_results)
        computed = self.engine.total(folders, changed, records)
        stand = results.no_fuller(old, computed, changed & lost.event_dates)
        return results.merged(old, changed - stand, computed)


def empty_dates(found: Collection[str], request: Request) -> dict[str, BlobDate]:
    """Dates of the range that had no files: they have been read, too."""
    dated = sorted(day for day in found if day != UNDATED)
    first = request.since or (date.fromisoformat(dated[0]) if dated else None)
    last = request.until or (date.fromisoformat(dated[-1]) if dated else None)
    if first is None or last is None:
        return {}
    days = [(first + timedelta(days=n)).isoformat() for n in range((last - first).days + 1)]
    return {day: BlobDate() for day in days if day not in found}


def nothing_read(source: Source, files: Sequence[SourceFile], found: Extracted) -> str:
    lines = [f"--input {source.name}: no telemetry in {len(files)} files; nothing was changed"]
    lines += [describe(complaint) for complaint in found.complaints[:5]]
    if not found.complaints:
        lines.append(f"  all are empty, or hold only tables without events: {files[0].path}")
    return "\n".join(lines)


def describe(complaint: Complaint) -> str:
    field_name = f", field {complaint.field}" if complaint.field else ""
    return (
        f"  {complaint.count} lines quarantined ({complaint.reason}{field_name}), such as in"
        f" {complaint.file}: {complaint.detail}"
    )
