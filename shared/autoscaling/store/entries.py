"""Converts entries of the decision log to rows of the table ``Scaling`` and back. No I/O.

An entry has a row of its own, ``decision|<inverted ticks>|<inverted epoch>|<rank>|<id>``. Decisions
that request nothing are packed instead: ``decided|<inverted ticks of a quarter of an hour>|<part>``
has one property for each of them, and one, ``course``, that says in short what they saw. A property
is merged into the row, which nothing has to read. The row ``last`` repeats the newest decision, so
it is read with the state.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from shared.autoscaling.deciding.decide import EntryKind, LogEntry, quarter_of
from shared.autoscaling.deciding.stretches import Figures, Stretch, extended
from shared.autoscaling.policy import Recommendation
from shared.autoscaling.state import EPOCH_MAX
from shared.autoscaling.store.rows import sample_pairs, samples_of, unreadable
from shared.storage.table_requests import Row, RowOperation, put_operation
from shared.values.row_values import (
    TEXT_LENGTH_MAX,
    UNIX_START,
    json_text,
    microseconds,
    pieces,
    properties,
    property_text,
    utc,
    value_of,
    whole_text,
)

LOG_PREFIX = "decision|"
PACKED_PREFIX = "decided|"
LAST_ROW = "last"
AFTER = "~"
"""A text followed by this character sorts after all keys that start with the text."""
TICKS_MAX = 10**18
EVIDENCE_ITEMS_MAX = 100
EVIDENCE_LENGTH_MAX = 500
PACKED_MAX = 200
"""The most entries of a packed row. A row can have 252 properties."""
PACKED_LENGTH_MAX = 400_000
"""The most characters of its entries. A row can have 1 MiB in UTF-16."""
PARTS_MAX = 10**6
PACKED = re.compile(r"s(\d{3})_")
"""The beginning of the name of a packed entry: its second within the quarter of an hour."""
KEYS = ("PartitionKey", "RowKey")
COURSE = "course"


@dataclass(frozen=True, slots=True)
class PackedPlace:
    """The place of the newest packed entry: its quarter of an hour, its number within that quarter,
    and the characters and the course of its row."""

    quarter: datetime = UNIX_START
    number: int = -1
    characters: int = 0
    course: str = ""

    def following(self, entry: LogEntry, length: int) -> PackedPlace:
        """The place of the next entry, in the same row while that has room."""
        quarter, number, characters = quarter_of(entry.time), self.number + 1, self.characters
        if characters + length > PACKED_LENGTH_MAX:
            number += -number % PACKED_MAX
        if quarter != self.quarter:
            number = 0
        if not number % PACKED_MAX:
            return PackedPlace(quarter, number, length, _course_text("", entry))
        course = _course_text(self.course, entry)
        return PackedPlace(quarter, number, characters + length, course)

    @property
    def row_key(self) -> str:
        part = PARTS_MAX - self.number // PACKED_MAX
        return f"{PACKED_PREFIX}{_inverted(self.quarter)}|{part:07d}"


# --- writing ----------------------------------------------------------------------------------


def log_operations(
    entries: Sequence[LogEntry], place: PackedPlace, version: str | None, *, packs: bool = True
) -> list[RowOperation]:
    """The operations that write the entries of a commit, and the newest decision to ``last``, which
    must still have this ``version``. ``place`` is that of the newest packed entry. Entries that are
    too long are not packed."""
    own: list[RowOperation] = []
    packed: dict[str, Row] = {}
    last: Row = {}
    for entry in entries:
        row = log_row(entry)
        keys = {"PartitionKey": entry.resource_name}
        text = json_text({name: value for name, value in row.items() if name not in KEYS})
        if packs and entry.requests_nothing and len(text) <= TEXT_LENGTH_MAX:
            place = place.following(entry, len(text))
            named = {_packed_name(entry): f'{text[:-1]},"number":{place.number}}}'}
            row = packed.setdefault(place.row_key, keys | {"RowKey": place.row_key})
            row.update({**named, COURSE: place.course})
        else:
            own.append(put_operation(row, None))
        if entry.kind is EntryKind.DECISION:
            last = {**keys, "RowKey": LAST_ROW, **pieces("entry", text)}
    merged = [RowOperation("PATCH", row) for row in packed.values()]
    return own + merged + ([put_operation(last | properties(place), version)] if last else [])


def _packed_name(entry: LogEntry) -> str:
    """The name of the property of an entry. One that is written again has the same name."""
    second = (entry.time - quarter_of(entry.time)) // timedelta(seconds=1)
    return f"s{second:03d}_{hashlib.sha256(log_key(entry).encode()).hexdigest()[:12]}"


def log_key(entry: LogEntry) -> str:
    """The key of an entry, the same each time it is written. Keys sort the newest entry first:
    within a second, to which the server's clock counts, higher epochs, and the result of an action
    before the decision that requested it."""
    epoch = EPOCH_MAX - (entry.epoch or 0)
    rank = int(entry.kind is EntryKind.DECISION)
    return f"{LOG_PREFIX}{_inverted(entry.time)}|{epoch:09d}|{rank}|{entry.entry_id}"


def end_of(prefix: str, time: datetime | None = None) -> str:
    """The end of the keys of all entries of this time and later, or of the whole quarter of an hour
    if they are packed; without a time, of all entries."""
    if time is None:
        return prefix + AFTER
    return f"{prefix}{_inverted(quarter_of(time) if prefix == PACKED_PREFIX else time)}|{AFTER}"


def start_of_quarter(time: datetime) -> str:
    """The start of the keys of the packed entries of the same quarter of an hour."""
    return f"{PACKED_PREFIX}{_inverted(quarter_of(time))}"


def _inverted(time: datetime) -> str:
    return f"{TICKS_MAX - microseconds(time):018d}"


def log_row(entry: LogEntry) -> Row:
    samples = [[name, sample_pairs(values)] for name, values in entry.samples.items()]
    may_lack = ("metric", "repeated", "set_back", "hours")
    empty = [name for name in may_lack if not getattr(entry, name)]
    converted = ("resource_name", "candidates", "evidence", "samples", "body")
    return {
        "PartitionKey": entry.resource_name,
        "RowKey": log_key(entry),
        **properties(entry, (*converted, *empty)),
        "candidates": _candidates_text(entry.candidates),
        "evidence": _evidence_text(entry.evidence),
        **(pieces("samples", json_text(samples)) if samples else {}),
        **pieces("body", entry.body),
    }


# --- reading ----------------------------------------------------------------------------------


def newest_first(own: Sequence[Any], packed: Sequence[Any]) -> list[LogEntry]:
    """The entries of rows. Of entries that differ only in their IDs, the one that was written last
    comes first. A packed one follows the change whose epoch it has."""
    found = [
        (_order(row["RowKey"]), 1, -row.metadata["timestamp"].timestamp(), log_entry(row))
        for row in own
    ]
    for row in packed:  # the numbers of a quarter begin again once the clock was set back
        found += [(_order(log_key(e)), -e.set_back, -n, e) for e, n in packed_entries(row)]
    return [entry for *_, entry in sorted(found, key=lambda each: each[:3])]


def _order(row_key: str) -> list[str]:
    return row_key.split("|", 4)[1:4]


def packed_entries(row: Any) -> Iterator[tuple[LogEntry, float]]:
    """The entries of a packed row, each with its number within the quarter of an hour. Properties
    of other names are ignored."""
    for name, text in row.items():
        if second := PACKED.match(name):
            try:
                content = json.loads(text)
                yield (
                    _log_entry({**content, "PartitionKey": row["PartitionKey"]}),
                    content["number"],
                )
            except Exception as error:  # another version or an operator may have written anything
                time = _time_of_key(row) + timedelta(seconds=int(second[1]))
                yield _unreadable(row, error, time, name), 0


def course_of_rows(rows: Sequence[Any]) -> tuple[list[Stretch], int]:
    """The stretches of packed rows, oldest first, and how many rows have none that can be read."""
    found, lost = list[Stretch](), 0
    for row in rows:
        try:
            found += _course(row[COURSE])
        except Exception:  # as above; rows of older versions have none
            lost += 1
    return sorted(found, key=lambda stretch: stretch.time), lost


def _course_text(known: str, entry: LogEntry) -> str:
    """The course of a row with one more entry. It stays as it was if it would be too long."""
    try:
        course = extended(_course(known), entry)
    except Exception:  # as above
        course = extended([], entry)
    told = [[microseconds(s.time), s.capacity, s.desired, s.metrics, s.ages] for s in course]
    return text if len(text := json_text(told)) <= TEXT_LENGTH_MAX else known


def _course(text: str) -> list[Stretch]:
    return [
        Stretch(
            UNIX_START + timedelta(microseconds=time),
            int(capacity),
            desired if desired is None else int(desired),
            _figures(metrics),
            _figures(ages),
        )
        for time, capacity, desired, metrics, ages in json.loads(text or "[]")
    ]


def _figures(told: Mapping[str, Sequence[float]]) -> Figures:
    return {
        name: (float(low), float(high), float(last)) for name, (low, high, last) in told.items()
    }


def last_of(rows: Sequence[Any]) -> tuple[LogEntry | None, PackedPlace, tuple[str, ...]]:
    """The newest decision, the place of the newest packed entry, and why they cannot be read."""
    row = next((each for each in rows if each["RowKey"] == LAST_ROW), None)
    if row is None:
        return None, PackedPlace(), ()
    try:
        content = json.loads(whole_text("entry", row))
        entry = _log_entry({**content, "PartitionKey": row["PartitionKey"]})
        return entry, value_of(PackedPlace, row, ("quarter", "number")), ()
    except Exception as error:  # as above
        return None, PackedPlace(), (unreadable(row, error),)


def log_entry(row: Any) -> LogEntry:
    """The entry of a row. Its kind is ``unreadable`` if the row cannot be read."""
    try:
        return _log_entry(row)
    except Exception as error:  # another version or an operator may have written anything
        return _unreadable(row, error, _time_of_key(row))


def _unreadable(row: Any, error: Exception, time: datetime, name: str = "") -> LogEntry:
    return LogEntry(
        resource_name=row["PartitionKey"],
        time=time,
        kind=EntryKind.UNREADABLE,
        entry_id=f"{row['RowKey']} {name}".rstrip(),
        reason=unreadable(row, error, f"property {name}: " if name else ""),
    )


def _time_of_key(row: Any) -> datetime:
    """The time of the entry by its key, or else when the row was last written."""
    try:
        ticks = int(row["RowKey"].split("|")[1])
        return UNIX_START + timedelta(microseconds=TICKS_MAX - ticks)
    except (IndexError, ValueError, OverflowError):
        return utc(row.metadata["timestamp"])


def _log_entry(row: Mapping[str, Any]) -> LogEntry:
    samples = json.loads(whole_text("samples", row) or "[]")
    given = {
        "resource_name": row["PartitionKey"],
        "samples": {name: samples_of(pairs) for name, pairs in samples},
        "body": whole_text("body", row),
    }
    return value_of(LogEntry, row, ("applies", "limited_by", "candidates", "evidence"), **given)


def _candidates_text(candidates: Sequence[Recommendation]) -> str:
    """The recommendations as JSON that fits into one property, if need be without evidence or the
    last."""
    fields = [_candidate_fields(candidate) for candidate in candidates]
    if len(text := json_text(fields)) > TEXT_LENGTH_MAX:
        fields = [{**each, "evidence": {}} for each in fields]
        while len(text := json_text(fields)) > TEXT_LENGTH_MAX:
            fields.pop()
    return text


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
    """The evidence, in which other than plain values are converted to text."""
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
