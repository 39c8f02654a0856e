"""State and log as rows of the table ``Scaling``; no I/O.

PartitionKey = resource. RowKeys in their order: ``decision|<inverted ticks>|…`` (the log, newest
first), ``desired``, ``learned``, ``metric|<name>``, ``override``, ``profile``, ``wishes``. All but
the log therefore is one range.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from shared.adapters.state_changes import (
    DESIRED_ROW,
    LEARNED_ROW,
    METRIC_PREFIX,
    OVERRIDE_ROW,
    PROFILE_ROW,
    WISHES_ROW,
    RowValue,
)
from shared.autoscaling.model import (
    ActionStatus,
    Desired,
    EntryKind,
    History,
    Learned,
    Lessons,
    LogEntry,
    MetricValue,
    Mode,
    Override,
    Recommendation,
    ScalingState,
    WeekProfile,
    Work,
)

LOG_PREFIX = "decision|"
LOG_END = "decision}"  # the first key after all of LOG_PREFIX
STATE_START = DESIRED_ROW
UNIX_START = datetime(1970, 1, 1, tzinfo=UTC)
TICKS_MAX = 10**18
EPOCHS_MAX = 10**9 - 1
TEXT_LENGTH_MAX = 16_000
"""Characters of one string property: 64 KiB in UTF-16, even where each takes two units."""
HOURS_OF_A_WEEK = 168
EVIDENCE_ITEMS_MAX = 100
EVIDENCE_LENGTH_MAX = 500

Row = dict[str, Any]


def state_of(rows: Iterable[Mapping[str, Any]]) -> ScalingState:
    by_key = {row["RowKey"]: row for row in rows}
    histories = {
        key.removeprefix(METRIC_PREFIX): _history(row)
        for key, row in by_key.items()
        if key.startswith(METRIC_PREFIX)
    }
    return ScalingState(
        histories,
        _desired(by_key[DESIRED_ROW]) if DESIRED_ROW in by_key else None,
        override_of(by_key[OVERRIDE_ROW]) if OVERRIDE_ROW in by_key else None,
        _history(by_key[WISHES_ROW]) if WISHES_ROW in by_key else History(),
        _learned(by_key[LEARNED_ROW]) if LEARNED_ROW in by_key else Learned(),
        profile_of(by_key[PROFILE_ROW]) if PROFILE_ROW in by_key else None,
    )


def state_row(resource_name: str, key: str, value: RowValue) -> Row:
    return {"PartitionKey": resource_name, "RowKey": key, **_fields(value)}


def _fields(value: RowValue) -> Row:
    if isinstance(value, History):
        return _history_fields(value)
    return _learned_fields(value) if isinstance(value, Learned) else _desired_fields(value)


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
        "reason": _text(entry.reason),
        "current": entry.current,
        "desired": entry.desired,
        "epoch": entry.epoch,
        "applies": entry.applies,
        "limited_by": json.dumps(entry.limited_by),
        "candidates": _candidates_text(entry.candidates),
        "evidence": _evidence_text(entry.evidence),
        "counterfactual": _text(str(entry.counterfactual)),
        "metric": entry.metric or None,
        "value": entry.value,
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
        counterfactual=row.get("counterfactual", ""),
        metric=row.get("metric", ""),
        value=row.get("value"),
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
        "counterfactual": _text(str(candidate.counterfactual)),
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
        "superseded": _json(desired.superseded),
        "status": str(desired.status),
        "sent_at": desired.sent_at,
        "changed_at": desired.changed_at,
        "changed_out": desired.changed_out,
        "changed_by_hand": desired.changed_by_hand,
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
        superseded=tuple(json.loads(row.get("superseded", "[]"))),
        status=ActionStatus(row["status"]),
        sent_at=_utc_or_none(row.get("sent_at")),
        changed_at=_utc_or_none(row.get("changed_at")),
        changed_out=row.get("changed_out"),
        changed_by_hand=row.get("changed_by_hand", False),
        retry_at=_utc_or_none(row.get("retry_at")),
        attempts=row["attempts"],
        last_error=row["last_error"],
    )


# --- learned ----------------------------------------------------------------------------------


def _learned_fields(learned: Learned) -> Row:
    both = {"out": _json(asdict(learned.out)), "into": _json(asdict(learned.into))}
    until = learned.work.until
    work = {**asdict(learned.work), "until": until.isoformat() if until else None}
    return {**asdict(learned), **both, "work": _json(work)}


def _learned(row: Mapping[str, Any]) -> Learned:
    """What cannot be read is learned anew."""
    try:
        return Learned(
            epoch=row["epoch"],
            out=Lessons(**json.loads(row["out"])),
            into=Lessons(**json.loads(row["into"])),
            dead_times=row["dead_times"],
            dead_time_minutes=row["dead_time_minutes"],
            work=_work(json.loads(row.get("work", "{}"))),
        )
    except (KeyError, ValueError, TypeError):
        return Learned()


def _work(fields: dict[str, Any]) -> Work:
    until = fields.pop("until", None)
    return Work(until=datetime.fromisoformat(until) if until else None, **fields)


# --- override, profile: written by others, so nothing about them is taken for granted ---------


def override_of(row: Mapping[str, Any]) -> Override:
    """What a person asked for. A row that is not understood pauses: that is the safe side."""
    reason = str(row.get("reason", ""))
    try:
        mode = str(row.get("mode") or "")
        override = Override(
            mode=Mode(mode) if mode else None,
            reason=reason,
            expires_at=_utc_or_none(row.get("expires_at")),
            freeze_scale_in=_flag(row.get("freeze_scale_in")),
            floor=_whole_or_none(row.get("floor")),
            exact=_whole_or_none(row.get("exact")),
        )
        if override == Override(None, reason, override.expires_at):
            raise ValueError("none of mode, exact, floor and freeze_scale_in is set")
        return override
    except Exception as error:  # whatever a person may have typed
        return Override(Mode.PAUSED, f"the override row is not understood: {error}")


def override_row(resource_name: str, override: Override) -> Row:
    """The row as the control surface writes it."""
    row = {
        "PartitionKey": resource_name,
        "RowKey": OVERRIDE_ROW,
        "mode": str(override.mode) if override.mode else None,
        "reason": _text(override.reason),
        "expires_at": override.expires_at,
        "freeze_scale_in": override.freeze_scale_in or None,
        "floor": override.floor,
        "exact": override.exact,
    }
    return {key: value for key, value in row.items() if value is not None}


def _flag(value: object) -> bool:
    text = str(value or "").lower()
    if text not in ("", "true", "false"):
        raise ValueError(f"freeze_scale_in = {value!r}: must be true or false")
    return text == "true"


def _whole_or_none(value: object) -> int | None:
    if value is None or value == "":
        return None
    number = int(str(value))
    if number < 0:
        raise ValueError(f"{number} instances")
    return number


def profile_of(row: Mapping[str, Any]) -> WeekProfile | None:
    """The load to expect; none where the row is not understood, for a floor only ever helps."""
    try:
        items = tuple(float(value) for value in json.loads(_joined("items_per_minute", row)))
        zone = str(row.get("time_zone", "UTC"))
        ZoneInfo(zone)
    except Exception:  # whatever may have been written there
        return None
    sound = len(items) == HOURS_OF_A_WEEK and all(0 <= item < math.inf for item in items)
    return WeekProfile(items, zone) if sound else None


def profile_row(resource_name: str, profile: WeekProfile) -> Row:
    """The row as the nightly job writes it."""
    return {
        "PartitionKey": resource_name,
        "RowKey": PROFILE_ROW,
        "time_zone": profile.time_zone,
        **_pieces("items_per_minute", _json(profile.items_per_minute)),
    }


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
