"""Files are divided between tasks, and each line is read once."""

from __future__ import annotations

import gzip
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.read import files, sources
from spark_jobs.read.files import Chunk, SourceFile, is_export, spread
from spark_jobs.read.sources import LocalFiles, pieces_of


@pytest.mark.parametrize(
    ("path", "hour"),
    [
        ("a/resourceId=/X/y=2017/m=05/d=15/h=09/m=00/PT1H.json", "2017-05-15 09"),
        ("a/y=2017/m=5/d=1/PT1H.json", "2017-05-01 00"),
        ("app_key/Event/2017-05-15/09/x_y.blob", "2017-05-15 09"),
        ("ns/hub/0/2017/05/15/09/30/00.json", "2017-05-15 09"),
        ("2017-05-15/x.json", "2017-05-15 00"),
        ("y=2017/m=13/d=15/x.json", None),
        ("events.json", None),
    ],
)
def test_the_hour_of_a_file_is_in_its_path(path: str, hour: str | None) -> None:
    received = SourceFile(path, 0).hour
    assert (received and f"{received:%Y-%m-%d %H}") == hour


def test_only_export_files_are_read() -> None:
    assert all(is_export(f"a/{n}") for n in ("PT1H.json", "x.blob", "x.jsonl", "PT1H.json.gz"))
    assert not any(is_export(f"a/{n}") for n in ("_SUCCESS", ".x.json", "readme.md", "x.parquet"))


@given(
    st.lists(st.integers(0, 3 << 30), min_size=1, max_size=60),
    st.integers(1, 64),
)
def test_tasks_share_the_bytes_evenly_and_read_each_byte_once(sizes: list[int], cores: int) -> None:
    found = [SourceFile(f"{n}.json", size) for n, size in enumerate(sizes)]
    tasks = spread(found, cores)
    chunks = sorted((c for task in tasks for c in task), key=lambda c: (c.file.path, c.start))
    for file in found:
        own = [chunk for chunk in chunks if chunk.file == file]
        assert own[0].start == 0
        assert own[-1].end == file.size_bytes
        assert all(a.end == b.start for a, b in zip(own, own[1:], strict=False))
    costs = [sum(chunk.cost_bytes for chunk in task) for task in tasks]
    largest = max(chunk.cost_bytes for chunk in chunks)
    assert max(costs) <= sum(costs) / len(costs) + largest
    if sum(sizes) > cores * files.TASKS_PER_CORE * files.CHUNK_BYTES_MIN * 4:
        assert len(tasks) >= cores


@pytest.mark.parametrize("cores", [2, 8, 64])
def test_many_small_files_and_a_huge_one_keep_all_cores_equally_busy(cores: int) -> None:
    found = [SourceFile(f"{n:04}.json", 20_000 + n) for n in range(2_000)]
    found.insert(700, SourceFile("0700-huge.json", 3 << 30))
    costs = [sum(chunk.cost_bytes for chunk in task) for task in spread(found, cores)]
    assert max(costs) < 1.1 * min(costs)
    assert len(costs) >= cores * files.TASKS_PER_CORE
    assert len(costs) % cores == 0


@pytest.mark.parametrize("ending", [*files.ENDINGS, ".JSON", ".JSONL.GZ", ".Gz"])
def test_a_compressed_file_is_not_divided(ending: str) -> None:
    name = f"a{ending}"
    assert is_export(name)
    chunks = [each for task in spread([SourceFile(name, 1 << 30)], 1) for each in task]
    assert (len(chunks) == 1) is ending.lower().endswith(".gz")
    assert sum(each.end - each.start for each in chunks) == 1 << 30


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
    if content.startswith(sources.GZIP_MAGIC):
        return
    path = tmp_path_factory.mktemp("lines") / "a.json"
    path.write_bytes(content)
    file = SourceFile(str(path), len(content))
    edges = sorted({0, len(content), *[cut * len(content) // 100 for cut in cuts]})
    with mock.patch.object(sources, "READ_BYTES", read_bytes):
        found = [
            line
            for start, end in zip(edges, edges[1:], strict=False)
            for block in pieces_of(LocalFiles(str(path)), Chunk(file, start, end))
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
        blocks = list(pieces_of(LocalFiles(str(path)), chunk))
    assert b"\n".join(blocks).split(b"\n") == lines


def test_lines_that_are_appended_after_the_listing_are_left_to_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"one\ntwo\n")
    (listed,) = LocalFiles(str(tmp_path)).files()
    path.write_bytes(b"one\ntwo\nthree\n")
    (chunk,) = spread([listed], 1)[0]
    assert b"".join(pieces_of(LocalFiles(str(tmp_path)), chunk)) == b"one\ntwo"
