"""State and log as rows of the table ``Scaling``; no I/O.

PartitionKey = resource. RowKeys in their order: ``decision|<inverted ticks>|…`` (the log, newest
first), ``desired``, ``metric|<name>``, ``override``. All but the log therefore is one range.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from shared.adapters.state_changes import DESIRED_ROW, METRIC_PREFIX, OVERRIDE_ROW
from shared.autoscaling.model import (
    ActionStatus,
    Desired,
    EntryKind,
    History,
    LogEntry,
    MetricValue,
    Mode,
    Override,
    Recommendation,
    ScalingState,
)

LOG_PREFIX = "decision|"
LOG_END = "decision}"  # the first key after all of LOG_PREFIX
STATE_START = DESIRED_ROW
UNIX_START = datetime(1970, 1, 1, tzinfo=UTC)
TICKS_MAX = 10**18
EPOCHS_MAX = 10**9 - 1
TEXT_LENGTH_MAX = 16_000
"""Characters of one string property: 64 KiB in UTF-16, even where each takes two units."""
EVIDENCE_ITEMS_MAX = 100
EVIDENCE_LENGTH_MAX = 500

Row = dict[str, Any]


def state_of(rows: Iterable[Mapping[str, Any]]) -> ScalingState:
    histories: dict[str, History] = {}
    desired: Desired | None = None
    override: Override | None = None
    for row in rows:
        key = row["RowKey"]
        if key == DESIRED_ROW:
            desired = _desired(row)
        elif key == OVERRIDE_ROW:
            override = _override(row)
        elif key.startswith(METRIC_PREFIX):
            histories[key.removeprefix(METRIC_PREFIX)] = _history(row)
    return ScalingState(histories, desired, override)


def state_row(resource_name: str, key: str, value: History | Desired) -> Row:
    fields = _history_fields(value) if isinstance(value, History) else _desired_fields(value)
    return {"PartitionKey": resource_name, "RowKey": key, **fields}


# --- log --------------------------------------------------------------------------------------


def log_key(entry: LogEntry) -> str:
    """Newest first in the table's order; the same entry has the same key.

    The server's clock ticks in seconds: within one, the newer epoch comes first, and what became
    of an action before the decision on it.
    """
    epoch = EPOCHS_MAX - (entry.epoch or 0)
    rank = int(entry.kind is EntryKind.DECISION)
    return f"{log_key_start(entry.time)}{epoch:09d}|{rank}|{entry.entry_id}"


def log_key_start(time: datetime) -> str:
    """What the keys of all entries of that time begin with."""
    return f"{LOG_PREFIX}{TICKS_MAX - _microseconds(time):018d}|"


def log_row(entry: LogEntry) -> Row:
    row = {
        "PartitionKey": entry.resource_name,
        "RowKey": log_key(entry),
        "kind": str(entry.kind),
        "time": entry.time,
        "entry_id": entry.entry_id,
        "reason": _text(entry.reason),
        "current": entry.current,
        "desired": entry.desired,
        "epoch": entry.epoch,
        "applies": entry.applies,
        "limited_by": json.dumps(entry.limited_by),
        "candidates": _candidates_text(entry.candidates),
        "evidence": _evidence_text(entry.evidence),
    }
    row |= _pieces("body", entry.body)
    return {key: value for key, value in row.items() if value is not None}


def log_entry(row: Mapping[str, Any]) -> LogEntry:
    return LogEntry(
        resource_name=row["PartitionKey"],
        time=_utc(row["time"]),
        kind=EntryKind(row["kind"]),
        entry_id=row["entry_id"],
        reason=row["reason"],
        current=row.get("current"),
        desired=row.get("desired"),
        epoch=row.get("epoch"),
        applies=row["applies"],
        limited_by=tuple(json.loads(row["limited_by"])),
        candidates=tuple(Recommendation(**c) for c in json.loads(row["candidates"])),
        evidence=json.loads(row["evidence"]),
        body=_joined("body", row),
    )


def _candidates_text(candidates: Sequence[Recommendation]) -> str:
    """All that each rule said; where that is too much, without its numbers, then the first ones."""
    fields = [_candidate_fields(candidate) for candidate in candidates]
    for numbers in (True, False):
        kept = [c if numbers else {**c, "evidence": {}} for c in fields]
        if len(text := _json(kept)) <= TEXT_LENGTH_MAX:
            return text
    while kept and len(text := _json(kept)) > TEXT_LENGTH_MAX:
        kept.pop()
    return text if kept else "[]"


def _candidate_fields(candidate: Recommendation) -> dict[str, Any]:
    return {
        "capacity": candidate.capacity,
        "reason": _text(candidate.reason),
        "rule": _text(candidate.rule),
        "evidence": _plain_evidence(candidate.evidence),
    }


def _evidence_text(evidence: Mapping[str, Any]) -> str:
    """As many numbers as fit."""
    fields = _plain_evidence(evidence)
    while len(text := _json(fields)) > TEXT_LENGTH_MAX:
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


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _text(text: str) -> str:
    """What one property holds, and what UTF-8 can carry: Python strings may hold half a pair."""
    return text[:TEXT_LENGTH_MAX].encode("utf-8", "replace").decode("utf-8")


def _pieces(name: str, text: str) -> Row:
    """A long text over several properties: ``name_0``, ``name_1`` …"""
    starts = range(0, len(text), TEXT_LENGTH_MAX)
    return {f"{name}_{n}": text[i : i + TEXT_LENGTH_MAX] for n, i in enumerate(starts)}


def _joined(name: str, row: Mapping[str, Any]) -> str:
    pieces: list[str] = []
    while (piece := row.get(f"{name}_{len(pieces)}")) is not None:
        pieces.append(piece)
    return "".join(pieces)


# --- samples ----------------------------------------------------------------------------------


def _history_fields(history: History) -> Row:
    samples = [[_microseconds(s.time), s.value] for s in history.samples]
    return {"stale_count": history.stale_count, **_pieces("samples", _json(samples))}


def _history(row: Mapping[str, Any]) -> History:
    samples = tuple(
        MetricValue(UNIX_START + timedelta(microseconds=microseconds), value)
        for microseconds, value in json.loads(_joined("samples", row))
    )
    return History(samples, row.get("stale_count", 0))


# --- desired ----------------------------------------------------------------------------------


def _desired_fields(desired: Desired) -> Row:
    row = {
        "target": desired.target,
        "epoch": desired.epoch,
        "reason": _text(desired.reason),
        "requested_at": desired.requested_at,
        "previous": desired.previous,
        "superseded_target": desired.superseded_target,
        "status": str(desired.status),
        "sent_at": desired.sent_at,
        "changed_at": desired.changed_at,
        "retry_at": desired.retry_at,
        "attempts": desired.attempts,
        "last_error": _text(desired.last_error),
    }
    return {key: value for key, value in row.items() if value is not None}


def _desired(row: Mapping[str, Any]) -> Desired:
    return Desired(
        target=row["target"],
        epoch=row["epoch"],
        reason=row["reason"],
        requested_at=_utc(row["requested_at"]),
        previous=row["previous"],
        superseded_target=row.get("superseded_target"),
        status=ActionStatus(row["status"]),
        sent_at=_utc_or_none(row.get("sent_at")),
        changed_at=_utc_or_none(row.get("changed_at")),
        retry_at=_utc_or_none(row.get("retry_at")),
        attempts=row["attempts"],
        last_error=row["last_error"],
    )


# --- override: may be written by hand, so nothing about it is taken for granted ----------------


def _override(row: Mapping[str, Any]) -> Override:
    text, reason = str(row.get("mode", "")), str(row.get("reason", ""))
    try:
        return Override(Mode(text), reason, _utc_or_none(row.get("expires_at")))
    except ValueError as error:
        return Override(Mode.PAUSED, f"the override row is not understood: {error}")


# --- times ------------------------------------------------------------------------------------


def _microseconds(time: datetime) -> int:
    return (time - UNIX_START) // timedelta(microseconds=1)


def _utc_or_none(value: datetime | str | None) -> datetime | None:
    return None if value is None or value == "" else _utc(value)


def _utc(value: datetime | str) -> datetime:
    """Times as the SDK gives them, or as a person typed them; without a zone they mean UTC."""
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return zoned.astimezone(UTC)
