"""State and log as rows of the table ``Scaling``; no I/O.

PartitionKey = resource. RowKeys in their order: ``decision|<inverted ticks>|…`` (the log, newest
first), ``desired``, ``metric|<name>``, ``override``. All but the log therefore is one range.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
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
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICKS_MAX = 10**18
EPOCHS_MAX = 10**9 - 1
TEXT_LENGTH_MAX = 16_000
"""Characters of one string property: 64 KiB in UTF-16, even where each takes two units."""

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
        "reason": entry.reason[:TEXT_LENGTH_MAX],
        "current": entry.current,
        "desired": entry.desired,
        "epoch": entry.epoch,
        "applies": entry.applies,
        "limited_by": json.dumps(entry.limited_by),
        "candidates": _candidates_text(entry.candidates),
        "evidence": _json(entry.evidence),
    }
    for number, start in enumerate(range(0, len(entry.body), TEXT_LENGTH_MAX)):
        row[f"body_{number}"] = entry.body[start : start + TEXT_LENGTH_MAX]
    return {key: value for key, value in row.items() if value is not None}


def log_entry(row: Mapping[str, Any]) -> LogEntry:
    body_keys = sorted((k for k in row if k.startswith("body_")), key=lambda k: int(k[5:]))
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
        body="".join(row[k] for k in body_keys),
    )


def _candidates_text(candidates: Iterable[Recommendation]) -> str:
    return _json(
        [
            {"capacity": c.capacity, "reason": c.reason, "rule": c.rule, "evidence": c.evidence}
            for c in candidates
        ]
    )


def _json(value: object) -> str:
    """A rule may put anything into its evidence; what JSON cannot hold is written as text."""
    text = json.dumps(value, default=_plain, separators=(",", ":"))
    return text if len(text) <= TEXT_LENGTH_MAX else json.dumps({"cut": text[:8000]})


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)


# --- samples ----------------------------------------------------------------------------------


def _history_fields(history: History) -> Row:
    samples = [[_microseconds(s.time), s.value] for s in history.samples]
    return {
        "samples": json.dumps(samples, separators=(",", ":")),
        "stale_count": history.stale_count,
    }


def _history(row: Mapping[str, Any]) -> History:
    samples = tuple(
        MetricValue(EPOCH + timedelta(microseconds=microseconds), value)
        for microseconds, value in json.loads(row["samples"])
    )
    return History(samples, row.get("stale_count", 0))


# --- desired ----------------------------------------------------------------------------------


def _desired_fields(desired: Desired) -> Row:
    row = {
        "target": desired.target,
        "epoch": desired.epoch,
        "reason": desired.reason[:TEXT_LENGTH_MAX],
        "requested_at": desired.requested_at,
        "previous": desired.previous,
        "superseded_target": desired.superseded_target,
        "status": str(desired.status),
        "sent_at": desired.sent_at,
        "changed_at": desired.changed_at,
        "retry_at": desired.retry_at,
        "attempts": desired.attempts,
        "last_error": desired.last_error[:TEXT_LENGTH_MAX],
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
    return (time - EPOCH) // timedelta(microseconds=1)


def _utc_or_none(value: datetime | str | None) -> datetime | None:
    return None if value is None or value == "" else _utc(value)


def _utc(value: datetime | str) -> datetime:
    """Times as the SDK gives them, or as a person typed them; without a zone they mean UTC."""
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return zoned.astimezone(UTC)
