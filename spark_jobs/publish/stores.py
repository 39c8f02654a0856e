"""Output folders: a local one, or what Spark's Hadoop file systems reach (abfss and others)."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from spark_jobs.errors import BadOutput
from spark_jobs.read.sources import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Store(Protocol):
    """Files below the output folder; names have ``/`` between their parts."""

    def url(self, name: str) -> str:
        """As Spark reads and writes it."""
        ...

    def names(self, folder: str) -> list[str]:
        """Of a folder's children; none where there is no such folder."""
        ...

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, content: bytes) -> None:
        """All or nothing; replaces what is there."""
        ...

    def create(self, name: str, content: bytes) -> bool:
        """All or nothing; False where it exists already: of two at once only one is told True."""
        ...

    def delete(self, name: str) -> None:
        """A file, or a folder with all in it; nothing happens where it is not there."""
        ...


@dataclass(frozen=True, slots=True)
class LocalStore:
    root: Path

    def url(self, name: str) -> str:
        return (self.root / name).resolve().as_uri()

    def names(self, folder: str) -> list[str]:
        path = self.root / folder
        return sorted(child.name for child in path.iterdir()) if path.is_dir() else []

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        temporary = self._temporary(name, content)
        temporary.replace(self.root / name)

    def create(self, name: str, content: bytes) -> bool:
        temporary = self._temporary(name, content)
        try:
            os.link(temporary, self.root / name)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def delete(self, name: str) -> None:
        path = self.root / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def _temporary(self, name: str, content: bytes) -> Path:
        path = self.root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
            temporary.write_bytes(content)
        except OSError as error:
            raise BadOutput(f"--output {error.filename}: {error.strerror}") from error
        return temporary


class HadoopStore:
    """By the file system of Spark's own JVM, with the credentials that the cluster has.

    Renaming onto an existing file fails on ABFS with a hierarchical namespace and on HDFS.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        try:
            context = spark.sparkContext
        except Exception as error:  # PySparkAttributeError, which not all versions have
            raise BadOutput(
                f"--output {root}: cannot be written by Spark Connect, which creates no file only"
                " once: name a folder that client and cluster share"
            ) from error
        self._jvm: Any = context._jvm
        self._root = root.rstrip("/")
        configuration = context._jsc.hadoopConfiguration()
        self._fs = self._path("").getFileSystem(configuration)

    def url(self, name: str) -> str:
        return f"{self._root}/{name}"

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        if not self._fs.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._fs.listStatus(path))

    def read(self, name: str) -> bytes:
        stream = self._fs.open(self._path(name))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, name: str, content: bytes) -> None:
        stream = self._fs.create(self._path(name), True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()

    def create(self, name: str, content: bytes) -> bool:
        temporary = f"{name}.{uuid.uuid4().hex}.tmp"
        self.write(temporary, content)
        if not self._fs.exists(self._path(name)) and self._fs.rename(
            self._path(temporary), self._path(name)
        ):
            return True
        self.delete(temporary)
        return False

    def delete(self, name: str) -> None:
        self._fs.delete(self._path(name), True)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.url(name) if name else self._root)


def store_of(location: str, spark: Callable[[], SparkSession]) -> Store:
    """Raises BadOutput."""
    scheme = urlsplit(location).scheme if "://" in location else ""
    if scheme in ("http", "https"):
        raise BadOutput(
            f"--output {location}: must be a local folder or a path of the cluster's file systems,"
            " such as abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/trends"
        )
    if scheme in ("", "file"):
        root = Path(local_path(location))
        if root.exists() and not root.is_dir():
            raise BadOutput(f"--output {location}: is a file; name a folder")
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadOutput(f"--output {location}: {error.strerror}") from error
        if not os.access(root, os.W_OK | os.X_OK):
            raise BadOutput(f"--output {location}: no permission to write there")
        return LocalStore(root)
    return HadoopStore(spark(), location)
