"""Publishes results as numbered versions, each of which only one run can create.

Each version has a manifest, a small file that says which partials and results are valid. So readers
see either the old results or the new ones. A run reads version N, works in its own folders, and
publishes version N + 1. If another run has published N + 1 first, the run merges both manifests and
tries N + 2. The merged manifest has the partials of all blob dates. If both runs have read the same
blob date, the partial for which more bytes were read is used.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec

from shared.sampling.series import BlobDate, Shape
from spark_jobs.errors import JobError, first_line
from spark_jobs.publish.results import TABLES
from spark_jobs.publish.stores import Store

MANIFESTS = "manifests"
RUN_TIME = "%Y%m%dT%H%M%S"
KEPT_VERSIONS = 3
"""The number of versions that are kept, so that a reader of an old one still finds its files."""
TRIES = 20
OLD_AFTER = timedelta(days=7)
"""The age after which a run can no longer be working."""
FOLDERS = ("partials", "quarantine", "results")


@dataclass(frozen=True, slots=True)
class Entry:
    """The partial of a blob date: the run and the engine that wrote it, and what they have read."""

    run_id: str
    engine: str
    read: BlobDate


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version of the output folder. ``entries`` are by blob date. ``results`` is the folder of
    the valid results; empty if there are none yet.
    """

    version: int = 0
    shape: Shape = field(default_factory=Shape)
    entries: Mapping[str, Entry] = field(default_factory=dict)
    results: str = ""


def unreadable(manifest: Manifest, engine: str) -> dict[str, Entry]:
    """Returns the blob dates whose partials ``engine`` cannot read. Each run reads the files of
    such dates again, so some or all of these files are gone. The entries stay in the manifest for
    engines that can read them.
    """
    entries = manifest.entries.items()
    return {day: each for day, each in entries if each.engine != engine and each.read.records}


def event_dates(entries: Mapping[str, Entry]) -> set[str]:
    """Returns the event dates that have records in any of the partials."""
    return {day for entry in entries.values() for day in entry.read.records}


def not_superseded(base: Manifest, latest: Manifest, mine: Mapping[str, Entry]) -> dict[str, Entry]:
    """Returns the entries of this run, except those for which another run has read more bytes and
    published its entry.
    """
    published = {d: entry for d, entry in latest.entries.items() if entry != base.entries.get(d)}
    return {
        day: entry
        for day, entry in mine.items()
        if day not in published or published[day].read.size_bytes <= entry.read.size_bytes
    }


def incomplete(published: Mapping[str, Entry], mine: Mapping[str, BlobDate]) -> set[str]:
    """Returns the blob dates of which this run has found fewer files and fewer records than were
    published. A lifecycle rule deletes files one by one, and the rest would look like lost events.
    """

    def records(read: BlobDate) -> int:
        return sum(read.records.values())

    both = {day: (read, published[day].read) for day, read in mine.items() if day in published}
    return {
        day
        for day, (read, earlier) in both.items()
        if read.lacks_files_of(earlier) and records(read) < records(earlier)
    }


T = TypeVar("T")
Compute = Callable[[Manifest, set[str], str], T]
"""Writes the results of the next version, given its manifest, the event dates that changed, and the
name of the old results.
"""


def latest(store: Store, shape: Shape) -> Manifest:
    """Returns the latest version, or version 0 for a new folder. Raises JobError if the folder has
    figures of another shape.
    """
    versions = _versions(store)
    if not versions:
        return Manifest()
    manifest = _read(store, versions[-1])
    if manifest.shape != shape:
        raise JobError(
            f"--output {store.url('')}: holds figures of {asdict(manifest.shape)}, which cannot be "
            f"added to {asdict(shape)}: name another folder, or the same options"
        )
    return manifest


def publish(
    store: Store,
    base: Manifest,
    mine: Mapping[str, Entry],
    shape: Shape,
    run_id: str,
    compute: Compute[T],
    *,
    replace: bool = False,
) -> T:
    """Publish the version after the latest. If other runs publish meanwhile, it tries again with
    the new latest version. Returns the result of ``compute`` for the published version. Raises
    JobError after many attempts.

    Blob dates that are now ``incomplete`` stay as they are published, unless ``replace`` is true.
    """
    for attempt in range(TRIES):
        results = f"{run_id}-{attempt}" if attempt else run_id
        with discarded_on_failure(store, run_id, results):
            old = latest(store, shape)
            kept = not_superseded(base, old, mine)
            if not replace:
                for day in incomplete(old.entries, {d: entry.read for d, entry in kept.items()}):
                    del kept[day]
            new = Manifest(old.version + 1, shape, {**old.entries, **kept}, results)
            replaced = {day: old.entries[day] for day in kept if day in old.entries}
            computed = compute(new, event_dates(kept) | event_dates(replaced), old.results)
            encoded = msgspec.json.format(msgspec.json.encode(new, order="sorted"), indent=1)
        if store.create(_name(new.version), encoded):
            return computed
    raise JobError(f"--output {store.url('')}: other runs published {TRIES} times meanwhile")


@contextmanager
def discarded_on_failure(store: Store, run_id: str, results: str = "") -> Iterator[None]:
    """Deletes the folders of a run that fails here, unless a manifest names them.

    The creation of a manifest must be outside: if it fails, the manifest may exist nevertheless.
    Folders that remain are deleted by ``clean_up`` of a later run.
    """
    try:
        yield
    except BaseException:
        with suppress(Exception):
            for name in {run_id, results or run_id} - _named(store):
                for folder in FOLDERS:
                    store.delete(f"{folder}/{name}")
        raise


def show_latest(store: Store) -> None:
    """Copies the tables of the latest version to ``latest``, each as a whole, and again if another
    run publishes meanwhile. So of concurrent runs, the one that copies last copies the newest.
    """
    shown = 0
    while (version := _versions(store)[-1]) != shown:
        folder = _read(store, version).results
        for name in TABLES:
            store.write(f"latest/{name}", store.read(f"results/{folder}/{name}"))
        shown = version


def clean_up(store: Store, run_id: str) -> list[str]:
    """Delete versions that are too old, and old folders that no manifest names. Returns errors.

    Such folders belong to superseded or killed runs. No manifest names the folders of a run that is
    still working either, but these are younger than ``OLD_AFTER``.
    """
    errors = list[str]()

    @contextmanager
    def told() -> Iterator[None]:
        try:
            yield
        except Exception as error:
            errors.append(f"old files could not be deleted: {first_line(error)}")

    def delete(name: str) -> None:
        with told():
            store.delete(name)

    with told():
        for version in _versions(store)[:-KEPT_VERSIONS]:
            delete(_name(version))
        named, now = _named(store), started_at(run_id)
        for folder in FOLDERS if now else ():
            for name in store.names(folder):
                begun = started_at(name)
                if now and begun and begun < now - OLD_AFTER and name not in named:
                    delete(f"{folder}/{name}")
    return errors


def _named(store: Store) -> set[str]:
    """Returns the runs and the results that manifests name. Raises JobError if a manifest cannot be
    read, because nothing is known of its folders.
    """
    named = set[str]()
    for version in _versions(store):
        with suppress(FileNotFoundError):  # another run has deleted the version meanwhile
            manifest = _read(store, version)
            named |= {entry.run_id for entry in manifest.entries.values()} | {manifest.results}
    return named


def new_run_id(now: datetime) -> str:
    """Run ids are unique and sort by time."""
    return f"{now.astimezone(UTC):{RUN_TIME}}-{uuid.uuid4().hex[:8]}"


def started_at(run_id: str) -> datetime | None:
    """Returns the time at which a run started; None if the name is not a run's id."""
    try:
        return datetime.strptime(run_id.partition("-")[0], RUN_TIME).replace(tzinfo=UTC)
    except ValueError:
        return None


def _read(store: Store, version: int) -> Manifest:
    """Raises JobError if the file is not a manifest, and FileNotFoundError."""
    name = _name(version)
    try:
        return msgspec.json.decode(store.read(name), type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise JobError(
            f"{store.url(name)}: is not a manifest of this version of the job: {error}; name"
            " another folder"
        ) from error


def _versions(store: Store) -> list[int]:
    names = [name.removesuffix(".json") for name in store.names(MANIFESTS)]
    return sorted(int(name) for name in names if name.isdigit())


def _name(version: int) -> str:
    return f"{MANIFESTS}/{version:09d}.json"
