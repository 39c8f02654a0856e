"""The sources of exports: local folders, Azure blobs, and paths that only Spark can open."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote, urlsplit

from shared.sampling.records import DAMAGED
from spark_jobs.errors import JobError, first_line
from spark_jobs.read.files import Chunk, SourceFile, is_export

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.azure_blobs import AzureBlobs

Files: TypeAlias = "LocalFiles | AzureBlobs"
"""A source whose files tasks read themselves."""
Source: TypeAlias = "Files | ClusterFiles"
Pieces = Iterator[tuple[SourceFile, bytes]]
READ_BYTES = 4 << 20
LINE_END_BYTES = 64 << 10
PACKED_BYTES = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"
GZIP = zlib.MAX_WBITS | 16


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """A folder with everything below it, or one file. Tasks get this object and read from it."""

    name: str

    def files(self) -> list[SourceFile]:
        """Returns files in order of their paths. Raises JobError."""

        def refuse(error: OSError) -> None:
            raise error

        root = Path(self.name).absolute()  # tasks may have another working folder
        try:
            if not root.is_dir():
                return [SourceFile(str(root), root.stat().st_size)]
            walk = os.walk(root, onerror=refuse, followlinks=True)
            paths = [f"{folder}/{name}" for folder, _, names in walk for name in names]
            exports = sorted(path for path in paths if is_export(path))
            return [SourceFile(path, Path(path).stat().st_size) for path in exports]
        except OSError as error:
            raise JobError(f"--input {error.filename}: {error.strerror}") from error

    def read(self, path: str, start: int, end: int) -> bytes:
        """Returns the bytes from ``start`` to before ``end``. Raises JobError."""
        try:
            with Path(path).open("rb") as file:
                file.seek(start)
                return file.read(end - start)
        except OSError as error:
            raise JobError(
                f"{path}: {error.strerror} on {gethostname()}; it has changed since the job listed"
                " it, or the machines of the cluster do not share the folder"
            ) from error


@dataclass(frozen=True, slots=True)
class ClusterFiles:
    """Files that Spark opens with its own connectors, such as abfss:// on a cluster. Spark lists,
    splits, decompresses and reads them; tasks get lines instead of ranges of bytes.
    """

    spark: SparkSession
    name: str

    def files(self) -> list[SourceFile]:
        """Returns files in order of their paths. Raises JobError."""
        listed = self.spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        try:
            rows = listed.load(self.name).select("path", "length").collect()
        except Exception as error:  # PySpark has no common class for errors of the JVM
            raise JobError(f"--input {self.name}: {first_line(error)}") from error
        files = [SourceFile(unquote(row.path), row.length) for row in rows]
        return sorted((f for f in files if is_export(f.path)), key=lambda file: file.path)

    def lines(self, files: Sequence[SourceFile]) -> DataFrame:
        """Returns columns path, which is encoded as a URL, and line, which is binary."""
        from pyspark.sql import functions as F

        read = self.spark.read.option("lineSep", "\n").option("recursiveFileLookup", "true")
        text = read.text([file.path for file in files])
        return text.select(
            F.col("_metadata.file_path").alias("path"), F.col("value").cast("binary").alias("line")
        )


def source_of(
    location: str, spark: Callable[[], SparkSession], connection_string: str = ""
) -> Source:
    """Returns the source of an ``--input``. Raises JobError."""
    scheme = urlsplit(location).scheme if "://" in location else ""
    if scheme in ("http", "https"):
        from spark_jobs.azure_blobs import AzureBlobs

        return AzureBlobs(location, connection_string)
    if scheme not in ("", "file"):
        return ClusterFiles(spark(), location)
    return LocalFiles(local_path("--input", location))


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


def pieces_of_lines(lines: Iterable[pa.RecordBatch]) -> Pieces:
    """Yields pieces of lines that Spark has read, in columns path and line."""
    for batch in lines:
        rows = zip(*[column.to_pylist() for column in batch.columns], strict=True)
        for path, of_file in groupby(rows, itemgetter(0)):
            yield SourceFile(unquote(path), 0), b"\n".join(line for _, line in of_file)


def pieces_of_tasks(
    source: Files, tasks: Sequence[Sequence[Chunk]], numbers: Iterable[pa.RecordBatch]
) -> Pieces:
    """Yields pieces of a task's chunks. Spark sends each task only its number."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            for chunk in tasks[number]:
                yield from ((chunk.file, piece) for piece in pieces_of(source, chunk))


def pieces_of(source: Files, chunk: Chunk) -> Iterator[bytes]:
    """Yields the chunk's lines in pieces of a few megabytes, each without its last line end.

    A line belongs to the chunk in which it begins. Compressed files are decompressed; a compressed
    file is always a single chunk.
    """
    file = chunk.file
    packed = file.size_bytes > 0 and source.read(file.path, 0, 2) == GZIP_MAGIC
    if packed or not file.splittable:
        pieces = _unpacked(source, file) if chunk.start == 0 else iter(())
    else:
        pieces = _lines_of(source, chunk)
    begun: list[bytes] = []
    for piece in pieces:
        end = piece.rfind(b"\n")
        if end < 0:
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
