"""Lines that only a lenient reader of JSON takes are found, wherever they lie among others."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.read.duck_reading import read_chunks
from spark_jobs.read.duck_strict import may_be_lenient
from spark_jobs.read.files import spread
from spark_jobs.read.sources import LocalFiles
from spark_jobs.shape import Shape

STRICT = ('{"a":1,"b":[null,"x"]}', '{"a":"n","i":-1}', "", '{"é":"☃"}')
BROKEN = ('{"a":1,}', '{"a":[1, ]}', '{"a": -inf}', "[1,nan]", '{"a":1,\t}')
LENIENT = (*BROKEN, '{"a":NaN}', "[ Infinity ]")
"""Python's own reader takes some of them as well."""


@given(
    chunks=st.lists(st.lists(st.sampled_from([*STRICT, *LENIENT]), max_size=4), max_size=3),
    start=st.integers(0, 5),
    length=st.integers(0, 12),
)
def test_one_lenient_line_among_many_is_found(
    chunks: list[list[str]], start: int, length: int
) -> None:
    lines = pa.chunked_array(chunks, pa.string()).slice(start, length)
    assert may_be_lenient(lines) == any(line in LENIENT for line in lines.to_pylist())


@pytest.mark.parametrize("line", BROKEN)
def test_what_only_a_lenient_reader_takes_is_quarantined(line: str, tmp_path: Path) -> None:
    record = {"time": "2017-05-15T09:30:00.0Z", "Type": "AppEvents", "Name": "A", "ItemCount": 1}
    good = json.dumps(record)
    bad = f'{good[:-1]},"more":{line}}}'
    (tmp_path / "a.json").write_text(f"{good}\n{bad}\n")
    assert _reasons(tmp_path) == [None, "not_json"]


@pytest.mark.parametrize("length", range(3))
def test_a_broken_line_of_any_characters_is_quarantined(length: int, tmp_path: Path) -> None:
    """What DuckDB says of one may be cut within a character."""
    (tmp_path / "a.json").write_text(f"{{'{'x' * length}{'☃' * 99}}}\n")
    assert _reasons(tmp_path) == ["not_json"]


def _reasons(folder: Path) -> list[str | None]:
    source = LocalFiles(str(folder))
    rows = [
        row
        for task in spread(source.files(), 1)
        for batch in read_chunks(source, task, Shape())
        for row in batch.to_pylist()
    ]
    return sorted((row["reason"] for row in rows), key=str)
