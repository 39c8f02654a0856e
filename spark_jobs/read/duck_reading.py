"""What a task of the DuckDB engine does: its chunks' lines to blocks of compact records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from shared.sampling.diagnostic_export import is_diagnostic
from shared.sampling.fields import Repeating, loads
from shared.sampling.model import Quarantined, Record
from shared.sampling.records import parts_of, read_line
from spark_jobs.read.cluster_files import plain_path
from spark_jobs.read.duck_arrow import (
    DATES_MAX,
    Piece,
    as_lines,
    late_before,
    lines_of,
    numbered,
    put_together,
    rows_table,
    text_lines,
    without,
)
from spark_jobs.read.duck_blocks import BUCKETS, NAMES, Block, batch, batches_of_blocks
from spark_jobs.read.duck_lines import NEEDED, bucket_sql, op_sql
from spark_jobs.read.duck_query import connect, line_query
from spark_jobs.read.duck_stamps import Minutes
from spark_jobs.read.duck_strict import may_be_lenient
from spark_jobs.read.files import Chunk, SourceFile
from spark_jobs.read.rows import Place, Reader, Row, quarantine_row
from spark_jobs.read.sources import Source, blocks_of
from spark_jobs.shape import Shape

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 8 << 20
QUARANTINE_ROWS = 1_000
FOR_HERE = ("number", "bucket", "late", "plain", "flat", "ignored", "stamp")
"""Columns that do not go into blocks as they are."""
SINGLE_ROWS = f"""
select * exclude (op, bucket), op, {bucket_sql()} as bucket
from (
    select * replace ({op_sql("to_json(op)")} as op, to_json(name)::varchar as name), 0 as bucket
    from rows
)
"""


def read_chunks(source: Source, chunks: Sequence[Chunk], shape: Shape) -> Iterator[pa.RecordBatch]:
    """Blocks, and lines that could not be read, in the columns of ``duck_blocks.SCHEMA``."""
    reading = _Reading(shape)
    for found in _batches(source, chunks):
        yield from reading.add(*found)
        del found  # before the next lines are read
    yield from reading.finish()


def read_lines(batches: Iterable[pa.RecordBatch], shape: Shape) -> Iterator[pa.RecordBatch]:
    """The same from lines that were read already: columns path and line."""
    reading = _Reading(shape)
    for found in batches:
        paths = found.column(0).dictionary_encode()
        places = [Place.of(SourceFile(plain_path(p), 0)) for p in paths.dictionary.to_pylist()]
        yield from reading.add(found.column(1), paths.indices, places)
    yield from reading.finish()


def _batches(source: Source, chunks: Sequence[Chunk]) -> Iterator[tuple[Any, Any, list[Place]]]:
    """Lines with the numbers of their places, some megabytes at a time."""
    pieces: list[Piece] = []
    places: list[Place] = []
    size = 0
    for chunk in chunks:
        place = Place.of(chunk.file)
        if not places or places[-1] != place:
            places.append(place)
        for piece in blocks_of(source, chunk):
            pieces.append((lines_of(piece), len(places) - 1))
            size += len(piece)
            if size >= BATCH_BYTES:
                yield *put_together(pieces), places
                pieces, places, size = [], [place], 0
    if pieces:
        yield *put_together(pieces), places


class _Reading:
    """Of one task: lines go in, blocks come out at the end."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._reader = Reader(shape)
        self._query = line_query(shape)
        self._minutes = Minutes(self._reader)
        self._blob_dates: list[str] = []
        self._records: list[pa.Table] = []
        self._bad: list[Row] = []

    def add(self, lines: Any, numbers: Any, places: Sequence[Place]) -> Iterator[pa.RecordBatch]:
        """Lines that could not be read come at once, so that they need not be kept."""
        table, doubtful = text_lines(lines, numbers)
        found = self._query.run(table, may_be_lenient(table["line"]))
        left = self._keep_plain(found, table, places)
        singly = doubtful + as_lines(left)
        self._read_singly([(line, places[number]) for line, number in singly])
        yield from self._quarantined(QUARANTINE_ROWS)

    def finish(self) -> Iterator[pa.RecordBatch]:
        yield from self._quarantined(1)
        yield from batches_of_blocks(self._blocks())

    def _keep_plain(self, found: pa.Table, lines: pa.Table, places: Sequence[Place]) -> pa.Table:
        """Returns the lines that are left, to be read singly."""
        import pyarrow.compute as pc

        dates, hours = self._minutes.of(found["stamp"])
        good = pc.and_(found["plain"], dates.is_valid())
        place = lines["place"].take(found["number"]).combine_chunks()
        self._keep(found.append_column("hour", hours), place, dates, places, good)
        done = found["number"].filter(pc.or_(good, found["ignored"]))
        return without(lines, pc.is_in(lines["number"], value_set=done.combine_chunks()))

    def _keep(
        self, records: pa.Table, place: Any, dates: Any, places: Sequence[Place], good: Any
    ) -> None:
        """``group`` is a number for blob date, event date and bucket."""
        import pyarrow as pa
        import pyarrow.compute as pc

        late = pc.less(records["hour"], late_before(places).take(place))
        blob_dates = pa.array([self._blob_date(one.blob_date) for one in places], pa.int64())
        group = pc.add(pc.multiply(blob_dates.take(place), DATES_MAX), dates)
        group = pc.add(pc.multiply(group, BUCKETS), records["bucket"])
        columns = {name: records[name] for name in records.column_names if name not in FOR_HERE}
        table = pa.table({"group": group, "late": late, **columns})
        self._records.append(table if pc.all(good).as_py() else table.filter(good))

    def _blob_date(self, blob_date: str) -> int:
        if blob_date not in self._blob_dates:
            self._blob_dates.append(blob_date)
        return self._blob_dates.index(blob_date)

    def _read_singly(self, lines: Sequence[tuple[bytes | str, Place]]) -> None:
        """By the reference; what it reads well is written again and goes the way of plain lines.

        So a record has the same key whatever stood around it.
        """
        again: list[tuple[str, Place, Row]] = []
        for line, place in lines:
            outcomes = list(read_line(line, place.path))
            self._bad += [quarantine_row(o, place) for o in outcomes if isinstance(o, Quarantined)]
            if not any(isinstance(outcome, Record) for outcome in outcomes):
                continue
            for part, outcome in zip(_parts(line), outcomes, strict=True):
                if isinstance(outcome, Record):
                    row = self._reader.row(outcome, place)
                    again.append((_written(part), place, row))
        if again:
            self._read_again(again)

    def _read_again(self, again: Sequence[tuple[str, Place, Row]]) -> None:
        import pyarrow as pa

        numbers = pa.array(range(len(again)), pa.int32())
        lines = numbered(pa.array([line for line, _, _ in again]), numbers)
        places = [place for _, place, _ in again]
        found = self._query.run(lines, lenient=False)
        left = self._keep_plain(found, lines, places)["number"].to_pylist()
        if not left:
            return
        rows = [again[number][2] for number in left]
        flat = found.filter(found["flat"])
        keys = dict(zip(flat["number"].to_pylist(), flat["key"].to_pylist(), strict=True))
        connection = connect()
        connection.register("rows", rows_table(rows, [keys.get(number) for number in left]))
        records = connection.sql(SINGLE_ROWS).to_arrow_table()
        dates = pa.array([self._minutes.number_of(str(row.event_date)) for row in rows])
        self._keep(records, pa.array(left), dates, places, pa.array([True] * len(rows)))

    def _quarantined(self, at_least: int) -> Iterator[pa.RecordBatch]:
        if len(self._bad) >= at_least:
            yield batch([{name: getattr(row, name, None) for name in NAMES} for row in self._bad])
            self._bad = []

    def _blocks(self) -> Iterator[Block]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self._records:
            return
        records = pa.concat_tables(self._records, promote_options="permissive").combine_chunks()
        records = records.take(pc.sort_indices(records["group"]))
        start = 0
        for found in pc.value_counts(records["group"]).to_pylist():
            group, count = found["values"], found["counts"]
            blob_date, event_date = divmod(group // BUCKETS, DATES_MAX)
            part = records.slice(start, count).drop_columns(["group"])
            yield Block(
                self._blob_dates[blob_date], self._minutes.dates[event_date], group % BUCKETS, part
            )
            start += count


def _parts(line: bytes | str) -> list[Any]:
    text = line.decode("utf-8-sig") if isinstance(line, bytes) else line.removeprefix("\ufeff")
    return parts_of(loads(text))


def _written(part: Any) -> str:
    """Only what makes up the record; nothing of what has another shape."""
    if not is_diagnostic(part):
        return ""
    columns = [(name, part[name]) for name in NEEDED if name in part]
    return _object([(name, _text(value)) for name, value in columns])


def _text(value: Any) -> str:
    """As JSON, with all entries of an object that has a name twice."""
    if not isinstance(value, Repeating):
        return json.dumps(value)
    return _object([(name, json.dumps(entry)) for name, entry in value.entries])


def _object(entries: Sequence[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in entries) + "}"
