"""What an output folder holds, in one small file a version: no I/O.

A run reads version N, works in folders of its own and publishes N + 1, which only one can. Who
comes second takes what the first one published into account and tries N + 2: partials of blob dates
are put side by side, and of one that both have read the one that saw more of it stays.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from shared.sampling.unreadable import spans
from spark_jobs.errors import BadOutput
from spark_jobs.read.extracted import BlobDate
from spark_jobs.shape import Shape, shape_of

NO_SHAPE = Shape()


@dataclass(frozen=True, slots=True)
class Entry:
    """The partial of one blob date, and which run made it with which engine."""

    run_id: str
    engine: str
    found: BlobDate


@dataclass(frozen=True, slots=True)
class Manifest:
    """``results`` is the run whose results are valid; empty before the first one."""

    version: int = 0
    shape: Shape = NO_SHAPE
    entries: Mapping[str, Entry] = field(default_factory=dict)
    results: str = ""

    def holding(self, event_dates: Collection[str], engine: str) -> dict[str, Entry]:
        """By blob date all partials of the engine that hold some of these event dates."""
        return {
            day: entry
            for day, entry in self.entries.items()
            if entry.engine == engine and not set(entry.found.event_dates).isdisjoint(event_dates)
        }

    @property
    def runs(self) -> set[str]:
        """Those whose folders it needs."""
        return {entry.run_id for entry in self.entries.values()} | {self.results}


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Blob dates whose partials are in a format that ``engine`` cannot read, and whose files are
    not all there any more. They stay in the manifest, for an engine that can read them."""

    engine: str = ""
    blob_dates: Mapping[str, Entry] = field(default_factory=dict)
    some_left: frozenset[str] = frozenset()
    """Those of which some files are still there."""

    @property
    def event_dates(self) -> set[str]:
        return {day for entry in self.blob_dates.values() for day in entry.found.event_dates}

    def why(self, day: str) -> str:
        gone = "some of its files are gone" if day in self.some_left else "its files are gone"
        theirs = self.blob_dates[day].engine
        return f"{gone}, and {self.engine} cannot read what {theirs} made of them"

    def told(self) -> str:
        """One line; empty where there are none."""
        if not self.blob_dates:
            return ""
        count, engines = len(self.blob_dates), {e.engine for e in self.blob_dates.values()}
        gone = "some of their files are gone" if self.some_left else "their files are gone"
        return (
            f"{count} date{'s' if count != 1 else ''} of files ({spans(self.blob_dates)}), since"
            f" {gone} and {self.engine} cannot read what {', '.join(sorted(engines))} made of them;"
            f" the published totals of {spans(self.event_dates)} stand"
        )

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {
                "blob_date": day,
                "event_dates": list(entry.found.event_dates),
                "engine": entry.engine,
                "reason": self.why(day),
            }
            for day, entry in sorted(self.blob_dates.items())
        ]


NOTHING_UNREADABLE = Unreadable()


def unreadable(manifest: Manifest, engine: str, left_bytes: Mapping[str, int]) -> Unreadable:
    """``left_bytes`` has the size of the files that are there by blob date."""
    found = {
        day: entry
        for day, entry in manifest.entries.items()
        if entry.engine != engine and entry.found.event_dates
    }
    return Unreadable(engine, found, frozenset(day for day in found if left_bytes.get(day)))


def touched(old: Manifest, new: Mapping[str, Entry]) -> set[str]:
    """Event dates that change if the new entries take the place of the old ones."""
    before = [old.entries[day].found for day in new if day in old.entries]
    return {
        day
        for found in (*before, *[entry.found for entry in new.values()])
        for day in found.event_dates
    }


def followed_by(old: Manifest, new: Mapping[str, Entry], shape: Shape, results: str) -> Manifest:
    """The next version, with the new entries in place of those of the same blob dates."""
    return Manifest(old.version + 1, shape, {**old.entries, **new}, results)


def still_mine(base: Manifest, latest: Manifest, mine: Mapping[str, Entry]) -> dict[str, Entry]:
    """My entries but those that somebody else has published meanwhile, having read more bytes."""

    def overtaken(day: str, entry: Entry) -> bool:
        theirs = latest.entries.get(day)
        if theirs is None or theirs == base.entries.get(day):
            return False
        return theirs.found.size_bytes > entry.found.size_bytes

    return {day: entry for day, entry in mine.items() if not overtaken(day, entry)}


def without(manifest: Manifest, days: Collection[str]) -> Manifest:
    kept = {day: entry for day, entry in manifest.entries.items() if day not in days}
    return replace(manifest, entries=kept)


def encode(manifest: Manifest) -> bytes:
    entries = {
        day: {"run_id": entry.run_id, "engine": entry.engine, **asdict(entry.found)}
        for day, entry in sorted(manifest.entries.items())
    }
    return json.dumps(
        {
            "version": manifest.version,
            "shape": asdict(manifest.shape),
            "results": manifest.results,
            "blob_dates": entries,
        },
        indent=1,
    ).encode()


def decode(text: bytes, where: str) -> Manifest:
    """Raises BadOutput for what is no manifest."""
    try:
        found = json.loads(text)
        entries = {day: _entry(entry) for day, entry in found["blob_dates"].items()}
        return Manifest(found["version"], shape_of(found["shape"]), entries, found["results"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadOutput(f"{where}: no manifest of this job: {error!r}") from error


def _entry(found: Mapping[str, Any]) -> Entry:
    figures = {each.name: found[each.name] for each in fields(BlobDate)}
    blob_date = BlobDate(**{**figures, "event_dates": tuple(found["event_dates"])})
    return Entry(found["run_id"], found["engine"], blob_date)
