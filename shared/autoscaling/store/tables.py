"""Stores the state of resources and the decision log on Table Storage.

The state of a resource is read as one range of rows. It is written in one transaction, which
succeeds only if the ETags of the rows are unchanged.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.errors import StateConflict, StateUnreadable
from shared.autoscaling.policy import Recommendation
from shared.autoscaling.ports import Snapshot, Wrote, wrote_nothing
from shared.autoscaling.state import EPOCH_MAX, OVERRIDE_ROW, Override, ScalingState, changed_rows
from shared.autoscaling.store.rows import (
    STATE_START,
    ScalingRowUnreadable,
    override_row,
    sample_pairs,
    samples_of,
    state_of,
    state_row,
    unreadable,
)
from shared.settings.connections import StorageConnection
from shared.storage.row_values import (
    UNIX_START,
    error_text,
    joined,
    json_text,
    microseconds,
    pieces,
    properties,
    property_text,
    utc,
    value_of,
)
from shared.storage.table_requests import Row, RowOperation, put_operation
from shared.storage.tables import (
    TEXT_LENGTH_MAX,
    TRANSACTION_ROWS_MAX,
    RowConflict,
    Table,
)
from shared.values.redaction import redacting

TABLE_NAME = "Scaling"
CONFLICT_PAUSE_SECONDS_MAX = 0.1
LOG_PREFIX = "decision|"
LOG_END = "decision}"  # sorts after all keys that start with LOG_PREFIX
AFTER_TIME = "~"
"""A prefix followed by this character sorts after all keys that start with the prefix."""
TICKS_MAX = 10**18
EVIDENCE_ITEMS_MAX = 100
EVIDENCE_LENGTH_MAX = 500


@redacting
class TableStateStore:
    """See StateStore. ``Snapshot.version`` holds the ETag of each row that was read."""

    def __init__(self, connection: StorageConnection, wrote: Wrote = wrote_nothing) -> None:
        self._table = Table(connection, TABLE_NAME)
        self._wrote = wrote

    async def load(self, resource_name: str) -> Snapshot:
        rows = await self._table.range(resource_name, STATE_START)
        etags = {row["RowKey"]: row.metadata["etag"] for row in rows}
        try:
            state, skipped = state_of(rows)
        except ScalingRowUnreadable as error:
            raise StateUnreadable(f"{resource_name}: {error}", self._table.now()) from error
        return Snapshot(resource_name, state, self._table.now(), etags, skipped)

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        operations: list[RowOperation] = [
            put_operation(state_row(snapshot.resource_name, key, value), snapshot.version.get(key))
            for key, value in changed_rows(snapshot.state, state)
        ]
        operations += [put_operation(log_row(entry), None) for entry in entries]
        if operations:
            await self._submit(snapshot.resource_name, operations)
        self._wrote(entries, state)

    async def put_override(
        self, snapshot: Snapshot, override: Override | None, entry: LogEntry
    ) -> None:
        name, etag = snapshot.resource_name, snapshot.version.get(OVERRIDE_ROW)
        operations: list[RowOperation] = [put_operation(log_row(entry), None)]
        if override is not None:
            operations.append(put_operation(override_row(name, override), etag))
        elif etag is not None:
            row = {"PartitionKey": name, "RowKey": OVERRIDE_ROW}
            operations.append(RowOperation("DELETE", row, etag))
        await self._submit(name, operations)
        self._wrote([entry], snapshot.state)

    async def _submit(self, resource_name: str, operations: list[RowOperation]) -> None:
        try:
            await self._table.submit(operations)
        except RowConflict as error:
            # One writer's commit can make the commits of several other writers fail. Without a
            # random wait, all of these writers would try again at the same moment.
            pause_seconds = random.uniform(0, CONFLICT_PAUSE_SECONDS_MAX)  # noqa: S311
            await asyncio.sleep(pause_seconds)
            raise StateConflict(
                f"{resource_name}: its rows in table {TABLE_NAME} changed since they were read"
            ) from error

    async def record(self, entry: LogEntry) -> None:
        await self._table.overwrite(log_row(entry))
        self._wrote([entry], ScalingState())

    async def log(
        self, resource_name: str, limit: int = 50, since: datetime | None = None
    ) -> list[LogEntry]:
        end = LOG_END if since is None else log_key_start(since) + AFTER_TIME
        rows = await self._table.range(resource_name, LOG_PREFIX, end, limit)
        return [log_entry(row) for row in newest_first(rows)]

    async def prune_log(self, resource_name: str, before: datetime) -> int:
        start = log_key_start(before) + AFTER_TIME
        deleted = 0
        while rows := await self._table.range(resource_name, start, LOG_END, TRANSACTION_ROWS_MAX):
            await self._table.delete(rows)
            deleted += len(rows)
        return deleted

    async def close(self) -> None:
        await self._table.close()


# --- the decision log -------------------------------------------------------------------------


def log_key(entry: LogEntry) -> str:
    """The key of an entry. Keys sort the newest entry first.

    An entry that is written again gets the same key. The server's clock has a resolution of one
    second. Within a second, higher epochs come first, and the result of an action comes before the
    decision that requested the action.
    """
    epoch = EPOCH_MAX - (entry.epoch or 0)
    rank = int(entry.kind is EntryKind.DECISION)
    return f"{log_key_start(entry.time)}{epoch:09d}|{rank}|{entry.entry_id}"


def log_key_start(time: datetime) -> str:
    """The beginning of the keys of all entries of this time."""
    return f"{LOG_PREFIX}{TICKS_MAX - microseconds(time):018d}|"


def newest_first(rows: Iterable[Any]) -> list[Any]:
    """The rows in the order of their keys. If rows differ only in their entry IDs, the row that was
    written last comes first."""
    return sorted(rows, key=lambda row: (row["RowKey"].split("|", 4)[:4], -_written(row)))


def _written(row: Any) -> float:
    return float(row.metadata["timestamp"].timestamp())


def log_row(entry: LogEntry) -> Row:
    samples = [[name, sample_pairs(values)] for name, values in entry.samples.items()]
    no_metric = () if entry.metric else ("metric",)
    converted = ("resource_name", "candidates", "evidence", "samples", "body")
    return {
        "PartitionKey": entry.resource_name,
        "RowKey": log_key(entry),
        **properties(entry, (*converted, *no_metric)),
        "candidates": _candidates_text(entry.candidates),
        "evidence": _evidence_text(entry.evidence),
        **(pieces("samples", json_text(samples)) if samples else {}),
        **pieces("body", entry.body),
    }


def log_entry(row: Any) -> LogEntry:
    """The entry of a row. Its kind is ``unreadable`` if the row cannot be read."""
    try:
        return _log_entry(row)
    except Exception as error:  # another version or an operator may have written anything
        return LogEntry(
            resource_name=row["PartitionKey"],
            time=_time_of_key(row),
            kind=EntryKind.UNREADABLE,
            entry_id=row["RowKey"],
            reason=unreadable(row, error_text(error)),
        )


def _time_of_key(row: Any) -> datetime:
    """The time of the entry according to its key. If the key has no time, the time when the row was
    last written."""
    try:
        ticks = int(row["RowKey"].split("|")[1])
        return UNIX_START + timedelta(microseconds=TICKS_MAX - ticks)
    except (IndexError, ValueError, OverflowError):
        return utc(row.metadata["timestamp"])


def _log_entry(row: Mapping[str, Any]) -> LogEntry:
    samples = json.loads(joined("samples", row) or "[]")
    given = {
        "resource_name": row["PartitionKey"],
        "samples": {name: samples_of(pairs) for name, pairs in samples},
        "body": joined("body", row),
    }
    return value_of(LogEntry, row, ("applies", "limited_by", "candidates", "evidence"), **given)


def _candidates_text(candidates: Sequence[Recommendation]) -> str:
    """The recommendations as JSON that fits into one property.

    If the JSON is too long, the evidence is left out. If it is still too long, the last
    recommendations are left out.
    """
    fields = [_candidate_fields(candidate) for candidate in candidates]
    for with_evidence in (True, False):
        kept = [c if with_evidence else {**c, "evidence": {}} for c in fields]
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
    """The evidence as JSON, with as many of its items as fit into one property."""
    fields = _plain_evidence(evidence)
    while len(text := json_text(fields)) > TEXT_LENGTH_MAX:
        fields.popitem()
    return text


def _plain_evidence(evidence: Mapping[Any, Any]) -> dict[str, Any]:
    """The evidence with plain values only. A rule can put any value into its evidence. Values that
    are not plain are converted to text.
    """
    items = list(evidence.items())[:EVIDENCE_ITEMS_MAX]
    return {_text_of(key): _plain(value) for key, value in items}


def _plain(value: object) -> object:
    whole = type(value) is int and abs(value) < 2**63
    return value if whole or value is None or type(value) in (float, bool) else _text_of(value)


def _text_of(value: object) -> str:
    try:
        return str(value)[:EVIDENCE_LENGTH_MAX]
    except Exception as error:
        # The class of the value may be written by a rule author, and its __str__ may fail. Or the
        # value is an integer with more digits than str() converts.
        return f"<{type(value).__name__} that cannot be printed: {type(error).__name__}>"
