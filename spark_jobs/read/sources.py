"""Where exports lie: local folders, Azure blobs by their own client, and what Spark itself reaches.

A source is small and can be sent to tasks; they open what they need.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from spark_jobs.errors import BadInput
from spark_jobs.read.files import Chunk, SourceFile, is_export

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ_BYTES = 4 << 20
LINE_END_BYTES = 64 << 10
PACKED_BYTES = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"
GZIP = zlib.MAX_WBITS | 16

Lines = bytes | memoryview


class Source(Protocol):
    """Files, and ranges of their bytes."""

    @property
    def name(self) -> str:
        """As a person would write it; without secrets."""
        ...

    def files(self) -> list[SourceFile]:
        """In order of paths. Raises BadInput."""
        ...

    def read(self, path: str, start: int, end: int) -> bytes:
        """Raises BadInput where the file is gone or may not be read."""
        ...


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """A folder with all below it, or one file."""

    root: str

    @property
    def name(self) -> str:
        return self.root

    def files(self) -> list[SourceFile]:
        root = Path(self.root).absolute()  # tasks may work in another folder
        if not root.exists():
            raise BadInput(f"--input {self.root}: no such file or folder")
        try:
            if root.is_file():
                return [SourceFile(str(root), root.stat().st_size)]
            return sorted(_walk(root), key=lambda file: file.path)
        except PermissionError as error:
            raise BadInput(f"--input {error.filename}: no permission to list or read it") from error

    def read(self, path: str, start: int, end: int) -> bytes:
        try:
            with Path(path).open("rb") as file:
                file.seek(start)
                return file.read(end - start)
        except PermissionError as error:
            raise BadInput(f"{path}: no permission to read it") from error
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from error


def _walk(root: Path) -> Iterator[SourceFile]:
    def refuse(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(root, onerror=refuse, followlinks=True):
        for name in names:
            path = f"{folder}/{name}"
            if is_export(path):
                yield SourceFile(path, Path(path).stat().st_size)


@dataclass(frozen=True, slots=True)
class AzureBlobs:
    """Blobs below a prefix of a container, by Azure's own client: no Hadoop driver is needed.

    ``url`` is https://ACCOUNT.blob.core.windows.net/CONTAINER/PREFIX, or that of an emulator.
    """

    url: str
    connection_string: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        return self.url.partition("?")[0]

    def files(self) -> list[SourceFile]:
        from azure.core.exceptions import AzureError

        _, _, prefix, _ = _parts(self.url)
        try:
            blobs = [
                SourceFile(blob.name, blob.size)
                for blob in self._container().list_blobs(name_starts_with=prefix or None)
                if is_export(blob.name)
            ]
        except AzureError as error:
            raise BadInput(f"--input {self.name}: {_first_line(error)}") from error
        return sorted(blobs, key=lambda file: file.path)

    def read(self, path: str, start: int, end: int) -> bytes:
        from azure.core.exceptions import AzureError

        if end <= start:
            return b""
        try:
            blob = self._container().download_blob(path, offset=start, length=end - start)
            return bytes(blob.readall())
        except AzureError as error:
            raise BadInput(f"{self.name}: {path}: {_first_line(error)}") from error

    def _container(self) -> Any:
        account_url, container, _, query = _parts(self.url)
        key = (account_url, container, query, self.connection_string)
        if key not in _containers:
            _containers[key] = _open(*key)
        return _containers[key]


_containers: dict[tuple[str, str, str, str], Any] = {}
"""Of this process: a client keeps its connections."""


def _open(account_url: str, container: str, query: str, connection_string: str) -> Any:
    from azure.storage.blob import ContainerClient

    if connection_string:
        return ContainerClient.from_connection_string(connection_string, container)
    if query:  # a shared access signature
        return ContainerClient.from_container_url(f"{account_url}/{container}?{query}")
    from azure.identity import DefaultAzureCredential

    return ContainerClient(account_url, container, credential=DefaultAzureCredential())


def _parts(url: str) -> tuple[str, str, str, str]:
    """Account URL, container, prefix and query. An emulator has its account in the path."""
    split = urlsplit(url)
    segments = [unquote(segment) for segment in split.path.split("/") if segment]
    account_url = f"{split.scheme}://{split.netloc}"
    if ".blob." not in split.netloc and segments:
        account_url += f"/{segments.pop(0)}"
    if not segments:
        raise BadInput(f"--input {url.partition('?')[0]}: names no container")
    prefix = "/".join(segments[1:])
    return account_url, segments[0], prefix, split.query


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


class ClusterFiles:
    """Files that Spark itself reaches, such as abfss:// on a cluster, by its own connectors.

    Spark lists, splits, unpacks and reads; tasks get lines, not ranges of bytes."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self._root = root

    @property
    def name(self) -> str:
        return self._root

    def files(self) -> list[SourceFile]:
        """In order of paths. Raises BadInput."""
        listed = self._spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        try:
            found = listed.load(self._root).select("path", "length").collect()
        except Exception as error:  # the JVM's
            raise BadInput(f"--input {self._root}: {reason_of(error)}") from error
        files = [SourceFile(plain_path(row.path), row.length) for row in found]
        return sorted((f for f in files if is_export(f.path)), key=lambda file: file.path)

    def read(self, path: str, start: int, end: int) -> bytes:
        raise NotImplementedError("Spark reads these files itself")

    def lines(self, files: Sequence[SourceFile]) -> DataFrame:
        """Columns path and line, which is binary."""
        from pyspark.sql import functions as F

        read = self._spark.read.option("lineSep", "\n").option("recursiveFileLookup", "true")
        text = read.text([file.path for file in files])
        return text.select(
            F.col("_metadata.file_path").alias("path"), F.col("value").cast("binary").alias("line")
        )


def plain_path(path: str) -> str:
    """As Spark tells it beside a line: encoded as a URL."""
    return unquote(path)


def reason_of(error: Exception) -> str:
    """What the JVM said first."""
    java = getattr(error, "java_exception", None)
    text = java.toString() if java is not None else str(error)
    first: str = text.splitlines()[0]
    return first.removeprefix("java.io.FileNotFoundException: ")


def source_of(
    location: str, spark: Callable[[], SparkSession], connection_string: str = ""
) -> Source:
    """What a location means. Raises BadInput."""
    scheme = location.partition("://")[0].lower() if "://" in location else ""
    if scheme in ("http", "https"):
        return AzureBlobs(location, connection_string)
    if scheme not in ("", "file"):
        return ClusterFiles(spark(), location)
    return LocalFiles(local_path(location))


def local_path(location: str) -> str:
    return unquote(urlsplit(location).path) if location.startswith("file:") else location


def blocks_of(source: Source, chunk: Chunk) -> Iterator[Lines]:
    """The chunk's lines in pieces of some megabytes, each of whole lines without the last end.

    A line belongs to the chunk that it begins in. What is packed comes unpacked.
    """
    packed = chunk.start == 0 and source.read(chunk.file.path, 0, 2) == GZIP_MAGIC
    if packed or not chunk.file.splittable:
        if rest := (yield from _whole_lines(_unpacked(source, chunk.file))):
            yield rest
    elif chunk.file.size_bytes and not _is_packed_piece(source, chunk):
        yield from _of_range(source, chunk)


def _is_packed_piece(source: Source, chunk: Chunk) -> bool:
    """A later piece of a file that is packed and not named so: the first one has read it all."""
    return chunk.start > 0 and source.read(chunk.file.path, 0, 2) == GZIP_MAGIC


def _of_range(source: Source, chunk: Chunk) -> Iterator[Lines]:
    path, begin = chunk.file.path, max(chunk.start - 1, 0)
    pieces = (
        source.read(path, start, min(start + READ_BYTES, chunk.end))
        for start in range(begin, chunk.end, READ_BYTES)
    )
    lines = _from_next_line(pieces) if chunk.start > 0 else pieces
    if rest := (yield from _whole_lines(lines)):
        yield rest + _line_end(source, chunk.file, chunk.end)


def _line_end(source: Source, file: SourceFile, at: int) -> bytes:
    """What is left of the line that goes on behind a chunk."""
    parts = []
    for start in range(at, file.size_bytes, LINE_END_BYTES):
        data = source.read(file.path, start, min(start + LINE_END_BYTES, file.size_bytes))
        before, newline, _ = data.partition(b"\n")
        parts.append(before)
        if newline:
            break
    return b"".join(parts)


def _from_next_line(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Without the rest of a line that an earlier chunk began."""
    for piece in pieces:
        _, newline, rest = piece.partition(b"\n")
        if newline:
            yield rest
            yield from pieces


def _whole_lines(pieces: Iterable[bytes]) -> Generator[Lines, None, bytes]:
    """Only what two pieces share is copied. Returns what is left behind the last end of a line."""
    begun: list[bytes] = []
    for piece in pieces:
        first, last = piece.find(b"\n"), piece.rfind(b"\n")
        if last < 0:
            begun.append(piece)
            continue
        start = 0
        if begun:
            yield b"".join([*begun, piece[:first]])
            start = first + 1
        if start < last:
            yield memoryview(piece)[start:last]
        begun = [piece[last + 1 :]] if last + 1 < len(piece) else []
    return b"".join(begun)


def _unpacked(source: Source, file: SourceFile) -> Iterator[bytes]:
    """A damaged end leaves a line that is none, so that it is quarantined and counted."""
    length = 0
    member = zlib.decompressobj(GZIP)
    try:
        for start in range(0, file.size_bytes, PACKED_BYTES):
            packed = source.read(file.path, start, min(start + PACKED_BYTES, file.size_bytes))
            while packed:
                if member.eof:  # packed files may be put one behind the other
                    member = zlib.decompressobj(GZIP)
                data = member.decompress(packed)
                length += len(data)
                yield data
                packed = member.unused_data
        problem = "" if member.eof else "its end is missing"
    except zlib.error as error:
        problem = str(error)
    if problem:
        yield f"\ndamaged gzip behind byte {length} of the text: {problem}".encode()
