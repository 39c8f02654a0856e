"""State and decision log on Table Storage: one range read, one transaction guarded by ETags."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from shared.adapters.azure.transport import server_time
from shared.adapters.tables.scaling_rows import (
    STATE_START,
    UNIX_START,
    ScalingRowUnreadable,
    error_text,
    joined,
    json_text,
    microseconds,
    override_row,
    pieces,
    property_text,
    state_of,
    state_row,
    unreadable,
    utc,
)
from shared.adapters.tables.table import (
    TEXT_LENGTH_MAX,
    TRANSACTION_ROWS_MAX,
    Operation,
    Row,
    RowConflict,
    Table,
    guarded,
    removal,
)
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.errors import StateConflict, StateUnreadable
from shared.autoscaling.policy import Recommendation
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import EPOCH_MAX, OVERRIDE_ROW, Override, ScalingState, changed_rows
from shared.settings.connections import StorageConnection
from shared.values.redaction import redacting

TABLE_NAME = "Scaling"
CONFLICT_PAUSE_SECONDS_MAX = 0.1
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


@redacting
class TableStateStore:
    """See StateStore. ``Snapshot.version`` holds the ETag of each row that was read."""

    def __init__(self, connection: StorageConnection) -> None:
        self._table = Table(connection, TABLE_NAME)

    async def load(self, resource_name: str) -> Snapshot:
        query = "PartitionKey eq @resource and RowKey ge @start"
        rows = await self._table.rows(query, {"resource": resource_name, "start": STATE_START})
        etags = {row["RowKey"]: row.metadata["etag"] for row in rows}
        try:
            state, skipped = state_of(rows)
        except ScalingRowUnreadable as error:
            raise StateUnreadable(f"{resource_name}: {error}", server_time()) from error
        return Snapshot(resource_name, state, server_time(), etags, skipped)

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        operations: list[Operation] = [
            guarded(state_row(snapshot.resource_name, key, value), snapshot.version.get(key))
            for key, value in changed_rows(snapshot.state, state)
        ]
        operations += [("create", log_row(entry)) for entry in entries]
        if operations:
            await self._submit(snapshot.resource_name, operations)

    async def put_override(
        self, snapshot: Snapshot, override: Override | None, entry: LogEntry
    ) -> None:
        name, etag = snapshot.resource_name, snapshot.version.get(OVERRIDE_ROW)
        operations: list[Operation] = [("create", log_row(entry))]
        if override is not None:
            operations.append(guarded(override_row(name, override), etag))
        elif etag is not None:
            operations.append(removal({"PartitionKey": name, "RowKey": OVERRIDE_ROW}, etag))
        await self._submit(name, operations)

    async def _submit(self, resource_name: str, operations: list[Operation]) -> None:
        try:
            await self._table.submit(operations)
        except RowConflict as error:
            # Who lost together must not come back together.
            pause_seconds = random.uniform(0, CONFLICT_PAUSE_SECONDS_MAX)  # noqa: S311
            await asyncio.sleep(pause_seconds)
            raise StateConflict(f"{resource_name}: changed since read") from error

    async def record(self, entry: LogEntry) -> None:
        await self._table.overwrite(log_row(entry))

    async def log(
        self, resource_name: str, limit: int = 50, since: datetime | None = None
    ) -> list[LogEntry]:
        end = LOG_END if since is None else log_key_start(since) + "~"
        rows = await self._table.range(resource_name, LOG_PREFIX, end, limit)
        return [log_entry(row) for row in newest_first(rows)]

    async def prune_log(self, resource_name: str, before: datetime) -> int:
        start = log_key_start(before) + "~"
        deleted = 0
        while rows := await self._table.range(resource_name, start, LOG_END, TRANSACTION_ROWS_MAX):
            await self._table.delete(rows)
            deleted += len(rows)
        return deleted

    async def close(self) -> None:
        await self._table.close()


# --- the decision log -------------------------------------------------------------------------


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
