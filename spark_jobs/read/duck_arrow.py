"""Tables that go into DuckDB and come out of it, while lines are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spark_jobs.read.duck_blocks import DIM
from spark_jobs.read.rows import LATE_AFTER, Place, Row, hours_until
from spark_jobs.read.sources import Lines

if TYPE_CHECKING:
    import pyarrow as pa

Line = tuple[bytes | str, int]
Piece = tuple[Any, int]
"""An array of lines, and the number of their place."""

DATES_MAX = 1 << 20
NEWLINE = ord("\n")
WINDOW_BYTES = 256 << 10  # whole words
WORD_BYTES = 8
NEVER = -(1 << 31)


def lines_of(piece: Lines) -> Any:
    """An array of them with their ends, which lies where the piece does."""
    import numpy as np
    import pyarrow as pa

    ends = newlines(np.frombuffer(piece, np.uint8))
    edges = np.empty(len(ends) + 2, np.int32)
    edges[0], edges[1:-1], edges[-1] = 0, ends + 1, len(piece)
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(piece)]
    return pa.Array.from_buffers(pa.binary(), len(edges) - 1, buffers)


def newlines(content: Any) -> Any:
    """Where they are among these bytes: a window that a core's cache holds after the other. Most
    words hold none; to look at all bytes of the mask instead takes twice as long."""
    import numpy as np

    places = [np.empty(0, np.int64)]
    size = min(len(content), WINDOW_BYTES)
    mask = np.zeros(-(-size // WORD_BYTES) * WORD_BYTES, np.bool_)
    for start in range(0, len(content), WINDOW_BYTES):
        window = content[start : start + WINDOW_BYTES]
        np.equal(window, NEWLINE, out=mask[: len(window)])
        mask[len(window) :] = False
        words = np.flatnonzero(mask.view(np.uint64) != 0)
        found = np.flatnonzero(mask.reshape(-1, WORD_BYTES)[words])
        places.append(start + words[found // WORD_BYTES] * WORD_BYTES + found % WORD_BYTES)
    return np.concatenate(places)


def put_together(pieces: Sequence[Piece]) -> tuple[Any, Any]:
    """Lines, and the number of the place of each."""
    import pyarrow as pa

    numbers = [pa.repeat(pa.scalar(number, pa.int32()), len(lines)) for lines, number in pieces]
    return pa.chunked_array([lines for lines, _ in pieces]), pa.chunked_array(numbers)


def text_lines(lines: Any, places: Any) -> tuple[pa.Table, list[Line]]:
    """A table of lines with the number of their place, and apart those that are no UTF-8."""
    import pyarrow as pa

    try:
        return numbered(lines.cast(pa.string()), places), []
    except pa.ArrowInvalid:
        good = pa.array([_is_text(line) for line in lines.to_pylist()])
        bad = without(numbered(lines, places), good)
        return numbered(lines.filter(good).cast(pa.string()), places.filter(good)), as_lines(bad)


def numbered(lines: Any, places: Any) -> pa.Table:
    """With their ``number``, from 0 on."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ones = pa.repeat(pa.scalar(1, pa.int64()), len(lines))
    numbers = pc.subtract(pc.cumulative_sum(ones), 1)
    return pa.table({"line": lines, "place": places, "number": numbers})


def as_lines(table: pa.Table) -> list[Line]:
    """Without their ends."""
    places = table["place"].to_pylist()
    return [
        (_ended(line), place) for line, place in zip(table["line"].to_pylist(), places, strict=True)
    ]


def _ended(line: bytes | str) -> bytes | str:
    return line.removesuffix(b"\n") if isinstance(line, bytes) else line.removesuffix("\n")


def without(table: pa.Table, mask: Any) -> pa.Table:
    import pyarrow.compute as pc

    return table.filter(pc.invert(mask))


def late_before(places: Sequence[Place]) -> pa.Array:
    """Hours since 1970 before which a record is late; long ago where the path tells no hour."""
    import pyarrow as pa

    return pa.array(
        [NEVER if place.hour is None else hours_until(place.hour - LATE_AFTER) for place in places],
        pa.int64(),
    )


def rows_table(rows: Sequence[Row], keys: Sequence[int | None]) -> pa.Table:
    """Of rows that the reference has read: record columns, the operation as text. Where a row has
    no key of DuckDB's, that of the reference is taken."""
    import pyarrow as pa

    types = {
        "hour": pa.int64(),
        "kind": pa.string(),
        "name": pa.string(),
        "op": pa.string(),
        "k": pa.float64(),
        "trusted": pa.bool_(),
        "late": pa.bool_(),
        "x": pa.float64(),
    }
    columns = {
        name: pa.array([getattr(row, name) for row in rows], kind) for name, kind in types.items()
    }
    numbers = [
        int(str(row.key)[:16], 16) if key is None else key
        for row, key in zip(rows, keys, strict=True)
    ]
    dims = zip(*[row.dims for row in rows], strict=True)
    texts = {f"{DIM}{number}": pa.array(found, pa.string()) for number, found in enumerate(dims)}
    return pa.table({**columns, **texts, "key": pa.array(numbers, pa.uint64())})


def _is_text(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
