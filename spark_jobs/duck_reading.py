"""What a task of the DuckDB engine does: its chunks' lines to blocks of compact records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from shared.sampling.diagnostic_export import is_diagnostic
from shared.sampling.model import Quarantined, Record
from shared.sampling.records import parts_of, read_line
from spark_jobs.cluster_files import plain_path
from spark_jobs.duck_blocks import (
    BUCKETS,
    NAMES,
    RECORD_COLUMNS,
    Block,
    batch,
    batch_of_blocks,
)
from spark_jobs.duck_lines import NEEDED, lines_sql, may_hold_no_number
from spark_jobs.files import Chunk, SourceFile
from spark_jobs.rows import LATE_AFTER, UNIX_START, Place, Reader, Row, quarantine_row
from spark_jobs.shape import Shape
from spark_jobs.sources import Source, blocks_of

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

BATCH_BYTES = 32 << 20
QUARTER = timedelta(minutes=15)
QUARANTINE_ROWS = 1_000

Line = tuple[bytes | str, int]
Piece = tuple[bytes, int]
"""Whole lines, and the number of their place."""


def connect() -> duckdb.DuckDBPyConnection:
    """One thread: Spark gives each task one core. Nothing is loaded from elsewhere."""
    import duckdb

    connection = duckdb.connect(
        config={"threads": 1, "autoinstall_known_extensions": False, "memory_limit": "1GB"}
    )
    connection.execute("set preserve_insertion_order = false")
    return connection


def read_chunks(source: Source, chunks: Sequence[Chunk], shape: Shape) -> Iterator[pa.RecordBatch]:
    """Blocks, and lines that could not be read, in the columns of ``duck_blocks.SCHEMA``."""
    reading = _Reading(shape)
    for pieces, places in _batches(source, chunks):
        yield from reading.add(pieces, places)
    yield from reading.finish()


def read_lines(batches: Iterable[pa.RecordBatch], shape: Shape) -> Iterator[pa.RecordBatch]:
    """The same from lines that were read already: columns path and line."""
    reading = _Reading(shape)
    for found in batches:
        paths = found.column(0).dictionary_encode()
        places = [Place.of(SourceFile(plain_path(p), 0)) for p in paths.dictionary.to_pylist()]
        yield from reading.add_lines(*text_lines(found.column(1), paths.indices), places)
    yield from reading.finish()


def _batches(source: Source, chunks: Sequence[Chunk]) -> Iterator[tuple[list[Piece], list[Place]]]:
    """Pieces of whole lines with the number of their place, some megabytes at a time."""
    pieces: list[Piece] = []
    places: list[Place] = []
    size = 0
    for chunk in chunks:
        place = Place.of(chunk.file)
        if not places or places[-1] != place:
            places.append(place)
        for piece in blocks_of(source, chunk):
            pieces.append((piece, len(places) - 1))
            size += len(piece)
            if size >= BATCH_BYTES:
                yield pieces, places
                pieces, places, size = [], [place], 0
    if pieces:
        yield pieces, places


class _Reading:
    """Of one task: lines go in, blocks come out at the end."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._reader = Reader(shape)
        self._connection = connect()
        self._plain: list[pa.Table] = []
        self._rows: list[Row] = []
        self._bad: list[Row] = []

    def add(self, pieces: Sequence[Piece], places: Sequence[Place]) -> Iterator[pa.RecordBatch]:
        """Lines that could not be read come at once, so that they need not be kept."""
        numbers = any(may_hold_no_number(piece) for piece, _ in pieces)
        yield from self.add_lines(*split_lines(pieces), places, numbers)

    def add_lines(
        self, lines: pa.Table, doubtful: list[Line], places: Sequence[Place], numbers: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """``numbers`` is False where no line can hold what is no number."""
        found = self._parse(lines, places, lines_sql(self._shape, False, numbers))
        left = found.filter(found["line"].is_valid())
        singly = doubtful + _lines(left)
        self._read_singly([(line, places[number]) for line, number in singly])
        yield from self._quarantined(QUARANTINE_ROWS)

    def finish(self) -> Iterator[pa.RecordBatch]:
        yield from self._quarantined(1)
        yield from batch_of_blocks(self._blocks())

    def _parse(self, lines: pa.Table, places: Sequence[Place], sql: str) -> pa.Table:
        """Keep what is plain; the rest is returned, with its line where it is to be read singly."""
        self._connection.register("lines", lines)
        self._connection.register("places", places_table(places))
        found = self._connection.sql(sql).to_arrow_table()
        plain = found.filter(found["plain"])
        if plain.num_rows:
            self._plain.append(
                self._dated(plain.drop_columns(["plain", "ignored", "line"]), places)
            )
        return found.filter(_not(found["plain"]))

    def _dated(self, plain: pa.Table, places: Sequence[Place]) -> pa.Table:
        """With blob date and event date instead of place and quarter."""
        self._connection.register("plain", plain)
        self._connection.register("dates", dates_table(plain["quarter"], self._reader))
        self._connection.register("places", places_table(places))
        return self._connection.sql(DATED).to_arrow_table()

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
        lines = pa.table({"line": pa.array([line for line, _, _ in again]), "place": numbers})
        places = [place for _, place, _ in again]
        left = self._parse(lines, places, lines_sql(self._shape, strict=True))
        self._rows += [again[number][2] for number in left["place"].to_pylist()]

    def _quarantined(self, at_least: int) -> Iterator[pa.RecordBatch]:
        if len(self._bad) >= at_least:
            yield batch([{name: getattr(row, name, None) for name in NAMES} for row in self._bad])
            self._bad = []

    def _blocks(self) -> Iterator[Block]:
        import pyarrow as pa

        tables = [*self._plain, rows_table(self._rows)]
        self._connection.register("found", pa.concat_tables(tables, promote_options="permissive"))
        compact = self._connection.sql(COMPACT).to_arrow_table()
        counts = compact.group_by(list(BLOCK_KEYS), use_threads=False).aggregate(
            [([], "count_all")]
        )
        start = 0
        for row in sorted(counts.to_pylist(), key=lambda row: [row[name] for name in BLOCK_KEYS]):
            part = compact.slice(start, row["count_all"])
            start += row["count_all"]
            records = part.drop_columns(list(BLOCK_KEYS))
            yield Block(row["blob_date"], row["event_date"], row["bucket"], records)


BLOCK_KEYS = ("blob_date", "event_date", "bucket")
DATED = """
select blob_date, event_date, plain.quarter // 4 as hour, kind, name, dims, key, op, k, trusted,
    late, x
from plain join places using (place) join dates using (quarter)
"""
COMPACT = f"""
select blob_date, event_date,
    (case when op = '' then key else hash(op) end % {BUCKETS})::integer as bucket,
    hour::integer as hour, kind, name, dims, key,
    case when op = '' then 0 else hash(op) end as op, k, trusted, late, x
from found order by blob_date, event_date, bucket
"""


def split_lines(pieces: Sequence[Piece]) -> tuple[pa.Table, list[Line]]:
    """A table of lines with the number of their place, and apart those that are no UTF-8."""
    import pyarrow as pa
    import pyarrow.compute as pc

    arrays, numbers = [], []
    for piece, number in pieces:
        lines = pc.split_pattern(pa.array([piece], pa.binary()), b"\n").flatten()
        arrays.append(lines)
        numbers.append(pa.repeat(pa.scalar(number, pa.int32()), len(lines)))
    return text_lines(pa.chunked_array(arrays), pa.chunked_array(numbers))


def text_lines(lines: Any, places: Any) -> tuple[pa.Table, list[Line]]:
    """As ``split_lines``, from arrays of lines and numbers."""
    import pyarrow as pa

    try:
        return pa.table({"line": lines.cast(pa.string()), "place": places}), []
    except pa.ArrowInvalid:
        good = pa.array([_is_text(line) for line in lines.to_pylist()])
        left = pa.table({"line": lines, "place": places}).filter(_not(good))
        bad = _lines(left)
        text = lines.filter(good).cast(pa.string())
        return pa.table({"line": text, "place": places.filter(good)}), bad


def _lines(table: pa.Table) -> list[Line]:
    return list(zip(table["line"].to_pylist(), table["place"].to_pylist(), strict=True))


def places_table(places: Sequence[Place]) -> pa.Table:
    """``late_before`` is in microseconds; null where the path tells no hour."""
    import pyarrow as pa

    return pa.table(
        {
            "place": pa.array(range(len(places)), pa.int32()),
            "blob_date": pa.array([place.blob_date for place in places], pa.string()),
            "late_before": pa.array(
                [
                    None
                    if place.hour is None
                    else (place.hour - LATE_AFTER - UNIX_START) // timedelta(microseconds=1)
                    for place in places
                ],
                pa.int64(),
            ),
        }
    )


def dates_table(quarters: Any, reader: Reader) -> pa.Table:
    """The reader's date of each quarter of an hour since 1970."""
    import pyarrow as pa

    distinct = quarters.unique()
    dates = [reader.date_of(UNIX_START + number * QUARTER) for number in distinct.to_pylist()]
    return pa.table({"quarter": distinct, "event_date": pa.array(dates, pa.string())})


def rows_table(rows: Sequence[Row]) -> pa.Table:
    import pyarrow as pa

    types = {
        "hour": pa.int64(),
        "dims": pa.list_(pa.string()),
        "key": pa.uint64(),
        "k": pa.float64(),
        "trusted": pa.bool_(),
        "late": pa.bool_(),
        "x": pa.float64(),
    }
    columns = {
        name: pa.array([_compact(row, name) for row in rows], types.get(name, pa.string()))
        for name in ("blob_date", "event_date", *RECORD_COLUMNS)
    }
    return pa.table(columns)


def _compact(row: Row, name: str) -> Any:
    return int(str(row.key)[:16], 16) if name == "key" else getattr(row, name)


def _parts(line: bytes | str) -> list[Any]:
    text = line.decode("utf-8-sig") if isinstance(line, bytes) else line.removeprefix("\ufeff")
    return parts_of(json.loads(text))


def _written(part: Any) -> str:
    """Only what makes up the record; nothing of what has another shape."""
    if not is_diagnostic(part):
        return ""
    return json.dumps({name: part[name] for name in NEEDED if name in part})


def _is_text(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _not(mask: Any) -> Any:
    import pyarrow.compute as pc

    return pc.invert(mask)
