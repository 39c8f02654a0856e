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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Annotated, Any, cast
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute
from msgspec import Meta
from pandas.util import hash_array

from shared.sampling.diagnostic_export import (
    DURATION,
    KEY_COLUMNS,
    KINDS,
    METRIC_ID,
    OTHER_TABLES,
    SAMPLE_RATE,
    TEMPLATES,
    TIME_ENDING,
    key_columns,
    time_of,
    unknown_columns,
)
from shared.sampling.fields import NO_OPERATION, rate_percent
from shared.sampling.model import Ignored, Quarantined, Reason, Record, RecordKind
from shared.sampling.operations import sampler_of
from shared.sampling.records import TEXT_MAX, parts_of, plausible, read_line
from shared.sampling.series import UNKNOWN_AGE, Shape, hours_until
from shared.sampling.weights import weigh
from spark_jobs.model import ROLE
from spark_jobs.read.blocks import (
    AGE_MAX,
    RECORD,
    SCHEMA,
    Numbered,
    Row,
    batches,
    concatenated,
    packed,
)
from spark_jobs.read.files import SourceFile
from spark_jobs.read.operations import OperationSamples

LATE_AFTER = timedelta(hours=1)
"""A record is late if it is older than this when the hour of its file begins."""
HELD_BYTES_MAX = 22 << 20
"""The reader yields batches as soon as the records that it holds take this many bytes."""
BAD_LINE_BYTES = 1_000
STAMP = r"^(19[89]|2\d\d)\d-\d\d-\d\dT\d\d:[0-5]\d:[0-5]\d(\.\d{1,7})?Z$"
"""The accepted times: years from 1980 on, in UTC. Since 1980 all zones differ from UTC by whole
quarters of an hour, so the time in UTC without its seconds is enough to compute the local date and
the hour."""
MINUTE_LENGTH = 16
NEAR_MINUTES = 5
"""Records so near midnight may share their operation with records of another date."""
UNDECIDED, IGNORED = -1, -2
"""Values in place of the number of a series. UNDECIDED: the reference must read the line. IGNORED:
the table of the line contains no events."""
EVENTS, TRACES, METRICS = "AppEvents", "AppTraces", "AppMetrics"
TABLES = {kind: table for table, kind in KINDS.items()}
EMPTY: dict[str, Any] = {}
LOOKED_AT = 20
"""Undocumented columns are searched for in about so many plain lines of a piece."""
COLUMNS_MAX = 100
"""The most unknown columns that are named."""
pc: Any = pyarrow.compute
"""Type checkers do not know its functions: they are generated."""

Number = Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)] | float | None
Text = str | None
Value = bool | Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)] | float | str | None


class Columns(msgspec.Struct, gc=False, omit_defaults=True):
    """The most frequent columns of a plain line, in the order of the export, which makes decoding
    fastest.
    """

    time: Text = None
    Type: str = ""
    AppRoleInstance: Text = None
    AppRoleName: Text = None
    AppVersion: Text = None
    ClientIP: Text = None
    ClientType: Text = None
    OperationName: Text = None
    OperationId: Text = None
    ParentId: Text = None
    SDKVersion: Text = None
    UserId: Text = None
    Properties: dict[str, Text] | None = None
    Measurements: dict[str, Number] | None = None
    Name: Text = None
    ItemCount: Annotated[int, Meta(ge=1, le=1 << 53)] | None = None
    TimeGenerated: Text = None
    Message: Text = None
    DurationMs: Number = None
    records: None = None
    """The body of an Event Hub event has a list here, so it is not a plain line."""
    TableName: None = None
    """A row of a query has a text here."""


Line = cast(
    "type[Columns]",
    msgspec.defstruct(
        "Line",
        [(name, Value, None) for name in KEY_COLUMNS if name not in Columns.__struct_fields__],
        bases=(Columns,),
        gc=False,
    ),
)
"""With all columns that count for the key. msgspec skips all others."""
decode = msgspec.json.Decoder(Line).decode
encode = msgspec.msgpack.Encoder(order="deterministic").encode


def _decoded(text: bytes) -> Iterator[tuple[bytes, Columns | None]]:
    """Yields the texts of lines with the decoded lines; None for those that are not plain.

    A decoded line should be dropped before the next one, which then takes its memory: this is a
    third faster.
    """
    try:
        is_utf8 = text.isascii() or text.decode() != ""
    except UnicodeDecodeError:
        is_utf8 = False
    for raw in text.split(b"\n"):
        line: Columns | None
        try:
            # msgspec does not check the encoding of fields that it skips, but decode() does.
            line = decode(raw if is_utf8 else raw.decode())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            line = None
        yield raw, line


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
        self._unknown: dict[str, SourceFile] = {}
        """Columns that are not documented, and the file in which each was found first."""
        self._series, self._senders = Numbered(), Numbered()
        self._samples = OperationSamples()
        self._days = Numbered()
        """Pairs of a blob date and an event date."""
        self._records: list[Any] = []
        self._of_days: list[Any] = []
        """The number of each record's pair."""
        self._bad: list[Row] = []
        self._other_tables = Counter[tuple[SourceFile, str]]()
        """The number of records without an event, by file and table."""
        self.held_bytes = 0

    def read(self, file: SourceFile, text: bytes | str) -> None:
        if isinstance(text, str):
            form, _, _ = text.partition(":")
            self._add_bad(file, Quarantined(Reason.OTHER_FORM, text, "", form))
            return
        raws, others, groups = list[bytes](), list[bytes](), Numbered()
        stamps, numbers, operations, values, contents = [], [], [], [], []
        measurement, dimensions = self._shape.measurement, self._shape.dimensions
        for raw, line in _decoded(text):
            if line is None:
                others.append(raw)
                continue
            raws.append(raw)
            stamp = line.time or line.TimeGenerated or ""
            stamps.append(stamp)
            numbers.append(groups[_group_of(line, dimensions)])
            operations.append(line.OperationId or "")
            values.append(_value(line, measurement) if measurement else 1.0)
            contents.append(_content(line, stamp))
        for raw in raws[:: 1 + len(raws) // LOOKED_AT]:
            self._note_columns(json.loads(raw), file)
        if raws:
            columns = self._times(stamps, file), _hashed(contents), operations, values
            others += [raws[number] for number in self._add(file, groups, numbers, *columns)]
        if records := [read for raw in others for read in self._read_singly(file, raw)]:
            self._add_records(file, records)

    def rows(self) -> Iterator[Row]:
        yield from self._bad
        for (file, table), count in self._other_tables.items():
            yield {**_notice(file, Reason.OTHER_TABLE, table, ""), "records": count}
        for name, file in self._unknown.items():
            detail = "is not a documented column"
            yield _notice(file, Reason.UNKNOWN_COLUMN, sendable(name[:TEXT_MAX]), detail)
        if not self._records:
            return
        days, numbers = list(self._days), np.concatenate(self._of_days)
        names = self._series, self._senders
        for number, block in packed(concatenated(self._records), names, numbers):
            blob_date, event_date = days[number]
            yield {"blob_date": blob_date, "event_date": event_date, **block}
        for number, sdk, text in self._samples.rows():
            row = dict(zip(("blob_date", "event_date"), days[number], strict=True))
            yield {**row, "reason": str(Reason.OPERATIONS), "field": sdk, "text": text}

    def _of_group(self, group: tuple[Any, ...]) -> tuple[float, ...]:
        """Returns the numbers of the series and of the sender, the stated and the used weight, and
        whether that is trusted and exact.
        """
        table, name, items, rate, instance, sdk, version, weight, *dims = group
        if weight is None:
            rate = rate_percent({SAMPLE_RATE: rate}, SAMPLE_RATE)
            weight = weigh(None if items is None else float(items), rate, sdk or "")
        if table in KINDS and (name or table != EVENTS):
            series = self._series[str(KINDS[table]), name or "", *dims]
        else:
            series = IGNORED if table in OTHER_TABLES else UNDECIDED
        number = self._senders[instance or "", sdk or "", version or ""]
        return series, number, items or 1, *weight

    def _times(self, texts: Sequence[str], file: SourceFile) -> tuple[Any, Any, Any]:
        """Returns three arrays: the number of each line's day (negative if its time is bad), the
        hours from 1970 to its time, and whether that is near midnight."""
        stamps = pa.array(texts, pa.string())
        minutes = pc.utf8_slice_codeunits(stamps, 0, MINUTE_LENGTH).dictionary_encode()
        found, received = minutes.dictionary.to_pylist(), file.received
        of_minutes = [self._minute(each, file.blob_date, received) for each in found]
        days, hours, near = np.array(of_minutes)[minutes.indices.to_numpy()].T
        plain = pc.match_substring_regex(stamps, STAMP).to_numpy(zero_copy_only=False)
        return np.where(plain, days, -1), hours, near

    def _minute(self, text: str, blob_date: str, received: date | None) -> tuple[int, int, bool]:
        try:
            time = datetime.fromisoformat(f"{text}:00+00:00")
        except ValueError:
            return -1, 0, False
        return self._moment(time, blob_date) if plausible(time, received) else (-1, 0, False)

    def _moment(self, time: datetime, blob_date: str) -> tuple[int, int, bool]:
        local = time.astimezone(self._zone)
        near = not NEAR_MINUTES <= 60 * local.hour + local.minute < 24 * 60 - NEAR_MINUTES
        return self._days[blob_date, local.date().isoformat()], hours_until(time), near

    def _read_singly(self, file: SourceFile, raw: bytes) -> Iterator[tuple[Record, bytes]]:
        """Yields the records that the reference reads from a line. Each comes with the content that
        it would have as a plain line (see ``_plain_content``).
        """
        outcomes = list(read_line(raw, file.received))
        for outcome in outcomes:
            if isinstance(outcome, Quarantined):
                self._add_bad(file, outcome)
        self._other_tables.update((file, o.table) for o in outcomes if isinstance(o, Ignored))
        if any(isinstance(outcome, Record) for outcome in outcomes):
            parts = parts_of(json.loads(raw.decode("utf-8-sig")))
            for part, outcome in zip(parts, outcomes, strict=True):
                if isinstance(outcome, Record):
                    self._note(part, outcome, file)
                    yield outcome, _plain_content(part)

    def _note(self, part: Any, record: Record, file: SourceFile) -> None:
        """Notes the columns of a record that are unknown, and its value if it cannot be read."""
        self._note_columns(part, file)
        if error := record.error_of(self._shape.measurement):
            told = str(error), json.dumps(part)[:TEXT_MAX], error.field
            self._add_bad(file, Quarantined(Reason.BAD_VALUE, *told))

    def _note_columns(self, part: Any, file: SourceFile) -> None:
        for name in sorted(unknown_columns(part)) if len(self._unknown) < COLUMNS_MAX else ():
            self._unknown.setdefault(name, file)

    def _add_bad(self, file: SourceFile, line: Quarantined) -> None:
        names = ("reason", "field", "detail", "text")
        texts = {name: sendable(getattr(line, name)) for name in names}
        self._bad.append({"blob_date": file.blob_date, "file": file.path, **texts})
        self.held_bytes += BAD_LINE_BYTES

    def _add_records(self, file: SourceFile, records: Sequence[tuple[Record, bytes]]) -> None:
        """Adds records that the reference has read.

        Some of these records could also be written as a plain line. The key of such a record is the
        hash of the content that this plain line would have. So if a plain line contains a copy of
        the record, both have the same key.
        """
        measurement, groups = self._shape.measurement, Numbered()
        found, contents = zip(*records, strict=True)
        numbers = [groups[_group_of_record(record, self._shape.dimensions)] for record in found]
        moments = np.array([self._moment(record.time, file.blob_date) for record in found]).T
        keys = np.array([int(record.key[:16], 16) for record in found], np.uint64)
        keys = np.where([content != b"" for content in contents], _hashed(contents), keys)
        operations = [sendable(record.operation_id) for record in found]
        values = [r.measurements.get(measurement, np.nan) if measurement else 1.0 for r in found]
        self._add(file, groups, numbers, moments, keys, operations, values)

    def _add(
        self,
        file: SourceFile,
        groups: Numbered,
        numbers: Sequence[int],
        moments: Any,
        keys: Any,
        operations: Sequence[str],
        values: Sequence[float | None],
    ) -> list[int]:
        """Adds records, which are given by columns; ``numbers`` are those of their groups. Returns
        the indexes of those that the reference must read.
        """
        days, hours, near = moments
        of_groups = np.array([self._of_group(group) for group in groups])
        series, sender, stated, weights, trusted, exact = of_groups[np.array(numbers)].T
        plain = (series >= 0) & (days >= 0)
        records = np.empty(len(numbers), RECORD)
        none = np.array([not operation.strip(NO_OPERATION) for operation in operations])
        records["unit"] = np.where(none, keys, _hashed(operations))
        records["key"], records["x"], records["k"], records["hour"] = keys, values, weights, hours
        records["series"], records["sender"], records["near"] = series, sender, near
        records["trusted"], records["exact"] = trusted, exact
        if hour := file.hour:
            records["late"] = records["hour"] < hours_until(hour - LATE_AFTER)
            ages = hours_until(hour) // 24 - records["hour"] // 24
            records["age"] = np.clip(ages, 0, AGE_MAX)
        else:
            records["late"], records["age"] = False, UNKNOWN_AGE
        self._records.append(records.compress(plain))
        self._of_days.append(days[plain])
        self.held_bytes += self._records[-1].nbytes
        ids = np.array(operations, object)[plain]
        self._sample(self._records[-1], days[plain], ids, stated[plain])
        tables = [table for table, *_ in groups]
        ignored = np.flatnonzero(series == IGNORED).tolist()
        self._other_tables.update((file, tables[numbers[number]]) for number in ignored)
        return np.flatnonzero(~plain & (series != IGNORED)).tolist()

    def _sample(self, records: Any, days: Any, ids: Any, stated: Any) -> None:
        """Adds the operations of records to samples. Metrics are not sampled."""
        if not len(records):
            return
        events = np.array([kind != RecordKind.METRIC for kind, *_ in self._series])
        chosen = records["unit"] != records["key"]
        chosen[chosen] = events[records["series"][chosen]]
        versions, kinds = Numbered(), Numbered()
        of_senders = np.array([versions[sdk] for _, sdk, _ in self._senders])
        of_series = np.array([kinds[kind] for kind, *_ in self._series])
        samplers = Numbered()
        numbers = np.array([[samplers[sampler_of(v, k)] for k in kinds] for v in versions])
        own = numbers[of_senders[records["sender"][chosen]], of_series[records["series"][chosen]]]
        codes = days[chosen].astype(np.int64) * len(samplers) + own
        found, which = np.unique(codes, return_inverse=True)
        names = list(samplers)
        groups = [(code // len(names), names[code % len(names)]) for code in found.tolist()]
        self._samples.add(groups, which, records["unit"][chosen], ids[chosen], stated[chosen])


def sendable(text: str) -> str:
    """Escapes lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _content(line: Columns, stamp: str) -> bytes:
    """The bytes from which the key of a line is computed.

    Brings the time of the line into the form of ``key_columns``.
    """
    line.time = stamp.rstrip(TIME_ENDING)
    line.TimeGenerated = None
    return encode(line)


def _plain_content(part: Any) -> bytes:
    """The content that a record would have as a plain line; empty if it cannot be one."""
    try:
        if part.get("Type") not in KINDS:
            return b""
        time_column, _ = time_of(part)
        return encode(msgspec.convert(key_columns(part, time_column), Line))
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter for lone surrogates
        return b""


def _group_of(line: Columns, dimensions: Sequence[str]) -> tuple[Any, ...]:
    """Returns the values that determine a line's series, sender and weight.

    Lines with the same values form a group. A piece of text has few groups.
    """
    properties = line.Properties or EMPTY
    name = _template(line, properties) if line.Type == TRACES else line.Name
    if line.Type == METRICS:
        name = properties.get(METRIC_ID) or name
    weight = line.ItemCount, properties.get(SAMPLE_RATE)
    group = line.Type, name, *weight, line.AppRoleInstance, line.SDKVersion, line.AppVersion, None
    if not dimensions:
        return group
    dims = [(line.AppRoleName if d == ROLE else properties.get(d)) or "" for d in dimensions]
    return *group, *dims


def _group_of_record(record: Record, dimensions: Sequence[str]) -> tuple[Any, ...]:
    """Returns those of a record of the reference, which has its weight."""
    dims = [record.role_name if d == ROLE else record.properties.get(d, "") for d in dimensions]
    name, *sender = map(sendable, (record.name, *record.sender))
    weight = record.item_count, None, *sender, record.weight
    return TABLES[record.kind], name, *weight, *map(sendable, dims)


def _template(line: Columns, properties: Mapping[str, Text]) -> str:
    """The name of a trace is its message template, so that messages with different values count as
    one event.
    """
    return next(filter(None, map(properties.get, TEMPLATES)), "") or line.Message or ""


def _value(line: Columns, measurement: str) -> float | None:
    """The value of the measurement. A custom measurement named DurationMs takes precedence over the
    field DurationMs of the line.
    """
    value = (line.Measurements or EMPTY).get(measurement)
    return line.DurationMs if value is None and measurement == DURATION else value


def _hashed(texts: Sequence[str | bytes]) -> Any:
    """A hash of 64 bits for each text: SipHash with pandas' fixed key, equal on all machines."""
    array: Any = np.empty(len(texts), object)
    array[:] = texts
    return hash_array(array, categorize=False)  # pyright: ignore[reportCallIssue]


def _notice(file: SourceFile, reason: Reason, field: str, detail: str) -> Row:
    row = {"blob_date": file.blob_date, "file": file.path, "reason": str(reason)}
    return {**row, "field": field, "detail": detail, "text": ""}
