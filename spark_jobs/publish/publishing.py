"""Publishes results as numbered versions, each of which only one run can create.

Each version has a manifest, a small file that says which partials and results are valid. So readers
see either the old results or the new ones. A run reads version N, works in its own folders, and
publishes version N + 1. If another run has published N + 1 first, the run merges both manifests and
tries N + 2. The merged manifest has the partials of all blob dates. If both runs have read the same
blob date, the partial for which more bytes were read is used.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec

from spark_jobs.errors import JobError
from spark_jobs.model import BlobDate, Shape
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
        replaced = {day: old.entries[day] for day in kept if day in old.entries}
        computed = compute(new, event_dates(kept) | event_dates(replaced), old.results)
        encoded = msgspec.json.format(msgspec.json.encode(new, order="sorted"), indent=1)
        if store.create(_name(new.version), encoded):
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
    needed = set[str]()
    for version in versions[-KEPT_VERSIONS:]:
        with suppress(FileNotFoundError):  # another run has deleted the version meanwhile
            kept = _read(store, version)
            needed |= {entry.run_id for entry in kept.entries.values()} | {kept.results}
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
