"""How lines are found in what was read, and how many of them DuckDB takes at a time."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.read import duck_arrow
from spark_jobs.read.duck_arrow import lines_of, numbered
from spark_jobs.read.duck_lines import lines_sql
from spark_jobs.read.duck_query import (
    CACHED_BYTES,
    ROWS_MAX,
    ROWS_MIN,
    LineQuery,
    connect,
    rows_together,
)
from spark_jobs.shape import Shape

PIECES = st.lists(st.sampled_from([b"\n", b"\n" * 9, b"a", b"\r\n", b"x" * 7, b"\xff\x00"]))


@given(pieces=PIECES, window_bytes=st.sampled_from([8, 16, 256 << 10]))
def test_lines_are_found_wherever_windows_end(pieces: list[bytes], window_bytes: int) -> None:
    content = b"".join(pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duck_arrow, "WINDOW_BYTES", window_bytes)
        assert lines_of(content).to_pylist() == re.split(b"(?<=\n)", content)


@pytest.mark.parametrize("line_bytes", [1, 500, 5_000, 100_000])
def test_rows_that_go_together_fit_a_cache_unless_few_do(line_bytes: int) -> None:
    rows = rows_together(pa.table({"line": ["x" * line_bytes] * 100}))
    assert ROWS_MIN <= rows <= ROWS_MAX
    assert rows in (ROWS_MIN, ROWS_MAX) or rows * line_bytes <= CACHED_BYTES


def test_no_rows_go_together_as_well() -> None:
    assert rows_together(pa.table({"line": pa.array([], pa.string())})) == ROWS_MIN


@pytest.mark.parametrize("lenient", [False, True])
def test_lines_go_through_the_query_without_being_joined(lenient: bool) -> None:
    """A list of more than a few values would become a table to join with, for each batch anew."""
    connection = connect()
    connection.register("lines", pa.table({"line": ["{}"], "number": [0]}))
    plan = str(connection.sql(f"explain {lines_sql(Shape(), lenient, careful=True)}").fetchall())
    assert "scan" in plan.lower()
    assert "join" not in plan.lower()


def test_a_line_cut_where_it_looks_whole_is_left_out_and_its_batch_read_again() -> None:
    good = '{"Type":"AppEvents","Name":"a"}'
    lines = numbered(pa.array([good, '{"Type":"AppEvents","Name":"a}', good]), pa.array([0] * 3))
    query = LineQuery(Shape())
    for _ in range(2):
        assert query.run(lines, lenient=False)["number"].to_pylist() == [0, 2]
