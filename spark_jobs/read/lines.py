"""What a task does: lines of exported telemetry → blocks of compact records, as Arrow batches.

msgspec decodes the lines of the diagnostic export that are plain, many of them at a time go through
NumPy and Arrow. All others are read by ``shared.sampling``, which is the reference: the decoder is
as strict as Python's, so what it takes means the same to both. A record that the reference has read
is written again as a plain line if it can be, so that its key is the same whatever stood around it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Meta, UnsetType
from pandas.util import hash_array  # type: ignore[import-untyped]

from shared.sampling.diagnostic_export import KINDS, OTHER_TABLES, SAMPLE_RATE, TEMPLATES
from shared.sampling.fields import rate_percent
from shared.sampling.model import Quarantined, Record
from shared.sampling.records import parts_of, read_line
from shared.sampling.weights import weigh
from spark_jobs.read.blocks import BUCKETS, RECORD, Numbered, Row, Series, batch, batches, packed
from spark_jobs.read.files import SourceFile
from spark_jobs.shape import ROLE, Shape
from spark_jobs.sums.sums import hours_until

LATE_AFTER = timedelta(hours=1)
"""A record is late if it is older than this at the beginning of the hour that it is filed under."""
NEVER = -(1 << 31)
DATES_MAX = 1 << 24
LINES_TOGETHER = 4_096
FEW = 64
RECORDS_MAX = 1 << 19
"""Of a task at a time, whatever it reads: 22 MB."""
QUARANTINE_ROWS = 1_000
DURATION = "DurationMs"
STAMP = r"^(19[89]|2\d\d)\d-\d\d-\d\dT\d\d:[0-5]\d:[0-5]\d(\.\d{1,7})?Z$"
"""Since 1980 all zones differ by quarters of hours: the minute tells date and hour."""
MINUTE = 16
LEFT, IGNORED = -1, -2
"""In place of the number of a series: left to the reference, and of a table without events."""
EVENTS, TRACES = "AppEvents", "AppTraces"
NONE: dict[str, Any] = {}

Number = Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)] | float | None
Text = str | None


class Line(msgspec.Struct, gc=False, omit_defaults=True):
    """A plain line, in the order of the export, in which it is decoded fastest.

    All of it but SDKVersion is in the key by which copies are known.
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
    """Of a body with many records, which is not plain."""


decode = msgspec.json.Decoder(Line).decode
encode = msgspec.msgpack.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True)
class Place:
    """Where lines come from, and since when they are not late."""

    path: str
    blob_date: str
    late_before: int

    @classmethod
    def of(cls, file: SourceFile) -> Place:
        hour = file.hour
        late_before = NEVER if hour is None else hours_until(hour - LATE_AFTER)
        return cls(file.path, file.blob_date, late_before)


def batches_of(lines: Iterable[tuple[Place, bytes]], shape: Shape) -> Iterator[pa.RecordBatch]:
    """Whole lines with ``\\n`` between them → ``blocks.SCHEMA``; see above.

    What is kept meanwhile is bounded. Which records there are, and which lines could not be read,
    depends on nothing but the lines, their places and the shape.
    """
    task = _Task(shape)
    for place, text in lines:
        task.add(place, text)
        yield from task.ready()
    yield from task.ready(all_of_it=True)


class _Task:
    """What is read but not yet handed on."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._zone = ZoneInfo(shape.time_zone)
        self._places: Numbered[Place, Place] = Numbered(lambda place: place)
        self._lines: list[Line] = []
        self._raws: list[bytes] = []
        self._numbers: list[int] = []
        self._others: list[tuple[bytes, int]] = []
        self._bad: list[Row] = []
        self._begin()

    def _begin(self) -> None:
        """What numbers stand for, and the records that have them, until these are handed on."""
        self._alike = Numbered(self._of_alike)
        self._series: Numbered[Series, Series] = Numbered(lambda series: series)
        self._dates: Numbered[str, str] = Numbered(str)
        self._blob_dates: Numbered[str, str] = Numbered(str)
        self._minutes: dict[str, tuple[int, int]] = {}
        self._records: list[Any] = []
        self._groups: list[Any] = []
        self._count = 0

    def add(self, place: Place, text: bytes) -> None:
        number, sound = self._places[place], _is_utf8(text)
        raws = text.split(b"\n")
        for start in range(0, len(raws), FEW):
            self._decode(raws[start : start + FEW], number, sound)
        if len(self._lines) + len(self._others) >= LINES_TOGETHER:
            self._read()

    def _decode(self, raws: list[bytes], number: int, sound: bool) -> None:
        """All at once or, where one of them is not plain, one after the other."""
        try:  # the decoder does not look at texts that it skips
            found = [decode(raw) for raw in (raws if sound else map(bytes.decode, raws))]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if len(raws) == 1:
                self._others.append((raws[0], number))
                return
            for raw in raws:
                self._decode([raw], number, sound)
            return
        self._lines += found
        self._raws += raws
        self._numbers += [number] * len(raws)

    def ready(self, all_of_it: bool = False) -> Iterator[pa.RecordBatch]:
        if all_of_it:
            self._read()
        if len(self._bad) >= (1 if all_of_it else QUARANTINE_ROWS):
            yield batch(self._bad)
            self._bad = []
        if self._count >= (1 if all_of_it else RECORDS_MAX):
            yield from batches(self._blocks())
            self._begin()

    def _read(self) -> None:
        lines, raws, numbers = self._lines, self._raws, self._numbers
        left = [(raws[at], numbers[at]) for at in self._keep(lines, numbers)]
        self._read_singly([*self._others, *left])
        self._lines, self._raws, self._numbers, self._others = [], [], [], []

    def _read_singly(self, lines: Sequence[tuple[bytes, int]]) -> None:
        records: list[tuple[Record, int]] = []
        again: list[tuple[Line, Record, int]] = []
        for raw, number in lines:
            place = self._places.made[number]
            outcomes = list(read_line(raw, place.path))
            self._bad += [_bad_row(o, place) for o in outcomes if isinstance(o, Quarantined)]
            if not any(isinstance(outcome, Record) for outcome in outcomes):
                continue
            parts = parts_of(json.loads(raw.decode("utf-8-sig")))
            for part, outcome in zip(parts, outcomes, strict=True):
                if isinstance(outcome, Record):
                    line = _plain_line(part)
                    if line is None:
                        records.append((outcome, number))
                    else:
                        again.append((line, outcome, number))
        left = self._keep([line for line, _, _ in again], [number for _, _, number in again])
        self._keep_records([*records, *[again[at][1:] for at in left]])

    def _keep(self, lines: Sequence[Line], places: Sequence[int]) -> list[int]:
        """Returns which lines are left, as they are not plain after all."""
        if not lines:
            return []
        dates, hours = self._times(lines)
        alike = np.array([self._alike[key] for key in _keys_of_alike(lines, self._shape)])
        series, k, trusted = self._alike.looked_up(alike, tuple).T
        good = (series >= 0) & (dates >= 0)
        records = np.empty(len(lines), RECORD)
        records["hour"], records["series"] = hours, series
        records["k"], records["trusted"] = k, trusted
        records["x"] = _values(lines, self._shape.measurement)
        records["key"] = _keys(lines)
        operations = _hashed([line.OperationId or "" for line in lines])
        records["unit"] = np.where(operations == NO_OPERATION, records["key"], operations)
        self._add(records[good], dates[good], np.array(places)[good])
        return list(np.flatnonzero(~good & (series != IGNORED)))

    def _of_alike(self, key: tuple[Any, ...]) -> tuple[int, float, bool]:
        """Number of the series, weight and whether that can be trusted."""
        table, name, items, rate, sdk_version, *dims = key
        weight = weigh(
            None if items is None else float(items),
            rate_percent({SAMPLE_RATE: rate}, SAMPLE_RATE),
            sdk_version or "",
        )
        if table in KINDS and (name or table != EVENTS):
            series = self._series[str(KINDS[table]), name or "", *dims]
        else:
            series = IGNORED if table in OTHER_TABLES else LEFT
        return series, weight.value, weight.trusted

    def _times(self, lines: Sequence[Line]) -> tuple[Any, Any]:
        """Number of the date and hour since 1970 of each; a negative date where it is no time."""
        stamps = pa.array(
            [(line.TimeGenerated or "") if line.time is UNSET else line.time for line in lines],
            pa.string(),
        )
        minutes = pc.utf8_slice_codeunits(stamps, 0, MINUTE).dictionary_encode()
        known = np.array([self._minute(minute) for minute in minutes.dictionary.to_pylist()])
        dates, hours = known[minutes.indices.to_numpy()].T
        good = pc.match_substring_regex(stamps, STAMP).to_numpy(zero_copy_only=False)
        return np.where(good, dates, -1), hours

    def _minute(self, minute: str) -> tuple[int, int]:
        if minute not in self._minutes:
            try:
                time = datetime.fromisoformat(f"{minute}:00+00:00")
            except ValueError:
                return -1, 0
            self._minutes[minute] = self._date(time), hours_until(time)
        return self._minutes[minute]

    def _date(self, time: datetime) -> int:
        try:
            local = time.astimezone(self._zone)
        except OverflowError:  # in the first year or the last there may be no such time
            local = time
        return self._dates[local.date().isoformat()]

    def _keep_records(self, found: Sequence[tuple[Record, int]]) -> None:
        """Of the reference, which the decoder cannot have taken."""
        if not found:
            return
        records = np.empty(len(found), RECORD)
        for at, (record, _) in enumerate(found):
            records[at] = self._record(record)
        dates = np.array([self._date(record.time) for record, _ in found])
        self._add(records, dates, np.array([number for _, number in found]))

    def _record(self, record: Record) -> tuple[Any, ...]:
        """In the columns of ``RECORD``."""
        key = int(record.key[:16], 16)
        operation = sendable(record.operation_id)
        unit = int(_hashed([operation])[0]) if operation else key
        x = record.measurements.get(self._shape.measurement, np.nan)
        dims = [sendable(_dimension(record, name)) for name in self._shape.dimensions]
        series = self._series[str(record.kind), sendable(record.name), *dims]
        return (
            key, unit, record.weight.value, x if self._shape.measurement else 1.0,
            hours_until(record.time), series, record.weight.trusted, False,
        )  # fmt: skip

    def _add(self, records: Any, dates: Any, places: Any) -> None:
        known = self._places.made
        late_before = np.array([place.late_before for place in known])
        blob_dates = np.array([self._blob_dates[place.blob_date] for place in known])
        records["late"] = records["hour"] < late_before[places]
        group = (blob_dates[places] * DATES_MAX + dates) * BUCKETS
        self._records.append(records)
        self._groups.append(group + (records["unit"] % BUCKETS).astype(np.int64))
        self._count += len(records)

    def _blocks(self) -> Iterator[Row]:
        records, groups = np.concatenate(self._records), np.concatenate(self._groups)
        order = np.argsort(groups, kind="stable")
        records, groups = records[order], groups[order]
        edges = [*np.flatnonzero(np.diff(groups, prepend=-1)), len(groups)]
        for start, end in pairwise(edges):
            days, bucket = divmod(int(groups[start]), BUCKETS)
            blob_date, event_date = divmod(days, DATES_MAX)
            yield {
                "blob_date": self._blob_dates.made[blob_date],
                "event_date": self._dates.made[event_date],
                "bucket": bucket,
                **packed(records[start:end], self._series.made),
            }


def sendable(text: str) -> str:
    """Lone surrogates have no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _is_utf8(text: bytes) -> bool:
    try:
        return text.isascii() or bool(text.decode()) or not text
    except UnicodeDecodeError:
        return False


def _plain_line(part: Any) -> Line | None:
    """Of a record that the reference has read, if it could stand on a plain line."""
    try:
        line = msgspec.convert(part, Line)
        encode(line)  # no lone surrogates
    except (msgspec.ValidationError, UnicodeEncodeError):
        return None
    return line


def _keys_of_alike(lines: Sequence[Line], shape: Shape) -> Iterator[tuple[Any, ...]]:
    """Of each line what its series and weight follow from; there are few of them."""
    tables = [line.Type for line in lines]
    names = [line.Name for line in lines]
    if TRACES in tables:
        pairs = zip(lines, names, strict=True)
        names = [_message(line) if line.Type == TRACES else name for line, name in pairs]
    items = [line.ItemCount for line in lines]
    rates = [(line.Properties or NONE).get(SAMPLE_RATE) for line in lines]
    versions = [line.SDKVersion for line in lines]
    dims = [
        [line.AppRoleName or "" for line in lines]
        if name == ROLE
        else [(line.Properties or NONE).get(name) or "" for line in lines]
        for name in shape.dimensions
    ]
    return zip(tables, names, items, rates, versions, *dims, strict=True)


def _message(line: Line) -> str:
    """A trace's template groups what the filled-in message would scatter."""
    found = map((line.Properties or NONE).get, TEMPLATES)
    return next(filter(None, found), "") or line.Message or ""


def _values(lines: Sequence[Line], measurement: str) -> Any:
    """A custom measurement goes before the column of the same name; NaN where there is neither."""
    if not measurement:
        return np.ones(len(lines))
    found = [(line.Measurements or NONE).get(measurement) for line in lines]
    if measurement == DURATION:
        pairs = zip(found, lines, strict=True)
        found = [line.DurationMs if value is None else value for value, line in pairs]
    return np.array(found, np.float64)


def _keys(lines: Sequence[Line]) -> Any:
    for line in lines:
        line.SDKVersion = None
    return _hashed([encode(line) for line in lines])


def _hashed(texts: Sequence[str | bytes]) -> Any:
    """64 bits of each by SipHash with pandas' fixed key, wherever it runs."""
    found = np.empty(len(texts), object)
    found[:] = texts
    return hash_array(found, categorize=False)


def _dimension(record: Record, name: str) -> str:
    return record.role_name if name == ROLE else record.properties.get(name, "")


def _bad_row(found: Quarantined, place: Place) -> Row:
    return {
        "blob_date": place.blob_date,
        "file": place.path,
        "reason": str(found.reason),
        "field": found.field,
        "detail": sendable(found.detail),
        "text": sendable(found.text),
    }


NO_OPERATION = _hashed([""])[0]
