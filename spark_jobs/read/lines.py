"""Reads lines of exported telemetry and packs their records into Arrow batches.

This is the first step of the Spark job. The rows of a batch are blocks, which
``spark_jobs.read.blocks`` describes. msgspec decodes the plain lines of the diagnostic export, and
NumPy and Arrow process a whole piece of text at a time. ``shared.sampling`` reads all other lines.
It is the slower reference implementation, called the reference below.

The decoder is as strict as Python's JSON reader, so the decoder and the reference read the same
values from every line that the decoder accepts. A record gets the same key, whichever of the two
reads it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Meta, UnsetType
from pandas.util import hash_array  # type: ignore[import-untyped]

from shared.sampling.diagnostic_export import KINDS, OTHER_TABLES, SAMPLE_RATE, TEMPLATES
from shared.sampling.fields import NO_OPERATION, rate_percent
from shared.sampling.model import Ignored, Quarantined, Reason, Record
from shared.sampling.records import parts_of, read_line
from shared.sampling.weights import weigh
from spark_jobs.model import ROLE, Shape, hours_until
from spark_jobs.read.blocks import (
    AGE_MAX,
    RECORD,
    SCHEMA,
    UNKNOWN_AGE,
    Numbered,
    Row,
    batches,
    concatenated,
    packed,
)
from spark_jobs.read.files import SourceFile

LATE_AFTER = timedelta(hours=1)
"""A record is late if it is older than this when the hour of its file begins."""
HELD_BYTES_MAX = 22 << 20
"""The reader yields batches as soon as the records that it holds take this many bytes."""
BAD_LINE_BYTES = 1_000
DURATION = "DurationMs"
STAMP = r"^(19[89]|2\d\d)\d-\d\d-\d\dT\d\d:[0-5]\d:[0-5]\d(\.\d{1,7})?Z$"
"""The accepted times: years from 1980 on, in UTC. Since 1980 all zones differ from UTC by whole
quarters of an hour, so the time in UTC without its seconds is enough to compute the local date and
the hour."""
MINUTE_LENGTH = 16
UNDECIDED, IGNORED = -1, -2
"""Values in place of the number of a series. UNDECIDED: the reference must read the line. IGNORED:
the table of the line contains no events."""
EVENTS, TRACES = "AppEvents", "AppTraces"
EMPTY: dict[str, Any] = {}
NO_LINE = {"detail": "", "text": ""}

Number = Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)] | float | None
Text = str | None


class Line(msgspec.Struct, gc=False, omit_defaults=True):
    """A plain line. Its fields are in the order of the export, which makes decoding fastest.

    The key by which copies are recognized is made of all fields except SDKVersion.
    """

    time: str | UnsetType = UNSET
    Type: str = ""
    AppRoleInstance: Text = None
    AppRoleName: Text = None
    OperationId: Text = None
    SDKVersion: Text = None
    UserId: Text = None
    Properties: dict[str, Text] | None = None
    Measurements: dict[str, Number] | None = None
    Name: Text = None
    ItemCount: Annotated[int, Meta(ge=1, le=1 << 53)] | None = None
    TimeGenerated: Text = None
    Message: Text = None
    ParentId: Text = None
    Id: Text = None
    SessionId: Text = None
    DurationMs: Number = None
    records: None = None
    """The body of an Event Hub event has a list here, so it is not a plain line."""
    TableName: None = None
    """A row of a query has a text here."""


decode = msgspec.json.Decoder(Line).decode
encode = msgspec.msgpack.Encoder(order="deterministic").encode


def batches_of(
    pieces: Iterable[tuple[SourceFile, bytes | str]], shape: Shape
) -> Iterator[pa.RecordBatch]:
    """Reads pieces of files, and yields batches with the schema ``blocks.SCHEMA``.

    A piece consists of whole lines, separated by ``\\n``, or is a text that says why the file
    cannot be read. Memory is bounded. The records and the quarantined lines depend only on the
    lines, the paths of their files and the shape.
    """
    reader = _Reader(shape)
    for file, text in pieces:
        reader.read(file, text)
        if reader.held_bytes >= HELD_BYTES_MAX:
            yield from batches(reader.rows(), SCHEMA)
            reader = _Reader(shape)
    yield from batches(reader.rows(), SCHEMA)


class _Reader:
    """Collects the records and bad lines of pieces."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._zone = ZoneInfo(shape.time_zone)
        self._series = Numbered()
        self._days = Numbered()
        """Pairs of a blob date and an event date."""
        self._records: list[Any] = []
        self._of_days: list[Any] = []
        """The number of each record's pair."""
        self._bad: list[Row] = []
        self._other_tables = Counter[tuple[str, str, str]]()
        """The number of records without an event, by blob date, file and table."""
        self.held_bytes = 0

    def read(self, file: SourceFile, text: bytes | str) -> None:
        if isinstance(text, str):
            form, _, _ = text.partition(":")
            self._add_bad(file, Quarantined(file.path, 0, Reason.OTHER_FORM, text, "", form))
            return
        lines, raws, others = _decoded(text)
        if lines:
            others += [raws[number] for number in self._add_lines(file, lines)]
        if records := [read for raw in others for read in self._read_singly(file, raw)]:
            self._add_records(file, records)

    def rows(self) -> Iterator[Row]:
        yield from self._bad
        for (blob_date, path, table), count in self._other_tables.items():
            place = {"blob_date": blob_date, "file": path, "records": count}
            yield {**place, "reason": str(Reason.OTHER_TABLE), "field": table, **NO_LINE}
        if not self._records:
            return
        days, numbers = list(self._days), np.concatenate(self._of_days)
        for number, block in packed(concatenated(self._records), self._series, numbers):
            blob_date, event_date = days[number]
            yield {"blob_date": blob_date, "event_date": event_date, **block}

    def _add_lines(self, file: SourceFile, lines: Sequence[Line]) -> list[int]:
        """Adds the records of plain lines. Returns the indexes of lines that turned out not to be
        plain."""
        days, hours = self._times(lines, file.blob_date)
        groups = Numbered()
        numbers = np.array([groups[_group_of(line, self._shape.dimensions)] for line in lines])
        of_groups = np.array([self._series_and_weight(group) for group in groups])
        series, weights, trusted, exact = of_groups[numbers].T
        plain = (series >= 0) & (days >= 0)
        self._add(
            file,
            plain,
            days,
            [line.OperationId or "" for line in lines],
            hour=hours,
            series=series,
            k=weights,
            trusted=trusted,
            exact=exact,
            x=[_value(line, self._shape.measurement) for line in lines],
            key=_hashed([_content(line) for line in lines]),
        )
        ignored = series == IGNORED
        if ignored.any():
            tables = Counter(lines[number].Type for number in np.flatnonzero(ignored).tolist())
            self._add_others(file, tables)
        undecided: list[int] = np.flatnonzero(~plain & ~ignored).tolist()
        return undecided

    def _series_and_weight(self, group: tuple[Any, ...]) -> tuple[int, float, bool, bool]:
        """Returns the number of the series, the weight, and whether it is trusted and exact."""
        table, name, items, rate, sdk_version, *dims = group
        weight = weigh(
            None if items is None else float(items),
            rate_percent({SAMPLE_RATE: rate}, SAMPLE_RATE),
            sdk_version or "",
        )
        if table in KINDS and (name or table != EVENTS):
            series = self._series[str(KINDS[table]), name or "", *dims]
        else:
            series = IGNORED if table in OTHER_TABLES else UNDECIDED
        return series, weight.value, weight.trusted, weight.exact

    def _times(self, lines: Sequence[Line], blob_date: str) -> tuple[Any, Any]:
        """Returns two arrays: the number of each line's day (negative if its time is bad), and the
        hours from 1970 to its time."""
        stamps = pa.array(
            [(line.TimeGenerated or "") if line.time is UNSET else line.time for line in lines],
            pa.string(),
        )
        minutes = pc.utf8_slice_codeunits(stamps, 0, MINUTE_LENGTH).dictionary_encode()
        of_minutes = [self._minute(each, blob_date) for each in minutes.dictionary.to_pylist()]
        days, hours = np.array(of_minutes)[minutes.indices.to_numpy()].T
        plain = pc.match_substring_regex(stamps, STAMP).to_numpy(zero_copy_only=False)
        return np.where(plain, days, -1), hours

    def _minute(self, minute: str, blob_date: str) -> tuple[int, int]:
        try:
            time = datetime.fromisoformat(f"{minute}:00+00:00")
        except ValueError:
            return -1, 0
        return self._day(time, blob_date), hours_until(time)

    def _day(self, time: datetime, blob_date: str) -> int:
        try:
            local = time.astimezone(self._zone)
        except OverflowError:  # in the years 1 and 9999, local time may exceed datetime's range
            local = time
        return self._days[blob_date, local.date().isoformat()]

    def _read_singly(self, file: SourceFile, raw: bytes) -> Iterator[tuple[Record, bytes]]:
        """Yields the records that the reference reads from a line. Each comes with the content that
        it would have as a plain line (see ``_plain_content``).
        """
        outcomes = list(read_line(raw, file.path))
        for outcome in outcomes:
            if isinstance(outcome, Quarantined):
                self._add_bad(file, outcome)
        self._add_others(file, Counter(o.table for o in outcomes if isinstance(o, Ignored)))
        if any(isinstance(outcome, Record) for outcome in outcomes):
            parts = parts_of(json.loads(raw.decode("utf-8-sig")))
            for part, outcome in zip(parts, outcomes, strict=True):
                if isinstance(outcome, Record):
                    yield outcome, _plain_content(part)

    def _add_bad(self, file: SourceFile, line: Quarantined) -> None:
        names = ("reason", "field", "detail", "text")
        texts = {name: sendable(getattr(line, name)) for name in names}
        self._bad.append({"blob_date": file.blob_date, "file": file.path, **texts})
        self.held_bytes += BAD_LINE_BYTES

    def _add_others(self, file: SourceFile, tables: Counter[str]) -> None:
        for table, count in tables.items():
            self._other_tables[file.blob_date, file.path, table] += count

    def _add_records(self, file: SourceFile, records: Sequence[tuple[Record, bytes]]) -> None:
        """Adds records that the reference has read.

        Some of these records could also be written as a plain line. The key of such a record is the
        hash of the content that this plain line would have. So if a plain line contains a copy of
        the record, both have the same key.
        """
        found, contents = zip(*records, strict=True)
        keys = np.array([int(record.key[:16], 16) for record in found], np.uint64)
        measurement = self._shape.measurement
        self._add(
            file,
            np.ones(len(found), np.bool_),
            np.array([self._day(record.time, file.blob_date) for record in found]),
            [sendable(record.operation_id) for record in found],
            hour=[hours_until(record.time) for record in found],
            series=[self._series_of(record) for record in found],
            k=[record.weight.value for record in found],
            trusted=[record.weight.trusted for record in found],
            exact=[record.weight.exact for record in found],
            x=[r.measurements.get(measurement, np.nan) if measurement else 1.0 for r in found],
            key=np.where([content != b"" for content in contents], _hashed(contents), keys),
        )

    def _series_of(self, record: Record) -> int:
        dims = [
            record.role_name if name == ROLE else record.properties.get(name, "")
            for name in self._shape.dimensions
        ]
        return self._series[tuple(map(sendable, (str(record.kind), record.name, *dims)))]

    def _add(
        self, file: SourceFile, plain: Any, days: Any, operations: Sequence[str], **columns: Any
    ) -> None:
        records = np.empty(len(days), RECORD)
        for name, values in columns.items():
            records[name] = values
        none = [not operation.strip(NO_OPERATION) for operation in operations]
        records["unit"] = np.where(none, records["key"], _hashed(operations))
        if hour := file.hour:
            records["late"] = records["hour"] < hours_until(hour - LATE_AFTER)
            ages = hours_until(hour) // 24 - records["hour"] // 24
            records["age"] = np.clip(ages, 0, AGE_MAX)
        else:
            records["late"], records["age"] = False, UNKNOWN_AGE
        self._records.append(records.compress(plain))
        self._of_days.append(days[plain])
        self.held_bytes += self._records[-1].nbytes


def sendable(text: str) -> str:
    """Escapes lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _decoded(text: bytes) -> tuple[list[Line], list[bytes], list[bytes]]:
    """Returns the lines that the decoder accepts, their texts, and the texts of all others."""
    lines, raws, others = [], [], []
    try:
        is_utf8 = text.isascii() or text.decode() != ""
    except UnicodeDecodeError:
        is_utf8 = False
    for raw in text.split(b"\n"):
        try:
            # msgspec does not check the encoding of fields that it skips, but raw.decode() does.
            lines.append(decode(raw if is_utf8 else raw.decode()))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            others.append(raw)
        else:
            raws.append(raw)
    return lines, raws, others


def _content(line: Line) -> bytes:
    """The bytes from which the key of a line is computed.

    Clears SDKVersion in the line, because lines that differ only in that field are copies.
    """
    line.SDKVersion = None
    return encode(line)


def _plain_content(part: Any) -> bytes:
    """The content that a record would have as a plain line; empty if it cannot be one."""
    try:
        line = msgspec.convert(part, Line)
        return _content(line) if line.Type in KINDS else b""
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter for lone surrogates
        return b""


def _group_of(line: Line, dimensions: Sequence[str]) -> tuple[Any, ...]:
    """Returns the values that determine a line's series and weight.

    Lines with the same values form a group. A piece of text has few groups.

    The name of a trace is its message template, so that messages with different values count as
    one event.
    """
    properties = line.Properties or EMPTY
    name = line.Name
    if line.Type == TRACES:
        name = next(filter(None, map(properties.get, TEMPLATES)), "") or line.Message or ""
    dims = [
        (line.AppRoleName if dimension == ROLE else properties.get(dimension)) or ""
        for dimension in dimensions
    ]
    return line.Type, name, line.ItemCount, properties.get(SAMPLE_RATE), line.SDKVersion, *dims


def _value(line: Line, measurement: str) -> float | None:
    """The value of the measurement. A custom measurement named DurationMs takes precedence over the
    field DurationMs of the line.
    """
    if not measurement:
        return 1.0
    value = (line.Measurements or EMPTY).get(measurement)
    return line.DurationMs if value is None and measurement == DURATION else value


def _hashed(texts: Sequence[str | bytes]) -> Any:
    """A hash of 64 bits for each text: SipHash with pandas' fixed key, equal on all machines."""
    array = np.empty(len(texts), object)
    array[:] = texts
    return hash_array(array, categorize=False)
