"""Reads and writes the results folder of a version: its sums, its trends and its report."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from shared.sampling.trend_rows import Trend, as_json
from spark_jobs.model import Totals
from spark_jobs.publish.stores import Store
from spark_jobs.sums.totals import rows_of, totals_of

SUMS, TRENDS, REPORT = "sums.jsonl", "trends.jsonl", "report.json"


def read(store: Store, results: str) -> Totals:
    """Returns the totals of an earlier version; no totals if the name is empty."""
    if not results:
        return {}
    return totals_of(map(json.loads, store.read(f"results/{results}/{SUMS}").splitlines()))


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
    totals: Totals, trends: Sequence[Trend], report: Mapping[str, Any]
) -> dict[str, bytes]:
    """Returns the contents of the files by name."""
    sums, rows = map(json.dumps, rows_of(totals)), map(as_json, trends)
    return {SUMS: _lines(sums), TRENDS: _lines(rows), REPORT: _lines([json.dumps(report)])}


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
