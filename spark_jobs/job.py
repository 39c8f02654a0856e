"""The job: extract files to partials, total what they touch, publish. What it needs is given."""

from __future__ import annotations

import re
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
from spark_jobs.read.reading import Quarantine
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
    every = source.files()
    files = _files(source.name, every, base, engine, request)
    partials, quarantine = f"partials/{request.run_id}", f"quarantine/{request.run_id}"

    def set_apart(name: str, content: bytes) -> None:
        store.write(f"{quarantine}/{name}", content)

    try:
        found = _extract(engine, source, files, request.shape, store.url(partials), set_apart)
        if not any(blob_date.records for blob_date in found.blob_dates.values()):
            raise BadInput(nothing_read(source, files, found))
        left = _bytes_by_date(every)
        done = _publish(store, engine, request, base, found, source.name, left, report)
    except BaseException:
        store.delete(partials)
        store.delete(quarantine)
        raise
    return done


def _extract(
    engine: Engine,
    source: Source,
    files: Sequence[SourceFile],
    shape: Shape,
    partials: str,
    quarantine: Quarantine,
) -> Extracted:
    """What a task says of its input comes back within whatever Spark says of the task."""
    try:
        return engine.extract(source, files, shape, partials, quarantine)
    except JobError:
        raise
    except Exception as error:
        said = re.search(r"spark_jobs\.errors\.BadInput: (.*)", str(error))
        if said is None:
            raise
        raise BadInput(said[1]) from error


def _publish(
    store: Store,
    engine: Engine,
    request: Request,
    base: Manifest,
    found: Extracted,
    found_in: str,
    left_bytes: Mapping[str, int],
    report: Report | None,
) -> Done:
    known = _with_records(base)
    empty = empty_dates(found.blob_dates, request)
    blob_dates = {
        **{day: none for day, none in empty.items() if day not in known},
        **found.blob_dates,
    }
    mine = {
        day: Entry(request.run_id, engine.name, blob_date) for day, blob_date in blob_dates.items()
    }
    computed: dict[str, Done] = {}

    def compute(new: Manifest, changed: set[str], old_results: str) -> None:
        lost = unreadable(new, engine.name, left_bytes)
        totals = _totals(store, engine, new, changed, lost, old_results)
        trends = trends_of(totals.days, _known(new, request, lost))
        if not trends:
            raise BadInput(f"--input {found_in}: holds metrics, but no event, request or trace")
        results.write(store, new.results, totals, trends, {"unreadable": lost.as_json()})
        if report is not None:
            report(f"results/{new.results}", trends)
        computed[new.results] = Done(
            new, frozenset(changed), trends, totals, found.complaints, lost
        )

    published = publishing.publish(store, base, mine, request.shape, request.run_id, compute)
    return computed[published.results]


def _totals(
    store: Store,
    engine: Engine,
    new: Manifest,
    changed: set[str],
    lost: Unreadable,
    old_results: str,
) -> Totals:
    """The new figures of what changed; but where a part cannot be read again, the fuller ones."""
    entries = new.holding(changed, engine.name)
    folders = {day: store.url(f"partials/{entry.run_id}") for day, entry in entries.items()}
    records = sum(entry.found.records for entry in entries.values())
    old, computed = results.read(store, old_results), engine.total(folders, changed, records)
    stand = results.no_fuller(old, computed, changed & lost.event_dates)
    return results.merged(old, changed - stand, computed)


def _known(manifest: Manifest, request: Request, lost: Unreadable) -> Known:
    return Known(
        manifest.shape,
        {day: entry.found for day, entry in manifest.entries.items()},
        request.today,
        request.controls,
        request.holidays,
        lost.event_dates,
    )


def _bytes_by_date(files: Sequence[SourceFile]) -> dict[str, int]:
    found: dict[str, int] = {}
    for file in files:
        found[file.blob_date] = found.get(file.blob_date, 0) + file.size_bytes
    return found


def _with_records(base: Manifest) -> set[str]:
    """Blob dates that had records. That there are no files now does not mean that none were sent:
    a lifecycle rule has deleted them."""
    return {day for day, entry in base.entries.items() if entry.found.event_dates}


def _files(
    source_name: str,
    every: Sequence[SourceFile],
    base: Manifest,
    engine: Engine,
    request: Request,
) -> list[SourceFile]:
    """What to read. Partials of another engine cannot be put together with this one's: once, all
    their dates are read again, if nothing of their files was deleted meanwhile."""
    if not every:
        raise BadInput(f"--input {source_name}: holds no file such as PT1H.json, *.jsonl or *.gz")
    files = chosen(every, request.since, request.until)
    if not files:
        dates = sorted(file.blob_date for file in every)
        raise BadInput(
            f"--input {source_name}: no files of {request.since or 'any date'} to"
            f" {request.until or 'any date'}; there are files of {dates[0]} to {dates[-1]}"
        )
    left_bytes = _bytes_by_date(every)
    foreign = {
        day
        for day, entry in base.entries.items()
        if entry.engine != engine.name and left_bytes.get(day, 0) >= entry.found.size_bytes
    }
    known = set(files)
    return files + [file for file in every if file.blob_date in foreign and file not in known]


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
