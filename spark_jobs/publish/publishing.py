"""Publishing by a number that only one run can take: readers see the old result or the new one."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from spark_jobs.errors import BadOutput, Overtaken
from spark_jobs.publish import manifest as m
from spark_jobs.publish.manifest import Entry, Manifest
from spark_jobs.publish.stores import Store
from spark_jobs.shape import Shape

MANIFESTS = "manifests"
RUN_TIME = "%Y%m%dT%H%M%S"
KEPT_VERSIONS = 3
"""Who reads an older one finds its files still there."""
TRIES = 20
ABANDONED_AFTER = timedelta(days=7)
"""Longer than any run: one that was killed has left its folders."""
FOLDERS = ("partials", "quarantine", "results")

Compute = Callable[[Manifest, set[str], str], None]
"""Of the coming manifest write the results, with what changed of event dates, under the name."""


def latest(store: Store) -> Manifest:
    """Version 0 of an output folder that is new. Raises BadOutput."""
    versions = _versions(store)
    if not versions:
        return Manifest()
    name = _name(versions[-1])
    return m.decode(store.read(name), store.url(name))


def of_shape(store: Store, shape: Shape) -> Manifest:
    """Raises BadOutput where the folder holds figures of another shape."""
    found = latest(store)
    if found.version and found.shape != shape:
        raise BadOutput(
            f"--output {store.url('')}: holds figures of {asdict(found.shape)}, which cannot be "
            f"added to {asdict(shape)}: name another folder, or the same options"
        )
    return found


def publish(
    store: Store,
    base: Manifest,
    mine: Mapping[str, Entry],
    shape: Shape,
    run_id: str,
    compute: Compute,
) -> Manifest:
    """Publish as the version after the latest, however many others publish meanwhile.

    Raises Overtaken after many tries.
    """
    for attempt in range(TRIES):
        old = of_shape(store, shape)
        kept = m.still_mine(base, old, mine)
        results = f"{run_id}-{attempt}" if attempt else run_id
        new = m.followed_by(old, kept, shape, results)
        compute(new, m.touched(old, kept), old.results)
        if store.create(_name(new.version), m.encode(new)):
            _clean_up(store, run_id)
            return new
        store.delete(f"results/{results}")
    raise Overtaken(f"--output {store.url('')}: other runs published {TRIES} times meanwhile")


def _clean_up(store: Store, run_id: str) -> None:
    """Delete what only versions need that are too old, and what runs left that were killed.

    A run that works is in no version yet; ``run_id`` has this run's time in it.
    """
    versions = _versions(store)
    kept = [_read(store, version) for version in versions[-KEPT_VERSIONS:]]
    needed = set().union(*[found.runs for found in kept if found])
    for version in versions[:-KEPT_VERSIONS]:
        found = _read(store, version)
        for old in found.runs - needed if found else ():
            if old:
                for folder in FOLDERS:
                    store.delete(f"{folder}/{old}")
        store.delete(_name(version))
    if now := started_at(run_id):
        _clear_away(store, needed, now - ABANDONED_AFTER)


def _clear_away(store: Store, needed: Collection[str], before: datetime) -> None:
    for folder in FOLDERS:
        for name in store.names(folder):
            begun = started_at(name)
            if begun and begun < before and name not in needed:
                store.delete(f"{folder}/{name}")


def new_run_id(now: datetime) -> str:
    """In order of time, and never used before."""
    return f"{now.astimezone(UTC):{RUN_TIME}}-{uuid.uuid4().hex[:8]}"


def started_at(run_id: str) -> datetime | None:
    """None of a name that is no run's."""
    try:
        return datetime.strptime(run_id.partition("-")[0], RUN_TIME).replace(tzinfo=UTC)
    except ValueError:
        return None


def _read(store: Store, version: int) -> Manifest | None:
    """None where another run has deleted it meanwhile."""
    name = _name(version)
    try:
        return m.decode(store.read(name), store.url(name))
    except (FileNotFoundError, BadOutput):
        return None


def _versions(store: Store) -> list[int]:
    names = store.names(MANIFESTS)
    return sorted(
        int(name[:-5]) for name in names if name[:-5].isdigit() and name.endswith(".json")
    )


def _name(version: int) -> str:
    return f"{MANIFESTS}/{version:09d}.json"
