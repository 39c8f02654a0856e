"""Which bytes go to which task, and which lines come out."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.read import files, sources
from spark_jobs.read.files import Chunk, SourceFile, hour_of, is_export, spread
from spark_jobs.read.sources import LocalFiles, blocks_of


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
def test_dates_of_paths(path: str, hour: str | None) -> None:
    found = hour_of(path)
    assert (found and f"{found:%Y-%m-%d %H}") == hour


def test_what_is_an_export() -> None:
    assert all(is_export(f"a/{n}") for n in ("PT1H.json", "x.blob", "x.jsonl", "PT1H.json.gz"))
    assert not any(is_export(f"a/{n}") for n in ("_SUCCESS", ".x.json", "readme.md", "x.parquet"))


@given(
    st.lists(st.integers(0, 3 << 30), min_size=1, max_size=60),
    st.integers(1, 64),
)
def test_work_is_even_and_every_byte_is_read_once(sizes: list[int], cores: int) -> None:
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
def test_many_tiny_hours_and_a_huge_one_keep_all_cores_equally_busy(cores: int) -> None:
    found = [SourceFile(f"{n:04}.json", 20_000 + n) for n in range(2_000)]
    found.insert(700, SourceFile("0700-huge.json", 3 << 30))
    costs = [sum(chunk.cost_bytes for chunk in task) for task in spread(found, cores)]
    assert max(costs) < 1.1 * min(costs)
    assert len(costs) >= cores * files.TASKS_PER_CORE
    assert len(costs) % cores == 0


def test_packed_files_are_not_cut() -> None:
    ((chunk,),) = spread([SourceFile("a.json.gz", 1 << 30)], 1)
    assert (chunk.start, chunk.end) == (0, 1 << 30)


@given(
    lines=st.lists(st.binary(max_size=30).filter(lambda b: b"\n" not in b), max_size=12),
    cuts=st.lists(st.integers(0, 300), max_size=5),
    ended=st.booleans(),
    read_bytes=st.sampled_from([1, 7, sources.READ_BYTES]),
)
def test_each_line_comes_once_however_a_file_is_cut(
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
    edges = sorted({0, len(content), *[cut for cut in cuts if cut < len(content)]})
    with mock.patch.object(sources, "READ_BYTES", read_bytes):
        found = [
            line
            for start, end in zip(edges, edges[1:], strict=False)
            for block in blocks_of(LocalFiles(str(path)), Chunk(file, start, end))
            for line in bytes(block).split(b"\n")
        ]
    assert [line for line in found if line] == [line for line in lines if line]


def test_what_is_appended_after_the_listing_waits(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"one\ntwo\n")
    (listed,) = LocalFiles(str(tmp_path)).files()
    path.write_bytes(b"one\ntwo\nthree\n")
    (chunk,) = spread([listed], 1)[0]
    assert b"".join(blocks_of(LocalFiles(str(tmp_path)), chunk)) == b"one\ntwo"
