"""The sources of exports: local folders, Azure blobs, and paths that only Spark can open. A source
is a small object that is sent to tasks, which open their files themselves.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from spark_jobs.errors import BadInput, first_line
from spark_jobs.read.files import Chunk, SourceFile, is_export

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ_BYTES = 4 << 20
LINE_END_BYTES = 64 << 10
PACKED_BYTES = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"
GZIP = zlib.MAX_WBITS | 16


class Source(Protocol):
    """Lists files and reads ranges of their bytes."""

    @property
    def name(self) -> str:
        """The location as a user would write it, without secrets."""
        ...

    def files(self) -> list[SourceFile]:
        """Returns files in order of their paths. Raises BadInput."""
        ...

    def read(self, path: str, start: int, end: int) -> bytes:
        """Returns the bytes from ``start`` to before ``end``. Raises BadInput if the file is gone
        or reading it is not permitted.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """A folder with everything below it, or one file."""

    root: str

    @property
    def name(self) -> str:
        return self.root

    def files(self) -> list[SourceFile]:
        root = Path(self.root).absolute()  # tasks may have another working folder
        if not root.exists():
            raise BadInput(f"--input {self.root}: no such file or folder")

        def refuse(error: OSError) -> None:
            raise error

        try:
            if root.is_file():
                return [SourceFile(str(root), root.stat().st_size)]
            walk = os.walk(root, onerror=refuse, followlinks=True)
            paths = [f"{folder}/{name}" for folder, _, names in walk for name in names]
            exports = sorted(path for path in paths if is_export(path))
            return [SourceFile(path, Path(path).stat().st_size) for path in exports]
        except PermissionError as error:
            raise BadInput(f"--input {error.filename}: no permission to list or read it") from error

    def read(self, path: str, start: int, end: int) -> bytes:
        try:
            with Path(path).open("rb") as file:
                file.seek(start)
                return file.read(end - start)
        except FileNotFoundError as error:
            raise BadInput(
                f"{path}: {error.strerror} on {gethostname()}; it has been deleted since the job"
                " listed it, or the machines of the cluster do not share the folder"
            ) from error
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror} on {gethostname()}") from error


class ClusterFiles:
    """Files that Spark opens with its own connectors, such as abfss:// on a cluster. Spark lists,
    splits, decompresses and reads them; tasks get lines instead of ranges of bytes.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self._root = root

    @property
    def name(self) -> str:
        return self._root

    def files(self) -> list[SourceFile]:
        """Returns files in order of their paths. Raises BadInput."""
        listed = self._spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        try:
            rows = listed.load(self._root).select("path", "length").collect()
        except Exception as error:  # PySpark has no common class for errors of the JVM
            raise BadInput(f"--input {self._root}: {first_line(error)}") from error
        files = [SourceFile(unquote(row.path), row.length) for row in rows]
        return sorted((f for f in files if is_export(f.path)), key=lambda file: file.path)

    def read(self, path: str, start: int, end: int) -> bytes:
        raise NotImplementedError("Spark reads these files itself")

    def lines(self, files: Sequence[SourceFile]) -> DataFrame:
        """Returns columns path, which is encoded as a URL, and line, which is binary."""
        from pyspark.sql import functions as F

        read = self._spark.read.option("lineSep", "\n").option("recursiveFileLookup", "true")
        text = read.text([file.path for file in files])
        return text.select(
            F.col("_metadata.file_path").alias("path"), F.col("value").cast("binary").alias("line")
        )


def source_of(
    location: str, spark: Callable[[], SparkSession], connection_string: str = ""
) -> Source:
    """Returns the source of an ``--input``. Raises BadInput."""
    scheme = location.partition("://")[0].lower() if "://" in location else ""
    if scheme in ("http", "https"):
        from spark_jobs.azure_blobs import AzureBlobs

        return AzureBlobs(location, connection_string)
    if scheme not in ("", "file"):
        return ClusterFiles(spark(), location)
    if problem := file_url_problem(location):
        raise BadInput(f"--input {location}: {problem}")
    return LocalFiles(local_path(location))


def local_path(location: str) -> str:
    return unquote(urlsplit(location).path) if location.startswith("file:") else location


def file_url_problem(location: str) -> str:
    """Returns why a URL is not that of a file; empty for all other locations.

    In file://data/in the first part is a machine, and the path is /in.
    """
    machine = urlsplit(location).netloc if location.startswith("file:") else ""
    if machine in ("", "localhost"):
        return ""
    path = location.removeprefix("file://")
    return f"names the machine {machine}; write {path} for a relative path, or file:///{path}"


def blocks_of(source: Source, chunk: Chunk) -> Iterator[bytes]:
    """Yields the chunk's lines in pieces of a few megabytes, each without its last line end.

    A line belongs to the chunk in which it begins. Compressed files are decompressed; a compressed
    file is always a single chunk.
    """
    file = chunk.file
    packed = file.size_bytes > 0 and source.read(file.path, 0, 2) == GZIP_MAGIC
    if packed or not file.splittable:
        pieces = _unpacked(source, file) if chunk.start == 0 else iter(())
    else:
        pieces = _lines_from(source, chunk)
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


def _lines_from(source: Source, chunk: Chunk) -> Iterator[bytes]:
    """Yields the bytes of the lines that begin in a chunk; the last line may end after the
    chunk."""
    at, in_earlier_line = max(chunk.start - 1, 0), chunk.start > 0
    while at < chunk.file.size_bytes:
        inside = at < chunk.end
        end = min(at + READ_BYTES, chunk.end) if inside else at + LINE_END_BYTES
        piece = source.read(chunk.file.path, at, min(end, chunk.file.size_bytes))
        at = end
        line_ended = piece.endswith(b"\n")
        if in_earlier_line:
            _, newline, piece = piece.partition(b"\n")
            in_earlier_line = not newline
        if not inside:
            piece, newline, _ = piece.partition(b"\n")
            line_ended = bool(newline)
        yield piece
        if at >= chunk.end and (line_ended or in_earlier_line):
            return


def _unpacked(source: Source, file: SourceFile) -> Iterator[bytes]:
    """Decompresses a file. If its end is damaged, a line that is not JSON is added, so that the
    damage is quarantined and counted.
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
        yield f"\ndamaged gzip after byte {length} of the text: {problem}".encode()
