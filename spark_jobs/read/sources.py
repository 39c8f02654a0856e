"""The sources of exports: local folders, Azure blobs, and paths that only Spark can open."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote, urlsplit

from shared.sampling.blob_paths import AZURE
from shared.sampling.control import BadControl, Controls, controls_of
from shared.sampling.forms import EMPTY_GZIP, HEAD_BYTES, in_lines, is_document, other_form
from shared.sampling.records import DAMAGED
from spark_jobs.errors import JobError, first_line
from spark_jobs.read.files import Chunk, SourceFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Source: TypeAlias = "Files | ClusterFiles"
OWN = ("file", "http", "https")
"""The schemes of inputs that the job opens itself."""
Pieces = Iterator[tuple[SourceFile, bytes | str]]
"""A text in place of a piece says why the file cannot be read."""
READ_BYTES = 4 << 20
LINE_END_BYTES = 64 << 10
PACKED_BYTES = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"
GZIP = zlib.MAX_WBITS | 16


@dataclass(frozen=True, slots=True)
class Files:
    """Folders, files and blobs that tasks read themselves, such as a container of events and one of
    metrics. Tasks get this object."""

    locations: Sequence[str]
    connection_string: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        return ", ".join(location.partition("?")[0] for location in self.locations)

    def files(self) -> list[SourceFile]:
        """Returns files in order of their paths, each once. Raises JobError."""
        listed = [file for each in self.locations for file in self._listed(each)]
        return sorted({file.path: file for file in listed}.values(), key=lambda file: file.path)

    def _listed(self, location: str) -> list[SourceFile]:
        if "://" not in location:
            return local_files(location)
        from spark_jobs.azure_blobs import blobs_of

        return blobs_of(location, self.connection_string)

    def read(self, path: str, start: int, end: int) -> bytes:
        """Returns the bytes from ``start`` to before ``end``. Raises JobError."""
        if "://" in path:
            from spark_jobs.azure_blobs import read_blob

            return read_blob(self.locations, path, start, end, self.connection_string)
        try:
            with Path(path).open("rb") as file:
                file.seek(start)
                return file.read(end - start)
        except OSError as error:
            raise JobError(
                f"{path}: {error.strerror} on {gethostname()}; it has changed since the job listed"
                " it, or the machines of the cluster do not share the folder"
            ) from error


def local_files(name: str) -> list[SourceFile]:
    """Returns a file, or those of a folder and everything below it. Raises JobError."""

    def refuse(error: OSError) -> None:
        raise error

    root = Path(name).absolute()  # tasks may have another working folder
    below = len(str(root))
    try:
        if not root.is_dir():
            return [SourceFile(str(root), root.stat().st_size, below)]
        walk = os.walk(root, onerror=refuse, followlinks=True)
        paths = sorted(f"{folder}/{name}" for folder, _, names in walk for name in names)
        return [SourceFile(path, Path(path).stat().st_size, below) for path in paths]
    except OSError as error:
        raise JobError(f"--input {error.filename}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class ClusterFiles:
    """Files that Spark opens with the credentials of its cluster, such as abfss://. Spark lists,
    splits, decompresses and reads them; tasks get lines instead of ranges of bytes.
    """

    spark: SparkSession
    names: Sequence[str]

    @property
    def name(self) -> str:
        return ", ".join(self.names)

    def files(self) -> list[SourceFile]:
        """Returns files in order of their paths. Raises JobError."""
        listed = self.spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        try:
            rows = listed.load(list(self.names)).select("path", "length").collect()
        except Exception as error:  # PySpark has no common class for errors of the JVM
            raise JobError(f"--input {self.name}: {first_line(error)}") from error
        found = {row.path: cluster_file(row.path, row.length, self.names) for row in rows}
        return sorted(found.values(), key=lambda file: file.path)

    def lines(self, files: Sequence[SourceFile]) -> DataFrame:
        """Returns columns path, which is encoded as a URL, and line, which is binary."""
        read = self.spark.read.option("lineSep", "\n").option("recursiveFileLookup", "true")
        text = read.text([file.path for file in files])
        return text.selectExpr("_metadata.file_path as path", "cast(value as binary) as line")


def cluster_file(url: str, size_bytes: int, inputs: Iterable[str]) -> SourceFile:
    """Returns a file by the URL that Spark gives it, which is encoded. Spark writes the ``file://``
    of an input as ``file:``.
    """
    path, within = unquote(url), unquote(urlsplit(url).path)
    folders = [unquote(urlsplit(name).path).rstrip("/") for name in inputs]
    above = max((f for f in folders if f"{within}/".startswith(f"{f}/")), key=len, default="")
    return SourceFile(path, size_bytes, len(path) - len(within) + len(above))


def source_of(
    locations: Sequence[str], spark: Callable[[], SparkSession], connection_string: str = ""
) -> Source:
    """Returns the source of all ``--input``. Raises JobError."""
    by_spark = [scheme_of(each) not in OWN for each in locations]
    if all(by_spark):
        return ClusterFiles(spark(), locations)
    if any(by_spark):
        place, other = locations[by_spark.index(True)], locations[by_spark.index(False)]
        raise JobError(
            f"--input {place}: is opened by Spark and cannot be read together with {other}; write"
            " both as abfss://, or both as https://"
        )
    return files_of(locations, connection_string)


def scheme_of(location: str) -> str:
    return urlsplit(location).scheme if "://" in location else "file"


def files_of(locations: Sequence[str], connection_string: str) -> Files:
    """Raises JobError for a location that only Spark can open."""
    return Files([_own(location) for location in locations], connection_string)


def _own(location: str) -> str:
    scheme = scheme_of(location)
    if scheme == "file":
        return local_path("--input", location)
    if scheme not in (*OWN, *AZURE):
        raise JobError(
            f"--input {location}: must be a folder, or blobs at https:// or abfss://"
            " CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX"
        )
    return location


def read_controls(location: str, connection_string: str = "") -> Controls:
    """Reads a control series from a local file or a blob. Raises JobError."""
    try:
        source = files_of([location], connection_string)
        files = source.files()
        if len(files) != 1:
            raise JobError("is not one file; name one")
        content = source.read(files[0].path, 0, files[0].size_bytes)
        return controls_of(content.decode(json.detect_encoding(content)))  # PowerShell: UTF-16
    except (JobError, BadControl, UnicodeDecodeError) as error:
        raise JobError(f"--control {location}: {error}") from error


def local_path(option: str, location: str) -> str:
    """Returns the path of a file, which is given as a path or as a URL.

    Raises JobError for a URL such as file://data/in: data is a machine, and the path is /in.
    """
    if not location.startswith("file:"):
        return location
    url = urlsplit(location)
    if url.netloc in ("", "localhost"):
        return unquote(url.path)
    path = location.removeprefix("file://")
    raise JobError(
        f"{option} {location}: names the machine {url.netloc}; write {path} for a relative path,"
        f" or file:///{path}"
    )


def pieces_of_lines(inputs: Sequence[str], lines: Iterable[pa.RecordBatch]) -> Pieces:
    """Yields pieces of lines that Spark has read, in columns path and line."""
    for batch in lines:
        rows = zip(*[column.to_pylist() for column in batch.columns], strict=True)
        for path, of_file in groupby(rows, itemgetter(0)):
            yield cluster_file(path, 0, inputs), b"\n".join(line for _, line in of_file)


def pieces_of_tasks(
    source: Files, tasks: Sequence[Sequence[Chunk]], numbers: Iterable[pa.RecordBatch]
) -> Pieces:
    """Yields pieces of a task's chunks. Spark sends each task only its number."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from pieces_of_chunks(source, tasks[number])


def pieces_of_chunks(source: Files, chunks: Iterable[Chunk]) -> Pieces:
    for chunk in chunks:
        yield from ((chunk.file, piece) for piece in pieces_of(source, chunk))


def pieces_of(source: Files, chunk: Chunk) -> Iterator[bytes | str]:
    """Yields the chunk's lines in pieces of a few megabytes, each without its last line end.

    A line belongs to the chunk in which it begins. The first chunk has all lines of a file that
    cannot be divided: one that is compressed, or that has no lines of JSON.
    """
    file = chunk.file
    head = source.read(file.path, 0, min(HEAD_BYTES, file.size_bytes)) if file.size_bytes else b""
    packed = head.startswith(GZIP_MAGIC)
    if file.splittable and not (packed or other_form(head) or is_document(head)):
        yield from _whole_lines(_lines_of(source, chunk))
    elif chunk.start == 0 and not head:
        yield EMPTY_GZIP
    elif chunk.start == 0:
        whole = replace(chunk, end=file.size_bytes)
        yield from _whole_lines(
            in_lines(_unpacked(source, file) if packed else _lines_of(source, whole))
        )


def _whole_lines(pieces: Iterator[bytes | str]) -> Iterator[bytes | str]:
    begun: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, str):
            yield piece
        elif (end := piece.rfind(b"\n")) < 0:
            begun.append(piece)
        else:
            yield b"".join([*begun, memoryview(piece)[:end]])
            begun = [piece[end + 1 :]]
    if rest := b"".join(begun):
        yield rest


def _lines_of(source: Files, chunk: Chunk) -> Iterator[bytes]:
    """Yields the bytes of the lines that begin in a chunk; the last line may end after the
    chunk."""
    begin, end = (_line_start(source, chunk.file, at) for at in (chunk.start, chunk.end))
    for at in range(begin, end, READ_BYTES):
        yield source.read(chunk.file.path, at, min(at + READ_BYTES, end))


def _line_start(source: Files, file: SourceFile, at: int) -> int:
    """Returns the first byte from ``at`` on at which a line begins, or else the file's size."""
    if at == 0:
        return 0
    for start in range(at - 1, file.size_bytes - 1, LINE_END_BYTES):
        end = min(start + LINE_END_BYTES, file.size_bytes)
        if newline := source.read(file.path, start, end).find(b"\n") + 1:
            return start + newline
    return file.size_bytes


def _unpacked(source: Files, file: SourceFile) -> Iterator[bytes]:
    """Decompresses a file. If it is damaged, a line that says so is added after what could be read,
    so that the date of the file does not count as read.
    """
    length = 0
    member = zlib.decompressobj(GZIP)
    try:
        for start in range(0, file.size_bytes, PACKED_BYTES):
            packed = source.read(file.path, start, min(start + PACKED_BYTES, file.size_bytes))
            while packed:
                if member.eof:  # gzip files may be concatenated
                    member = zlib.decompressobj(GZIP)
                piece = member.decompress(packed, READ_BYTES)
                length += len(piece)
                yield piece
                packed = member.unconsumed_tail or member.unused_data
        yield member.flush()
        problem = "" if member.eof else "its end is missing"
    except zlib.error as error:
        problem = str(error)
    if problem:
        yield f"\n{DAMAGED} after byte {length} of the text: {problem}".encode()
