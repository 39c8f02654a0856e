"""Publishes results as numbered versions, each of which only one run can create.

Each version has a manifest, a small file that says which partials and results are valid. So readers
see either the old results or the new ones. A run reads version N, works in its own folders, and
publishes version N + 1. If another run has published N + 1 first, the run merges both manifests and
tries N + 2. The merged manifest has the partials of all blob dates. If both runs have read the same
blob date, the partial for which more bytes were read is used.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from shared.sampling.unreadable import spans
from spark_jobs.errors import BadOutput, JobError
from spark_jobs.model import BlobDate, Shape
from spark_jobs.publish.stores import Store

MANIFESTS = "manifests"
RUN_TIME = "%Y%m%dT%H%M%S"
KEPT_VERSIONS = 3
"""The number of versions that are kept, so that a reader of an older version still finds its files.
"""
TRIES = 20
OLD_AFTER = timedelta(days=7)
"""The age after which a run can no longer be working."""
FOLDERS = ("partials", "quarantine", "results")

NO_SHAPE = Shape()


@dataclass(frozen=True, slots=True)
class Entry:
    """The partial of one blob date: the run and the engine that wrote it, and a summary of its
    content.
    """

    run_id: str
    engine: str
    read: BlobDate


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version of the output folder. ``entries`` are by blob date. ``results`` is the folder of
    the valid results; empty if there are none yet.
    """

    version: int = 0
    shape: Shape = NO_SHAPE
    entries: Mapping[str, Entry] = field(default_factory=dict)
    results: str = ""

    def holding(self, event_dates: Collection[str], engine: str) -> dict[str, Entry]:
        """Returns the engine's partials that have records of any of these event dates."""
        return {
            day: entry
            for day, entry in self.entries.items()
            if entry.engine == engine and not set(entry.read.event_dates).isdisjoint(event_dates)
        }

    @property
    def runs(self) -> set[str]:
        """The runs whose folders this version needs."""
        return {entry.run_id for entry in self.entries.values()} | {self.results} - {""}


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Blob dates whose partials ``engine`` cannot read, and some of whose files no longer exist.
    They stay in the manifest for engines that can read them.
    """

    engine: str
    blob_dates: Mapping[str, Entry]
    left_bytes: Mapping[str, int]
    """The size of the files that exist, by blob date."""

    @property
    def event_dates(self) -> set[str]:
        return {day for entry in self.blob_dates.values() for day in entry.read.event_dates}

    def reason(self, *days: str) -> str:
        gone = "some of their" if any(map(self.left_bytes.get, days)) else "their"
        engines = ", ".join(sorted({self.blob_dates[day].engine for day in days}))
        return f"{gone} files are gone and {self.engine} cannot read partials of {engines}"

    def summary(self) -> str:
        """Returns one line; empty if there are no such dates."""
        days = self.blob_dates
        dates = "1 date" if len(days) == 1 else f"{len(days)} dates"
        if not days:
            return ""
        return (
            f"{dates} of files ({spans(days)}), since {self.reason(*days)};"
            f" the published totals of {spans(self.event_dates)} stay"
        )

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {
                "blob_date": day,
                "event_dates": list(entry.read.event_dates),
                "engine": entry.engine,
                "reason": self.reason(day),
            }
            for day, entry in sorted(self.blob_dates.items())
        ]


def unreadable(manifest: Manifest, engine: str, left_bytes: Mapping[str, int]) -> Unreadable:
    foreign = {
        day: entry
        for day, entry in manifest.entries.items()
        if entry.engine != engine and entry.read.event_dates
    }
    return Unreadable(engine, foreign, left_bytes)


def changed_dates(old: Manifest, new: Mapping[str, Entry]) -> set[str]:
    """Returns the event dates that change if the new entries replace the old ones."""
    replaced = [old.entries[day] for day in new if day in old.entries]
    return {day for entry in (*replaced, *new.values()) for day in entry.read.event_dates}


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


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=1)


def decode(content: bytes, where: str) -> Manifest:
    """Parse a manifest. Raises BadOutput if the content is not a manifest."""
    try:
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadOutput(
            f"{where}: is not a manifest of this version of the job: {error}; name another folder"
        ) from error


T = TypeVar("T")
Compute = Callable[[Manifest, set[str], str], T]
"""Writes the results of the next version, given its manifest, the event dates that changed, and the
name of the old results.
"""


def latest(store: Store, shape: Shape) -> Manifest:
    """Returns the latest version, or version 0 for a new folder. Raises BadOutput if the folder has
    figures of another shape.
    """
    versions = _versions(store)
    if not versions:
        return Manifest()
    name = _name(versions[-1])
    manifest = decode(store.read(name), store.url(name))
    if manifest.shape != shape:
        raise BadOutput(
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
) -> T:
    """Publish the version after the latest. If other runs publish meanwhile, it tries again with
    the new latest version. Returns the result of ``compute`` for the published version. Raises
    JobError after many attempts.
    """
    for attempt in range(TRIES):
        old = latest(store, shape)
        kept = not_superseded(base, old, mine)
        results = f"{run_id}-{attempt}" if attempt else run_id
        new = Manifest(old.version + 1, shape, {**old.entries, **kept}, results)
        computed = compute(new, changed_dates(old, kept), old.results)
        if store.create(_name(new.version), encode(new)):
            _clean_up(store, run_id)
            return computed
        store.delete(f"results/{results}")
    raise JobError(f"--output {store.url('')}: other runs published {TRIES} times meanwhile")


def _clean_up(store: Store, run_id: str) -> None:
    """Delete versions that are too old, and old folders that no kept version needs.

    Such folders belong to superseded or killed runs. No version needs the folders of a run that is
    still working either, but these are younger than ``OLD_AFTER``.
    """
    versions = _versions(store)
    for version in versions[:-KEPT_VERSIONS]:
        store.delete(_name(version))
    needed = {run for version in versions[-KEPT_VERSIONS:] for run in _read(store, version).runs}
    now = started_at(run_id)
    for folder in FOLDERS if now else ():
        for name in store.names(folder):
            begun = started_at(name)
            if now and begun and begun < now - OLD_AFTER and name not in needed:
                store.delete(f"{folder}/{name}")


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
    """Returns the manifest of a version, or an empty one if another run has deleted the version
    meanwhile.
    """
    name = _name(version)
    try:
        return decode(store.read(name), store.url(name))
    except (FileNotFoundError, BadOutput):
        return Manifest()


def _versions(store: Store) -> list[int]:
    names = [name.removesuffix(".json") for name in store.names(MANIFESTS)]
    return sorted(int(name) for name in names if name.isdigit())


def _name(version: int) -> str:
    return f"{MANIFESTS}/{version:09d}.json"
