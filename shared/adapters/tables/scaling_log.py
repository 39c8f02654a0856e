"""The decision log as rows of the table ``Scaling``; no I/O. See scaling_rows.py."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from shared.adapters.tables.scaling_rows import (
    TEXT_LENGTH_MAX,
    UNIX_START,
    Row,
    error_text,
    joined,
    json_text,
    microseconds,
    pieces,
    property_text,
    unreadable,
    utc,
)
from shared.autoscaling.desired import EPOCH_MAX
from shared.autoscaling.policy import Recommendation
from shared.autoscaling.state import EntryKind, LogEntry

LOG_PREFIX = "decision|"
LOG_END = "decision}"  # the first key after all of LOG_PREFIX
TICKS_MAX = 10**18
EVIDENCE_ITEMS_MAX = 100
EVIDENCE_LENGTH_MAX = 500

ENTRY_KINDS: tuple[tuple[str, Any], ...] = (
    *((name, str) for name in ("entry_id", "reason", "counterfactual", "metric")),
    *((name, int | None) for name in ("current", "desired", "epoch")),
    ("applies", bool),
    ("evidence", dict),
    ("value", float | int | None),
)


def log_key(entry: LogEntry) -> str:
    """Newest first in the table's order; the same entry has the same key.

    The server's clock ticks in seconds: within one, the newer epoch comes first, and what became
    of an action before the decision on it.
    """
    epoch = EPOCH_MAX - (entry.epoch or 0)
    rank = int(entry.kind is EntryKind.DECISION)
    return f"{log_key_start(entry.time)}{epoch:09d}|{rank}|{entry.entry_id}"


def log_key_start(time: datetime) -> str:
    """What the keys of all entries of that time begin with."""
    return f"{LOG_PREFIX}{TICKS_MAX - microseconds(time):018d}|"


def newest_first(rows: Iterable[Any]) -> list[Any]:
    """In the order of the keys; of rows whose ids alone differ the last written comes first."""
    return sorted(rows, key=lambda row: (row["RowKey"].split("|", 4)[:4], -_written(row)))


def _written(row: Any) -> float:
    return float(row.metadata["timestamp"].timestamp())


def log_row(entry: LogEntry) -> Row:
    row = {
        "PartitionKey": entry.resource_name,
        "RowKey": log_key(entry),
        "kind": str(entry.kind),
        "time": entry.time,
        "entry_id": entry.entry_id,
        "reason": property_text(entry.reason),
        "current": entry.current,
        "desired": entry.desired,
        "epoch": entry.epoch,
        "applies": entry.applies,
        "limited_by": json.dumps(entry.limited_by),
        "candidates": _candidates_text(entry.candidates),
        "evidence": _evidence_text(entry.evidence),
        "counterfactual": property_text(str(entry.counterfactual)),
        "metric": entry.metric or None,
        "value": entry.value,
    }
    row |= pieces("body", entry.body)
    return {key: value for key, value in row.items() if value is not None}


def log_entry(row: Any) -> LogEntry:
    """The entry; one of the kind ``unreadable`` where the row is not understood."""
    try:
        return _checked(_log_entry(row))
    except Exception as error:  # whatever another version, or a person, may have written there
        return LogEntry(
            resource_name=row["PartitionKey"],
            time=_time_of_key(row),
            kind=EntryKind.UNREADABLE,
            entry_id=row["RowKey"],
            reason=unreadable(row, error_text(error)),
        )


def _time_of_key(row: Any) -> datetime:
    """That of the entry by its key, or else when the row was written."""
    try:
        ticks = int(row["RowKey"].split("|")[1])
        return UNIX_START + timedelta(microseconds=TICKS_MAX - ticks)
    except (IndexError, ValueError, OverflowError):
        return utc(row.metadata["timestamp"])


def _checked(entry: LogEntry) -> LogEntry:
    """Raises TypeError or ValueError for what pages and news could do nothing with."""
    for name, kinds in ENTRY_KINDS:
        if not isinstance(value := getattr(entry, name), kinds):
            raise TypeError(f"{name} is a {type(value).__name__}")
    if entry.value is not None and not math.isfinite(entry.value):
        raise ValueError(f"value is {entry.value}, which JSON cannot hold")
    for wish in entry.candidates:
        if type(wish.capacity) is not int or not isinstance(wish.evidence, dict | MappingProxyType):
            raise TypeError(f"the wish of rule {wish.rule!r} has no capacity or no evidence")
    return entry


def _log_entry(row: Mapping[str, Any]) -> LogEntry:
    return LogEntry(
        resource_name=row["PartitionKey"],
        time=utc(row["time"]),
        kind=EntryKind(row["kind"]),
        entry_id=row["entry_id"],
        reason=row["reason"],
        current=row.get("current"),
        desired=row.get("desired"),
        epoch=row.get("epoch"),
        applies=row["applies"],
        limited_by=tuple(json.loads(row["limited_by"])),
        candidates=tuple(map(_candidate, json.loads(row["candidates"]))),
        evidence=json.loads(row["evidence"]),
        counterfactual=row.get("counterfactual", ""),
        metric=row.get("metric", ""),
        value=row.get("value"),
        body=joined("body", row),
    )


def _candidate(fields: Mapping[str, Any]) -> Recommendation:
    """Older versions also wrote what would have changed it."""
    return Recommendation(**{k: v for k, v in fields.items() if k != "counterfactual"})


def _candidates_text(candidates: Sequence[Recommendation]) -> str:
    """All that each rule said; where that is too much, without its numbers, then the first ones."""
    fields = [_candidate_fields(candidate) for candidate in candidates]
    for numbers in (True, False):
        kept = [c if numbers else {**c, "evidence": {}} for c in fields]
        if len(text := json_text(kept)) <= TEXT_LENGTH_MAX:
            return text
    while kept and len(text := json_text(kept)) > TEXT_LENGTH_MAX:
        kept.pop()
    return text if kept else "[]"


def _candidate_fields(candidate: Recommendation) -> dict[str, Any]:
    return {
        "capacity": candidate.capacity,
        "reason": property_text(candidate.reason),
        "rule": property_text(candidate.rule),
        "evidence": _plain_evidence(candidate.evidence),
    }


def _evidence_text(evidence: Mapping[str, Any]) -> str:
    """As many numbers as fit."""
    fields = _plain_evidence(evidence)
    while len(text := json_text(fields)) > TEXT_LENGTH_MAX:
        fields.popitem()
    return text


def _plain_evidence(evidence: Mapping[Any, Any]) -> dict[str, Any]:
    """A rule may put anything into its evidence; what is no plain value is written as text."""
    return {_said(key): _plain(value) for key, value in list(evidence.items())[:EVIDENCE_ITEMS_MAX]}


def _plain(value: object) -> object:
    whole = type(value) is int and abs(value) < 2**63
    return value if whole or value is None or type(value) in (float, bool) else _said(value)


def _said(value: object) -> str:
    try:
        return str(value)[:EVIDENCE_LENGTH_MAX]
    except Exception as error:  # the user's class, or a number too long to print
        return f"<{type(value).__name__} that cannot be printed: {type(error).__name__}>"
