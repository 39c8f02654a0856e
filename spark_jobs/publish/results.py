"""The results folder of a version: sums as they are, to be merged later, and trends for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from operator import itemgetter
from typing import Any

from shared.sampling.trend_rows import Trend, as_json
from spark_jobs.publish.stores import Store
from spark_jobs.sums.sums import HourSums, Series, Sums, Totals, sums_of

SUMS, HOURS, TRENDS, REPORT = "sums.jsonl", "hours.jsonl", "trends.jsonl", "report.json"


def read(store: Store, results: str) -> Totals:
    """What an earlier version held; nothing of none."""
    if not results:
        return Totals()
    days = {_key(row): sums_of(row) for row in _rows(store, f"results/{results}/{SUMS}")}
    hours = {
        _key(row): [HourSums(*found) for found in row["hours"]]
        for row in _rows(store, f"results/{results}/{HOURS}")
    }
    return Totals(days, hours)


def merged(old: Totals, changed: Collection[str], new: Totals) -> Totals:
    """The new figures for event dates that changed, the old ones for the others; in order."""

    def either(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> dict[Any, Any]:
        kept = {key: value for key, value in one.items() if key[0] not in changed}
        more = {key: value for key, value in other.items() if key[0] in changed}
        return dict(sorted({**kept, **more}.items(), key=itemgetter(0)))

    return Totals(either(old.days, new.days), either(old.hours, new.hours))


def no_fuller(old: Totals, new: Totals, dates: Collection[str]) -> set[str]:
    """Those of the dates whose new figures rest on no more records than the old ones."""

    before, now = _records(old), _records(new)
    return {date for date in dates if now[date] <= before[date]}


def _records(totals: Totals) -> Counter[str]:
    """By event date."""
    found = Counter[str]()
    for (day, _), sums in totals.days.items():
        found[day] += sums.records
    return found


def write(
    store: Store,
    results: str,
    totals: Totals,
    trends: Sequence[Trend],
    report: Mapping[str, Any],
) -> None:
    days: Iterable[tuple[tuple[str, Series], Sums]] = totals.days.items()
    sums = [{**_names(key), **asdict(found)} for key, found in days]
    hours = [
        {**_names(key), "hours": [[h.hour, h.records, h.weight_sum] for h in found]}
        for key, found in totals.hours.items()
    ]
    store.write(f"results/{results}/{SUMS}", _lines([json.dumps(row) for row in sums]))
    store.write(f"results/{results}/{HOURS}", _lines([json.dumps(row) for row in hours]))
    store.write(f"results/{results}/{TRENDS}", _lines([as_json(trend) for trend in trends]))
    store.write(f"results/{results}/{REPORT}", json.dumps(report, indent=1).encode())


def _names(key: tuple[str, Series]) -> dict[str, Any]:
    day, series = key
    return {"date": day, "kind": series.kind, "event": series.event, "dims": list(series.dims)}


def _key(row: Mapping[str, Any]) -> tuple[str, Series]:
    return row["date"], Series(row["kind"], row["event"], tuple(row["dims"]))


def _rows(store: Store, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in store.read(name).splitlines() if line]


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
