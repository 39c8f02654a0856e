"""Finds out when the telemetry of each date was last written, in a storage account or a folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from azure.core.exceptions import AzureError
from azure.storage.blob import BlobProperties
from azure.storage.blob.aio import ContainerClient

from shared.azure.credentials import credential_for
from shared.azure.refusals import Access
from shared.azure.transport import STORAGE_RETRIES, ServerTimeTransport
from shared.sampling.blob_paths import container_of, date_of, may_hold
from shared.trends.nightly.model import InputUnreadable
from shared.values.redaction import redacting
from shared.values.text import one_line

ROLE = "Storage Blob Data Reader"
Dated = tuple[date | None, datetime]
"""The date of a file, according to its path, and the time at which it was last written."""


@redacting
class StoredInputs:
    """See InputReader. A place is a folder, or an https or abfss URL, and may contain
    ``{dataset}``. A connection string is used instead of the app's identity.
    """

    def __init__(self, places: Sequence[str], connection_string: str = "") -> None:
        self._places = places
        self._connection_string = connection_string
        self._containers: dict[str, ContainerClient] = {}

    async def newest(self, dataset: str, dates: Sequence[date]) -> Mapping[date, datetime]:
        newest: dict[date, datetime] = {}
        for place in self._places:
            async for day, written in self._files(place.replace("{dataset}", dataset), dates):
                if day is not None and day in dates:
                    newest[day] = max(written, newest.get(day, written))
        return newest

    async def _files(self, place: str, dates: Sequence[date]) -> AsyncIterator[Dated]:
        if "://" not in place or place.startswith("file:"):
            folder = Path(unquote(urlsplit(place).path) if "://" in place else place)
            for file in await asyncio.to_thread(_in_folder, folder, dates):
                yield file
            return
        try:
            container, prefix = self._container(place)
            async for file in _in_container(container, prefix, dates, len(prefix)):
                yield file
        except AzureError as error:
            raise InputUnreadable(self._told(place, error)) from error

    async def close(self) -> None:
        for container in self._containers.values():
            await container.close()

    def _told(self, place: str, error: AzureError) -> str:
        setting = "AZURE_STORAGE_CONNECTION_STRING" if self._connection_string else ""
        access = Access(place, ROLE, setting, has_key=bool(self._connection_string))
        return access.refusal(error) or f"{place}: {one_line(error)}"

    def _container(self, place: str) -> tuple[ContainerClient, str]:
        account_url, name, prefix = container_of(place)
        if not (name and account_url.startswith("http")):
            raise InputUnreadable(
                f"{place}: must be a folder, or an https:// or abfss:// URL of a container"
            )
        key = f"{account_url}/{name}"
        if key not in self._containers:
            options: dict[str, Any] = {"transport": ServerTimeTransport(), **STORAGE_RETRIES}
            self._containers[key] = (
                ContainerClient.from_connection_string(self._connection_string, name, **options)
                if self._connection_string
                else ContainerClient(account_url, name, credential_for(account_url), **options)
            )
        return self._containers[key], prefix and f"{prefix}/"


async def _in_container(
    container: ContainerClient, folder: str, dates: Sequence[date], below: int
) -> AsyncIterator[Dated]:
    """The blobs in a folder and its folders, without those of other dates. Only what follows the
    first ``below`` characters of a name can be a date.
    """
    async for item in container.walk_blobs(name_starts_with=folder, delimiter="/"):
        day = date_of(item.name, below)
        if isinstance(item, BlobProperties):
            yield day, item.last_modified
        elif not may_hold(item.name, dates, below):
            continue
        elif day is None:
            async for file in _in_container(container, item.name, dates, below):
                yield file
        else:
            async for blob in container.list_blobs(name_starts_with=item.name):
                yield date_of(blob.name, below), blob.last_modified


def _in_folder(root: Path, dates: Sequence[date]) -> list[Dated]:
    try:
        if not root.is_dir():
            raise InputUnreadable(f"{root}: the folder does not exist")
        paths = ((date_of(str(path), len(str(root))), path) for path in root.rglob("*"))
        return [
            (day, datetime.fromtimestamp(path.stat().st_mtime, UTC))
            for day, path in paths
            if day in dates and path.is_file()
        ]
    except OSError as error:
        raise InputUnreadable(f"{error.filename}: {error.strerror}") from error
