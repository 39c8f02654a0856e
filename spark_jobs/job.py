"""The job: read files into partials, add up the dates of their records, and publish the results."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING

from shared.sampling.forms import HEAD_BYTES
from shared.sampling.model import Record, RecordKind
from shared.sampling.records import read_lines
from shared.sampling.series import UNDATED, BlobDate, Shape, Totals, describe_combined, limited
from shared.sampling.trend_rows import Trend
from shared.sampling.trends import ALL_REQUESTS, TrendInputs, trends_of
from shared.sampling.unreadable import spans
from spark_jobs.errors import JobError
from spark_jobs.model import ROLE, Complaint, Extracted, describe, unread_files
from spark_jobs.options import Options
from spark_jobs.publish import publishing, results
from spark_jobs.publish.publishing import Entry, Manifest, event_dates, unreadable
from spark_jobs.publish.stores import Store
from spark_jobs.read.files import Chunk, SourceFile, bytes_by_date, chosen
from spark_jobs.read.sources import ClusterFiles, Source, local_path, pieces_of_chunks

if TYPE_CHECKING:
    from spark_jobs.engine import Engine

OF_TASKS = r"(?:errors\.Job|ModuleNotFound|PySparkRuntime)Error: (.*)|Cannot run program .*"
LACKS = (
    " where tasks run: install Python and spark_jobs/requirements.txt on each machine, or unset"
    " PYSPARK_PYTHON"
)
MEASUREMENT = "--measurement"
SAMPLED_FILES, SAMPLED_LINES = 20, 2_000
"""How much is read to find names that an option could have."""
NAMES_MAX = 10


@dataclass(frozen=True, slots=True)
class Done:
    """What a run published. ``changed`` has event dates; trends and totals are those of all dates.
    ``warning`` names the blob dates that cannot be read again; it is empty if there are none. An
    event date with records of such dates keeps its published totals. ``notes`` has whatever else an
    operator should know, such as what could not be read.
    """

    manifest: Manifest
    changed: Collection[str]
    trends: Sequence[Trend]
    totals: Totals
    warning: str
    notes: Sequence[str] = ()


Report = Callable[[Sequence[Trend]], Mapping[str, bytes]]
"""Returns more files of the results by name."""


def run_job(
    source: Source, store: Store, engine: Engine, options: Options, report: Report = lambda _: {}
) -> Done:
    """Run the job. If it raises JobError, nothing has changed."""
    base = publishing.latest(store, options.shape)
    control = str(Path(local_path("--control", options.control)).absolute())
    listed = [file for file in source.files() if file.path != control]
    exports = [file for file in listed if file.is_export]
    this = _Run(source, store, engine, options, base, listed, exports, report)
    with publishing.discarded_on_failure(store, options.run_id):
        extracted = this.extract()
    done = this.publish(extracted)
    errors = publishing.clean_up(store, options.run_id)
    return replace(done, notes=[*done.notes, *errors])


@dataclass(frozen=True, slots=True)
class _Run:
    source: Source
    store: Store
    engine: Engine
    options: Options
    base: Manifest
    listed: Sequence[SourceFile]
    """All files of the source, of any date."""
    every: Sequence[SourceFile]
    """Those that are exports."""
    report: Report

    def extract(self) -> Extracted:
        files, run_id = self._files(), self.options.run_id
        if not files:
            return Extracted({})
        folders = self.store.url(f"partials/{run_id}"), self.store.url(f"quarantine/{run_id}")
        try:
            extracted = self.engine.extract(self.source, files, self.options.shape, *folders)
        except Exception as error:  # Spark wraps the error of a task in its own text
            raised = re.search(OF_TASKS, str(error))
            if raised is None:
                raise
            remedy = "" if "errors.Job" in raised[0] else LACKS
            raise JobError(f"{raised[1] or raised[0]}{remedy}") from error
        more = unread_files(chosen(self.listed, self.options.since, self.options.until))
        extracted = replace(extracted, complaints=[*more, *extracted.complaints])
        blob_dates = extracted.blob_dates
        has_records = any(read.records for read in blob_dates.values())
        if not has_records and not publishing.incomplete(self.base.entries, blob_dates):
            raise JobError(nothing_read(self.source, files, extracted))
        return extracted

    def _files(self) -> list[SourceFile]:
        """Returns the files of the requested dates, and of dates whose partials have another
        format. Such partials cannot be added to those of this format. So the files of their dates
        are read again once, unless some of these files have been deleted meanwhile. There need not
        be any files if all requested dates have been published with records.
        """
        name, since, until = self.source.name, self.options.since, self.options.until
        files = chosen(self.every, since, until)
        requested = dates_without_files((), self.options)
        known = bool(requested) and requested <= self._had_records
        if not self.every and not known:
            others = [describe(each) for each in unread_files(self.listed)]
            told = [f"--input {name}: holds no file such as PT1H.json, *.jsonl or *.gz", *others]
            raise JobError("; ".join(told))
        if not files and not known:
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

    @property
    def _had_records(self) -> set[str]:
        return {day for day, entry in self.base.entries.items() if entry.read.records}

    def publish(self, extracted: Extracted) -> Done:
        options = self.options
        # A date that had records keeps them, because a lifecycle rule may have deleted its files.
        without_files = dates_without_files(extracted.blob_dates, options)
        empty = without_files - self._had_records
        read = {**dict.fromkeys(empty, BlobDate()), **extracted.blob_dates}
        mine = {day: Entry(options.run_id, self.engine.name, of) for day, of in read.items()}
        partly = publishing.incomplete(self.base.entries, read)
        kept = describe_kept(without_files - empty, set() if options.replace else partly)
        compute = partial(self._compute, extracted.complaints, kept)
        shape, run_id = options.shape, options.run_id
        return publishing.publish(
            self.store, self.base, mine, shape, run_id, compute, replace=options.replace
        )

    def _compute(
        self,
        complaints: Sequence[Complaint],
        kept: str,
        new: Manifest,
        changed: set[str],
        old_results: str,
    ) -> Done:
        """Computes the changed dates, writes the results, and returns what will be published."""
        lost = unreadable(new, self.engine.name)
        formats = {d: entry.engine for _, entry in sorted(lost.items()) for d in entry.read.records}
        changed = changed - formats.keys()  # totals without these records would look like a loss
        partials, records = dict[str, list[str]](), Counter[str]()
        for day, entry in new.entries.items():
            found = {date: n for date, n in entry.read.records.items() if date in changed}
            if found:
                partials.setdefault(self.store.url(f"partials/{entry.run_id}"), []).append(day)
                records.update(found)
        computed, operations = self.engine.total(partials, records)
        options, read = self.options, {day: entry.read for day, entry in new.entries.items()}
        old, old_operations = results.read(self.store, old_results)
        today = str(options.today)
        last = max((day for day in read if day <= today), default=today)
        always = {ALL_REQUESTS, *options.kept_events}
        computed, combined = limited(old, computed, last, always)
        totals = results.merged(old, computed, changed)
        with_records = {day for day, _ in totals}
        by_date = sorted({**old_operations, **operations}.items())
        operations = {d: o for d, o in by_date if d in with_records}
        inputs = TrendInputs(
            new.shape,
            read,
            options.today,
            options.controls,
            options.holidays,
            formats,
            options.trust_weights,
            operations,
        )
        if not old_results and (lacking := missing_option(totals, new.shape)):
            names = names_in(self.source, self._files(), lacking)
            raise JobError(f"{lacking}: no record has it; {names}")
        trends = trends_of(totals, inputs)
        lost_files = describe_unreadable(lost) if lost else ""
        warning = "; ".join(filter(None, [lost_files, kept]))
        files = {**results.files_of(totals, operations, trends, new), **self.report(trends)}
        for name, content in files.items():
            self.store.write(f"results/{new.results}/{name}", content)
        notes = [*map(describe, complaints), *starmap(describe_combined, sorted(combined.items()))]
        return Done(new, changed, trends, totals, warning, notes)


def missing_option(totals: Totals, shape: Shape) -> str:
    """Returns the option whose measurement or dimension no event has, if there are events."""
    events = [
        (series, d.sums) for (_, series), d in totals.items() if series.kind != RecordKind.METRIC
    ]
    if shape.measurement and events and not any(sums.valued for _, sums in events):
        return f"{MEASUREMENT} {shape.measurement}"
    for number, name in enumerate(shape.dimensions):
        if events and not any(series.dims[number] for series, _ in events):
            return f"--dimension {name}"
    return ""


def names_in(source: Source, files: Sequence[SourceFile], option: str) -> str:
    """Returns which measurements or dimensions occur at the beginning of some files."""
    some = files[:: -(-len(files) // SAMPLED_FILES)]
    read = [each for each in read_lines(_lines(source, some)) if isinstance(each, Record)]
    records = [record for record in read if record.kind is not RecordKind.METRIC]
    if option.startswith(MEASUREMENT):
        return there_are(name for record in records for name in record.measurements)
    roles = [ROLE for record in records if record.role_name]
    return there_are([*roles, *(name for record in records for name in record.properties)])


def there_are(names: Iterable[str]) -> str:
    """Returns the most frequent of the names as a clause."""
    counts = Counter(names).most_common()
    more = len(counts) - NAMES_MAX
    shown = ", ".join(sorted(name for name, _ in counts[:NAMES_MAX]))
    return (
        f"there are {shown}{f' and {more} more' if more > 0 else ''}" if counts else "there is none"
    )


def _lines(source: Source, files: Sequence[SourceFile]) -> Iterator[bytes]:
    if isinstance(source, ClusterFiles):
        yield from (bytes(row.line) for row in source.lines(files).limit(SAMPLED_LINES).collect())
        return
    chunks = [Chunk(file, 0, min(file.size_bytes, HEAD_BYTES)) for file in files]
    for _, piece in pieces_of_chunks(source, chunks):
        yield from piece.split(b"\n") if isinstance(piece, bytes) else ()


def dates_without_files(blob_dates: Collection[str], options: Options) -> set[str]:
    """Returns the dates of the requested range that have no file. They count as read."""
    dated = sorted(day for day in blob_dates if day != UNDATED)
    first = options.since or (date.fromisoformat(dated[0]) if dated else None)
    last = options.until or (date.fromisoformat(dated[-1]) if dated else None)
    if first is None or last is None:
        return set()
    days = {(first + timedelta(days=n)).isoformat() for n in range((last - first).days + 1)}
    return days.difference(blob_dates)


def nothing_read(source: Source, files: Sequence[SourceFile], extracted: Extracted) -> str:
    lines = [f"--input {source.name}: no telemetry in {len(files)} files; nothing was changed"]
    lines += [f"  {describe(complaint)}" for complaint in extracted.complaints[:5]]
    if not extracted.complaints:
        lines.append(f"  all are empty: {files[0].path}")
    return "\n".join(lines)


def describe_unreadable(entries: Mapping[str, Entry]) -> str:
    return (
        f"files of {spans(entries)}, because some or all of them are gone and their partials are in"
        f" another format; the published totals of {spans(event_dates(entries))} stay"
    )


def describe_kept(gone: Collection[str], partly: Collection[str]) -> str:
    """Describes blob dates that keep their published records; empty if there are none."""
    files = {"all": gone, "some": partly}
    told = [f"files of {spans(of)}, because {n} of them are gone" for n, of in files.items() if of]
    remedy = " unless --replace is given" if partly else ""
    return f"{'; '.join(told)}; the published records stay{remedy}" if told else ""
