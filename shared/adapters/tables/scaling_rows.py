"""State and log as rows of the table ``Scaling``; no I/O.

PartitionKey = resource. RowKeys in their order: ``decision|<inverted ticks>|…`` (the log, newest
first), ``desired``, ``learned``, ``metric|<name>``, ``override``, ``profile``, ``wishes``. All but
the log therefore is one range.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeVar, cast
from zoneinfo import ZoneInfo

from shared.autoscaling.declaring import Mode
from shared.autoscaling.desired import EPOCH_MAX, ActionStatus, Desired
from shared.autoscaling.learning import RECENT_MAX
from shared.autoscaling.measurements import CAPACITY_SANE_MAX, MetricValue, WeekProfile, Window
from shared.autoscaling.policy import Recommendation
from shared.autoscaling.state import (
    DESIRED_ROW,
    LEARNED_ROW,
    METRIC_PREFIX,
    OVERRIDE_ROW,
    PROFILE_ROW,
    WISHES_ROW,
    BusyIntervals,
    EntryKind,
    Learned,
    LogEntry,
    Override,
    RegressionSums,
    RowValue,
    ScalingState,
)
from shared.values.untrusted import MEASURE_MAX, shown

LOG_PREFIX = "decision|"
LOG_END = "decision}"  # the first key after all of LOG_PREFIX
STATE_START = DESIRED_ROW
UNIX_START = datetime(1970, 1, 1, tzinfo=UTC)
TICKS_MAX = 10**18
TEXT_LENGTH_MAX = 16_000
"""Characters of one string property: 64 KiB in UTF-16, even where each takes two units."""
HOURS_OF_A_WEEK = 168
LEARNED_PARTS = ("out", "into", "work")
RECENT = "recent"
SUM_MAX = 1e300
SumsT = TypeVar("SumsT", RegressionSums, BusyIntervals)
EVIDENCE_ITEMS_MAX = 100
EVIDENCE_LENGTH_MAX = 500
REASON_LENGTH_MAX = 300
"""Of an error, which may quote the row that it complains of."""

ENTRY_KINDS: tuple[tuple[str, Any], ...] = (
    *((name, str) for name in ("entry_id", "reason", "counterfactual", "metric")),
    *((name, int | None) for name in ("current", "desired", "epoch")),
    ("applies", bool),
    ("evidence", dict),
    ("value", float | int | None),
)

Row = dict[str, Any]
T = TypeVar("T")


class ScalingRowUnreadable(Exception):
    """A row that this version cannot read; the text names the row, the reason, and what to do."""


def state_of(rows: Iterable[Mapping[str, Any]]) -> tuple[ScalingState, tuple[str, ...]]:
    """The state, and of each row that it does without why that cannot be read.

    Raises ScalingRowUnreadable for a row that decisions depend on.
    """
    by_key = {row["RowKey"]: row for row in rows}
    histories = {
        key.removeprefix(METRIC_PREFIX): _needed(_history, row)
        for key, row in by_key.items()
        if key.startswith(METRIC_PREFIX)
    }
    skipped: list[str] = []
    state = ScalingState(
        histories,
        _needed(_desired, by_key[DESIRED_ROW]) if DESIRED_ROW in by_key else None,
        override_of(by_key[OVERRIDE_ROW]) if OVERRIDE_ROW in by_key else None,
        _needed(_history, by_key[WISHES_ROW]) if WISHES_ROW in by_key else Window(),
        _learned_or_anew(by_key.get(LEARNED_ROW), skipped),
        _profile_or_absent(by_key.get(PROFILE_ROW), skipped),
    )
    return state, tuple(skipped)


def _needed(read: Callable[[Mapping[str, Any]], T], row: Mapping[str, Any]) -> T:
    try:
        return read(row)
    except Exception as error:  # whatever another version, or a person, may have written there
        advice = "deploy the version that wrote it, or correct or delete the row"
        raise ScalingRowUnreadable(f"{_unreadable(row, _text_of(error))}; {advice}") from error


def _learned_or_anew(row: Mapping[str, Any] | None, skipped: list[str]) -> Learned:
    if row is None:
        return Learned()
    learned, lost = _learned(row)
    if lost:
        skipped.append(_unreadable(row, f"not understood and learned anew: {', '.join(lost)}"))
    return learned


def _profile_or_absent(row: Mapping[str, Any] | None, skipped: list[str]) -> WeekProfile | None:
    """A floor does without a profile that cannot be read, and says why."""
    if row is None:
        return None
    try:
        return profile_of(row)
    except Exception as error:  # whatever another version, or a person, may have written there
        skipped.append(_unreadable(row, _text_of(error)))
        return WeekProfile((), absent=skipped[-1])


def _unreadable(row: Mapping[str, Any], reason: str) -> str:
    return f"row {row['RowKey']!r} of table Scaling cannot be read ({reason})"


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:REASON_LENGTH_MAX]


def state_row(resource_name: str, key: str, value: RowValue) -> Row:
    return {"PartitionKey": resource_name, "RowKey": key, **_fields(value)}


def _fields(value: RowValue) -> Row:
    if isinstance(value, Window):
        return _history_fields(value)
    return _learned_fields(value) if isinstance(value, Learned) else _desired_fields(value)


# --- log --------------------------------------------------------------------------------------


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
            reason=_unreadable(row, _text_of(error)),
        )


def _time_of_key(row: Any) -> datetime:
    """That of the entry by its key, or else when the row was written."""
    try:
        ticks = int(row["RowKey"].split("|")[1])
        return UNIX_START + timedelta(microseconds=TICKS_MAX - ticks)
    except (IndexError, ValueError, OverflowError):
        return _utc(row.metadata["timestamp"])


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
        time=_utc(row["time"]),
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
        body=_joined("body", row),
    )


def _candidate(fields: Mapping[str, Any]) -> Recommendation:
    """Older versions also wrote what would have changed it."""
    return Recommendation(**{k: v for k, v in fields.items() if k != "counterfactual"})


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


def _history_fields(history: Window) -> Row:
    samples = [[_microseconds(s.time), s.value] for s in history.samples]
    return _pieces("samples", _json(samples))


def _history(row: Mapping[str, Any]) -> Window:
    """Its samples; a number that is no measurement is left out. Raises where it cannot be read."""
    samples = tuple(
        MetricValue(UNIX_START + timedelta(microseconds=microseconds), value)
        for microseconds, value in json.loads(_joined("samples", row))
    )
    if not {type(sample.value) for sample in samples} <= {float, int}:
        raise TypeError("a sample is no number")
    return Window(tuple(sample for sample in samples if 0 <= sample.value <= MEASURE_MAX))


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
    _check_kind(row, ("target", "epoch", "previous", "attempts"), int, "a whole number")
    _check_kind(row, ("reason", "last_error"), str, "text")
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
    """Recent observations are a property of their own: older versions read the others as ever."""
    fields = asdict(learned)
    until = learned.work.until
    fields["work"]["until"] = until.isoformat() if until else None
    recent = {part: fields[part].pop("recent") for part in LEARNED_PARTS}
    return {
        **fields,
        **{part: _json(fields[part]) for part in LEARNED_PARTS},
        RECENT: _json(recent),
    }


def _learned(row: Mapping[str, Any]) -> tuple[Learned, list[str]]:
    """What was learned, and which parts of it are not understood: they are learned anew."""
    texts = {part: _object(row.get(part, "{}")) for part in (*LEARNED_PARTS, RECENT)}
    recent = {part: _pairs((texts[RECENT] or {}).get(part)) for part in LEARNED_PARTS}
    until = _time_or_none((texts["work"] or {}).pop("until", None))
    empty = {
        "out": RegressionSums(recent=recent["out"]),
        "into": RegressionSums(recent=recent["into"]),
    }
    sums = {part: _sums(lessons, texts[part]) for part, lessons in empty.items()}
    no_work = BusyIntervals(until, recent=recent["work"])
    work = _sums(no_work, texts["work"])
    epoch, count, mean = (row.get(name) for name in ("epoch", "dead_times", "dead_time_minutes"))
    known = _is_whole(count) and _is_finite(mean)
    learned = Learned(
        epoch=cast("int", epoch) if _is_whole(epoch) else 0,
        out=sums["out"] or empty["out"],
        into=sums["into"] or empty["into"],
        dead_times=cast("int", count) if known else 0,
        dead_time_minutes=cast("float", mean) if known else 0,
        work=work or no_work,
    )
    understood = {
        "epoch": _is_whole(epoch),
        **{part: found is not None for part, found in {**sums, "work": work}.items()},
        RECENT: texts[RECENT] is not None,
        "dead_times": known,
    }
    return learned, [part for part, sound in understood.items() if not sound]


def _object(text: object) -> dict[str, Any] | None:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _pairs(found: object) -> tuple[tuple[float, float], ...]:
    pairs = found if isinstance(found, list) else []
    sound = [pair for pair in pairs if isinstance(pair, list) and len(pair) == 2]
    finite = [(a, b) for a, b in sound if _is_finite(a) and _is_finite(b) and b]
    return tuple(finite[-RECENT_MAX:])


def _sums(empty: SumsT, fields: Mapping[str, Any] | None) -> SumsT | None:
    """All of them or None: they belong together."""
    try:
        sums = None if fields is None else replace(empty, **fields)
    except TypeError:
        return None
    return sums if all(_is_finite(value) for value in (fields or {}).values()) else None


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= SUM_MAX  # NaN is not


def _is_whole(value: object) -> bool:
    return type(value) is int and 0 <= value <= EPOCH_MAX


def _time_or_none(text: object) -> datetime | None:
    try:
        return _utc(text) if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None


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
    if not 0 <= number <= CAPACITY_SANE_MAX:
        raise ValueError(f"{shown(number)} instances")
    return number


def profile_of(row: Mapping[str, Any]) -> WeekProfile:
    """The load to expect, or why the nightly job knows none. Raises where it cannot be read."""
    zone = str(row.get("time_zone", "UTC"))
    ZoneInfo(zone)
    if row.get("absent"):
        return WeekProfile((), zone, absent=str(row["absent"])[:REASON_LENGTH_MAX])
    items = tuple(_load_or_none(item) for item in json.loads(_joined("items_per_minute", row)))
    weeks = tuple(int(count) for count in json.loads(row.get("weeks") or "[]"))
    if len(items) != HOURS_OF_A_WEEK or len(weeks) not in (0, HOURS_OF_A_WEEK):
        told = f"{len(items)} hours and {len(weeks)} counts of weeks instead of {HOURS_OF_A_WEEK}"
        raise ValueError(told)
    return WeekProfile(items, zone, weeks)


def _load_or_none(item: object) -> float | None:
    if item is None:
        return None
    load = float(str(item))
    if not 0 <= load <= MEASURE_MAX:
        raise ValueError(f"{load} items per minute")
    return load


def profile_row(resource_name: str, profile: WeekProfile) -> Row:
    """The row as the nightly job writes it."""
    return {
        "PartitionKey": resource_name,
        "RowKey": PROFILE_ROW,
        "time_zone": profile.time_zone,
        "absent": profile.absent,
        "weeks": _json(profile.weeks),
        **_pieces("items_per_minute", _json(profile.items_per_minute)),
    }


def _check_kind(row: Mapping[str, Any], names: Iterable[str], kind: type, needed: str) -> None:
    for name in names:
        if type(row[name]) is not kind:
            raise TypeError(f"{name} is a {type(row[name]).__name__}, {needed} is needed")


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
