"""Files are divided between tasks, and each line is read once."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.sampling import forms
from shared.sampling.forms import is_document, other_form
from shared.sampling.series import Shape
from spark_jobs.read import files, sources
from spark_jobs.read.files import Chunk, SourceFile, spread
from spark_jobs.read.sources import Files, cluster_file, pieces_of
from tests.spark_jobs.telemetry import batches_of_task, event


def test_only_export_files_are_read() -> None:
    names = ("PT1H.json", "x.blob", "x.jsonl", "PT1H.json.gz", "X.JSON.GZ")
    assert all(SourceFile(f"a/{name}", 1).is_export for name in names)
    others = ("_SUCCESS", ".x.json", "readme.md", "x.parquet", "PT1H.json (1)", "x.ndjson")
    assert not any(SourceFile(f"a/{name}", 1).is_export for name in others)
    assert SourceFile("a/x.ndjson", 1, below=len("a/x.ndjson")).is_export, "it is the input"


@given(st.lists(st.integers(0, 3 << 30), min_size=1, max_size=60))
def test_tasks_share_the_bytes_evenly_and_read_each_byte_once(sizes: list[int]) -> None:
    found = [SourceFile(f"{n}.json", size) for n, size in enumerate(sizes)]
    tasks = spread(found)
    chunks = sorted((c for task in tasks for c in task), key=lambda c: (c.file.path, c.start))
    for file in found:
        own = [chunk for chunk in chunks if chunk.file == file]
        assert own[0].start == 0
        assert own[-1].end == file.size_bytes
        assert all(a.end == b.start for a, b in zip(own, own[1:], strict=False))
    costs = [sum(chunk.cost_bytes for chunk in task) for task in tasks]
    assert max(costs) <= files.CHUNK_BYTES + files.FILE_COST_BYTES
    assert len(tasks) <= 1 + 2 * sum(costs) / files.CHUNK_BYTES


def test_many_small_files_and_a_huge_one_are_divided_into_equal_tasks() -> None:
    found = [SourceFile(f"{n:04}.json", 20_000 + n) for n in range(2_000)]
    found.insert(700, SourceFile("0700-huge.json", 3 << 30))
    costs = [sum(chunk.cost_bytes for chunk in task) for task in spread(found)]
    assert max(costs) < 1.1 * sum(costs) / len(costs)


@pytest.mark.parametrize("ending", [*files.ENDINGS, ".JSON", ".JSONL.GZ", ".Gz"])
def test_a_compressed_file_is_not_divided(ending: str) -> None:
    name = f"a{ending}"
    assert SourceFile(name, 1).is_export
    chunks = [each for task in spread([SourceFile(name, 1 << 30)]) for each in task]
    assert (len(chunks) == 1) is ending.lower().endswith(".gz")
    assert sum(each.end - each.start for each in chunks) == 1 << 30


def blocks_of(chunk: Chunk) -> list[bytes]:
    pieces = pieces_of(Files(["/"]), chunk)
    return [piece if isinstance(piece, bytes) else piece.encode() for piece in pieces]


@given(
    lines=st.lists(st.binary(max_size=30).filter(lambda b: b"\n" not in b), max_size=12),
    cuts=st.lists(st.integers(0, 100), max_size=5),
    ended=st.booleans(),
    read_bytes=st.sampled_from([1, 7, sources.READ_BYTES]),
)
def test_each_line_is_read_once_wherever_a_file_is_divided(
    lines: list[bytes],
    cuts: list[int],
    ended: bool,
    read_bytes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    content = b"\n".join(lines) + (b"\n" if ended else b"")
    if content.startswith(sources.GZIP_MAGIC) or other_form(content) or is_document(content):
        return
    path = tmp_path_factory.mktemp("lines") / "a.json"
    path.write_bytes(content)
    file = SourceFile(str(path), len(content))
    edges = sorted({0, len(content), *[cut * len(content) // 100 for cut in cuts]})
    with mock.patch.object(sources, "READ_BYTES", read_bytes):
        found = [
            line
            for start, end in zip(edges, edges[1:], strict=False)
            for block in blocks_of(Chunk(file, start, end))
            for line in block.split(b"\n")
        ]
    assert [line for line in found if line] == [line for line in lines if line]


@pytest.mark.parametrize("read_bytes", [7, sources.READ_BYTES])
def test_concatenated_compressed_files_are_read_in_small_pieces(
    read_bytes: int, tmp_path: Path
) -> None:
    lines = [b"line %d" % n * 9 for n in range(200)]
    path = tmp_path / "a.json.gz"
    halves = b"\n".join(lines[:100]) + b"\n", b"\n".join(lines[100:])
    path.write_bytes(b"".join(map(gzip.compress, halves)))
    chunk = Chunk(SourceFile(str(path), path.stat().st_size), 0, path.stat().st_size)
    with (
        mock.patch.object(sources, "READ_BYTES", read_bytes),
        mock.patch.object(sources, "PACKED_BYTES", 50),
    ):
        blocks = blocks_of(chunk)
    assert b"\n".join(blocks).split(b"\n") == lines


def tar(text: str) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as file:
        member = tarfile.TarInfo("PT1H.json")
        member.size = len(text)
        file.addfile(member, io.BytesIO(text.encode()))
    return archive.getvalue()


ONE, TWO = (event(f"2017-05-15T09:00:0{n}") for n in (1, 2))
PRETTY = json.dumps(json.loads(ONE), indent=2)
ANSWER = '{"tables": [{"name": "PrimaryResult", "columns": [], "rows": [[1]]}]}'
ROW = {**json.loads(ONE), "TableName": "PrimaryResult"}
LARGE = f"[\n{ONE},\n{'{}' * 300}"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("text", "count", "told"),
    [
        (f"[{ONE}, {TWO}]", 2, []),
        (f"{ONE}\n[{TWO}]\n[]\n[[1], 2, {ONE}]", 3, ["neither a known Type"] * 2),
        (f'{{"records": [\n{ONE},\n{TWO}\n]}}\n', 2, []),
        (f'{{"records":\n[{ONE},\n{TWO}]}}', 2, []),
        (f"\ufeff[\r\n{ONE}\r\n]", 1, []),
        (f"[{ONE}\n,{TWO}\n]", 2, []),
        (json.dumps([json.loads(ONE), 7, {"a": 1}], indent=1), 1, ["neither a known Type"] * 2),
        (f"{PRETTY}\n{PRETTY}\n", 2, []),
        (f"{ONE[:-9]},\n{ONE}\n{TWO}\n{ONE}", 3, ["Unterminated string"]),
        (f"[{ONE}]\n[{TWO[:-9]}\n[{ONE}]\n[{TWO}]", 3, ["Unterminated string"]),
        (f"[\n{ONE},\n{TWO[:-9]}", 1, ["Expecting value", "Unterminated string"]),
        (f"[{ONE},\n{{\n{TWO}\n", 1, ["Expecting"] * 2),
        (LARGE, 0, ["one JSON document of more than"]),
        (ANSWER, 0, ["an answer of the query API, which is no export"]),
        (json.dumps(json.loads(ANSWER), indent=1), 0, ["an answer of the query API"]),
        (json.dumps([ROW, ROW], indent=1), 0, ["a row of `az monitor log-analytics query`"] * 2),
        (json.dumps(ROW), 0, ["a row of `az monitor log-analytics query`"]),
        ('{"timestamp": "t", "itemType": "customEvent"}', 0, ["a row of a query of Application"]),
        ('TimeGenerated [UTC],Name,ItemCount\n"11/20/2026, 5:41 AM",Order,2\n', 0, ["CSV, such"]),
        ('\ufeff"timestamp","name"\n1,2\n', 0, ["CSV, such as of the portal"]),
        (f"{ONE}\n".encode("utf-16"), 0, ["UTF-16 text: convert it to UTF-8"]),
        (f"{ONE}\n".encode("utf-16-le"), 0, ["UTF-16 text"]),
        (b"PK\x03\x04\n\n\n", 0, ["a zip archive: unpack it"]),
        (b"Obj\x01\x04\x14avro", 0, ["Avro"]),
        (b"PAR1\x15\x04", 0, ["Parquet"]),
        (f"{ONE}{TWO} [{ONE}]", 3, []),
        (gzip.compress(gzip.compress(ONE.encode())), 0, ["gzip inside gzip: unpack it"]),
        (bz2.compress(ONE.encode()), 0, ["compressed, but not as gzip"]),
        (lzma.compress(ONE.encode()), 0, ["compressed, but not as gzip"]),
        (tar(ONE), 0, ["a tar archive: unpack it"]),
        ("<!DOCTYPE html>\n<p>Sign in</p>", 0, ["XML or HTML, such as an error page"]),
        (b"", 0, []),
    ],
)  # fmt: skip
def test_json_over_several_lines_is_read_and_other_forms_are_named(
    text: str | bytes, count: int, told: list[str], packed: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Wherever a file is divided. In a document that is cut, each line is read by itself."""
    monkeypatch.setattr(forms, "DOCUMENT_BYTES_MAX", 800)
    content = text.encode() if isinstance(text, str) else text
    path = tmp_path / ("a.json.gz" if packed else "a.json")
    path.write_bytes(gzip.compress(content) if packed else content)
    (file,) = Files([str(tmp_path)]).files()
    size = file.size_bytes
    edges = [0, size] if packed else sorted({0, size // 3, size // 2, size})
    chunks = [Chunk(file, a, b) for a, b in pairwise(edges)] or [Chunk(file, 0, 0)]
    batches = list(batches_of_task(Files([str(tmp_path)]), chunks, Shape()))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert sum(row["records"] or 0 for row in rows) == count
    details = [row["detail"] for row in rows if row["reason"]]
    assert len(details) == len(told), details
    assert all(expected in detail for expected, detail in zip(told, details, strict=True)), details


@pytest.mark.parametrize(
    ("url", "date"),
    [
        ("file:/in/2026-11-25/events.json", "undated"),
        ("abfss://c@a.net/b%20c/2026-03-01/P%23.json", "2026-03-01"),
        ("abfss://d@a.net/2026-03-01/x.json", "2026-03-01"),
    ],
)
def test_a_file_that_spark_lists_has_the_date_below_its_input(url: str, date: str) -> None:
    inputs = ["file:///in/2026-11-25", "abfss://c@a.net/b c/", "abfss://d@a.net"]
    assert cluster_file(url, 1, inputs).blob_date == date


def test_a_file_that_is_named_gz_and_is_no_gzip_is_read_as_it_is(tmp_path: Path) -> None:
    """Some tools unpack a blob while they download it, and keep its name."""
    (tmp_path / "a.json.gz").write_text(f"{ONE}\n{TWO}\n")
    (file,) = Files([str(tmp_path)]).files()
    assert b"".join(blocks_of(Chunk(file, 0, file.size_bytes))) == f"{ONE}\n{TWO}".encode()


def test_a_gzip_without_a_byte_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").touch()
    (file,) = Files([str(tmp_path)]).files()
    (piece,) = pieces_of(Files([str(tmp_path)]), Chunk(file, 0, 0))
    assert piece == "an empty file and no gzip: copy it again"


def test_lines_that_are_appended_after_the_listing_are_left_to_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"one\ntwo\n")
    (listed,) = Files([str(tmp_path)]).files()
    path.write_bytes(b"one\ntwo\nthree\n")
    (chunk,) = spread([listed])[0]
    assert blocks_of(chunk) == [b"one\ntwo"]
