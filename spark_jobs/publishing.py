"""Publishing by a number that only one run can take: readers see the old result or the new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spark_jobs import manifest as m
from spark_jobs.errors import BadOutput, Overtaken
from spark_jobs.manifest import Entry, Manifest
from spark_jobs.shape import Shape
from spark_jobs.stores import Store

MANIFESTS = "manifests"
KEPT_VERSIONS = 3
"""Who reads an older one finds its files still there."""
TRIES = 20

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
            f"--output {store.url('')}: holds figures of {found.shape.as_json()}, which cannot be "
            f"added to {shape.as_json()}: name another folder, or the same options"
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
            _clean_up(store)
            return new
        store.delete(f"results/{results}")
    raise Overtaken(f"--output {store.url('')}: other runs published {TRIES} times meanwhile")


def _clean_up(store: Store) -> None:
    """Delete what only versions need that are too old. A run that works is in no version yet."""
    versions = _versions(store)
    old = versions[:-KEPT_VERSIONS]
    if not old:
        return
    kept = [_read(store, version) for version in versions[-KEPT_VERSIONS:]]
    needed = set().union(*[found.runs for found in kept if found])
    for version in old:
        found = _read(store, version)
        for run_id in found.runs - needed if found else ():
            if run_id:
                for folder in ("partials", "quarantine", "results"):
                    store.delete(f"{folder}/{run_id}")
        store.delete(_name(version))


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
