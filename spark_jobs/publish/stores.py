"""Output folders: a local folder, or a folder in a storage account."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import Protocol

from shared.sampling.blob_paths import AZURE
from spark_jobs.errors import JobError
from spark_jobs.read.sources import local_path, scheme_of

PATTERN = frozenset("*?[]{}\\")
"""Spark takes a path with any of these for a pattern."""
LOCAL = "file://"


class Store(Protocol):
    """Files below the output folder. Names have ``/`` between their parts.

    All methods raise JobError if the folder cannot be reached or written.
    """

    def url(self, name: str) -> str:
        """The URL with which Spark reads and writes the file or folder."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names of a folder's children; empty if there is no such folder."""
        ...

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Writes the file completely or not at all, and replaces an earlier file."""

    def create(self, name: str, content: bytes) -> bool:
        """Writes the file completely or not at all. Returns False if it exists: of two concurrent
        calls only one returns True.
        """
        ...

    def delete(self, name: str) -> None:
        """Deletes a file, or a folder with its contents, if it exists."""


@contextmanager
def _errors() -> Iterator[None]:
    """Raises JobError for an error of the file system, and FileNotFoundError as it is."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise JobError(f"--output {error.filename}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A folder of a file system with hard links."""

    root: Path

    def url(self, name: str) -> str:
        return f"file://{(self.root / name).resolve()}"  # Spark decodes no %20

    @_errors()
    def names(self, folder: str) -> list[str]:
        path = self.root / folder
        return sorted(child.name for child in path.iterdir()) if path.is_dir() else []

    @_errors()
    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    @_errors()
    def write(self, name: str, content: bytes) -> None:
        self._temporary(name, content).replace(self.root / name)

    @_errors()
    def create(self, name: str, content: bytes) -> bool:
        """A network file system may repeat the request, and then finds the file that it made."""
        temporary = self._temporary(name, content)
        try:
            os.link(temporary, self.root / name)
        except FileExistsError:
            return self.read(name) == content
        finally:
            with suppress(OSError):  # the file has been created or not, whatever remains
                temporary.unlink()
        return True

    @_errors()
    def delete(self, name: str) -> None:
        path = self.root / name
        with suppress(FileNotFoundError):  # another run deletes it, too
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _temporary(self, name: str, content: bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        temporary.write_bytes(content)
        return temporary


def marker_beside(folder: str) -> str:
    """Creates a file by which tasks recognize the output folder, if it is one of a file system. It
    is deleted with the folders of old runs.

    On a machine that does not share that folder, Spark would write into another one of the same
    name, and report success.
    """
    if not folder.startswith(LOCAL):
        return ""
    marker = Path(f"{folder.removeprefix(LOCAL)}.started")
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    return str(marker)


def require(marker: str) -> None:
    """Tasks call it before they write. An empty name requires nothing. Raises JobError."""
    if marker and not Path(marker).exists():
        raise JobError(
            f"--output {Path(marker).parents[1]}: {gethostname()} runs tasks and does not share"
            " this folder; name one that all machines of the cluster share, or one at abfss://"
        )


def store_of(location: str, connection_string: str = "") -> Store:
    """Returns the store of an ``--output``. Raises JobError."""
    scheme = scheme_of(location)
    if scheme in AZURE:
        from spark_jobs.azure_blobs import BlobStore

        return BlobStore.of(location, connection_string)
    if scheme != "file":
        raise JobError(
            f"--output {location}: must be a local folder or a folder of a storage account, such as"
            " abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/trends"
        )
    root = Path(local_path("--output", location))
    if not PATTERN.isdisjoint(str(root.resolve())):
        raise JobError(f"--output {location}: Spark cannot read folders with any of *?[]{{}}\\")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JobError(f"--output {location}: {error.strerror}; name a folder") from error
    if not os.access(root, os.W_OK | os.X_OK):
        raise JobError(f"--output {location}: no permission to write there")
    return LocalStore(root)
