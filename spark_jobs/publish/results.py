"""Reads and writes the results folder of a version: its sums, its trends and its report."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from operator import itemgetter
from typing import Any

import msgspec

from shared.sampling.kept_ids import WeightsSeen
from shared.sampling.operations import DayOperations, decoded, encoded
from shared.sampling.series import Totals, rows_of, totals_of
from shared.sampling.trend_rows import Trend, as_json
from spark_jobs.publish.stores import Store

SUMS, OPERATIONS, TRENDS, REPORT = "sums.jsonl", "operations.jsonl", "trends.jsonl", "report.json"

Operations = Mapping[str, DayOperations]
"""By event date."""


def read(store: Store, results: str) -> tuple[Totals, Operations]:
    """Returns the figures of an earlier version; none if the name is empty."""
    if not results:
        return {}, {}
    totals = totals_of(map(json.loads, store.read(f"results/{results}/{SUMS}").splitlines()))
    try:
        lines = store.read(f"results/{results}/{OPERATIONS}").splitlines()
    except FileNotFoundError:  # an earlier version did not look at operations
        lines = []
    return totals, dict(map(_operations, map(json.loads, lines)))


def _operations(row: Mapping[str, Any]) -> tuple[str, DayOperations]:
    weights = msgspec.convert(row["weights"], list[tuple[str, WeightsSeen]])
    return row["date"], DayOperations(decoded(row["counts"]), dict(weights))


def merged(
    old: Totals, new: Totals, changed: Collection[str], unreadable: Collection[str]
) -> Totals:
    """Returns the new totals for the changed event dates, and the old totals for all others. Dates
    with unreadable records keep the old totals, unless the new ones have more records.
    """

    def records(totals: Totals, date: str) -> int:
        return sum(day.sums.records for (on, _), day in totals.items() if on == date)

    new_dates = {d for d in changed if d not in unreadable or records(new, d) > records(old, d)}
    kept = {key: day for key, day in old.items() if key[0] not in new_dates}
    replaced = {key: day for key, day in new.items() if key[0] in new_dates}
    return dict(sorted({**kept, **replaced}.items(), key=itemgetter(0)))


def files_of(
    totals: Totals, operations: Operations, trends: Sequence[Trend], report: Mapping[str, Any]
) -> dict[str, bytes]:
    """Returns the contents of the files by name."""
    by_date = [
        {
            "date": day,
            "counts": encoded(each.counts),
            "weights": [(sdk, asdict(seen)) for sdk, seen in each.weights.items()],
        }
        for day, each in operations.items()
    ]
    lines = {
        SUMS: map(json.dumps, rows_of(totals)),
        OPERATIONS: map(json.dumps, by_date),
        TRENDS: map(as_json, trends),
        REPORT: [json.dumps(report)],
    }
    return {name: _lines(each) for name, each in lines.items()}


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
