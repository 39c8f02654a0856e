"""Reads exports and writes results with Azure's own blob client.

It needs no Hadoop driver to read exports. In an output folder it can create a file only if the file
does not exist yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

from azure.core.exceptions import AzureError, ResourceExistsError, ResourceNotFoundError
from azure.identity import DefaultAzureCredential
from azure.storage.blob import ContainerClient

from shared.sampling.blob_paths import container_of
from spark_jobs.errors import JobError, first_line
from spark_jobs.read.files import SourceFile


def blobs_of(url: str, connection_string: str) -> list[SourceFile]:
    """Returns the blobs at an address; see ``container_of``. Their paths are URLs. Raises
    JobError."""
    account_url, container, prefix = parts_of(url)
    root = f"{account_url}/{container}/"
    with azure_errors(f"--input {url.partition('?')[0]}"):
        client = open_container(account_url, container, urlsplit(url).query, connection_string)
        blobs = list(client.list_blobs(name_starts_with=prefix or None))
    return [SourceFile(f"{root}{blob.name}", blob.size, len(root) + len(prefix)) for blob in blobs]


def read_blob(
    locations: Iterable[str], path: str, start: int, end: int, connection_string: str
) -> bytes:
    """Reads a blob with the shared access signature of the location in which it is."""
    for url in locations:
        account_url, container, _ = parts_of(url) if "://" in url else ("", "", "")
        if path.startswith(root := f"{account_url}/{container}/"):
            break
    with azure_errors(path):
        client = open_container(account_url, container, urlsplit(url).query, connection_string)
        name = path.removeprefix(root)
        return bytes(client.download_blob(name, offset=start, length=end - start).readall())


def parts_of(location: str) -> tuple[str, str, str]:
    """Returns the account's URL, the container and the prefix of an input. Raises JobError."""
    account_url, container, prefix = container_of(location)
    if not container:
        raise JobError(
            f"--input {location.partition('?')[0]}: names no container; Azure writes one for each"
            f" table, so repeat --input, such as for {account_url}/insights-logs-appevents and"
            f" {account_url}/insights-logs-appmetrics"
        )
    return account_url, container, prefix


@cache  # a client keeps its connections
def open_container(
    account_url: str, container: str, query: str, connection_string: str
) -> ContainerClient:
    """Returns a client that uses the connection string if that names this account, otherwise the
    shared access signature in ``query``, otherwise the login. Raises JobError."""
    if connection_string:
        try:
            client = ContainerClient.from_connection_string(connection_string, container)
        except ValueError as error:
            raise JobError(f"AZURE_STORAGE_CONNECTION_STRING: {error}") from error
        if client.url.startswith(f"{account_url}/"):
            return client
    if query:
        return ContainerClient.from_container_url(f"{account_url}/{container}?{query}")
    return ContainerClient(account_url, container, credential=login())


@cache
def login() -> DefaultAzureCredential:
    """Raises JobError if no login works. Clients would try again for more than a minute."""
    credential = DefaultAzureCredential()
    with azure_errors("no login to Azure works: run `az login`, or give the cluster an identity"):
        credential.get_token("https://storage.azure.com/.default")
    return credential


@contextmanager
def azure_errors(where: str) -> Iterator[None]:
    """Raises JobError for an error of an Azure client."""
    try:
        yield
    except AzureError as error:
        raise JobError(f"{where}: {first_line(error)}") from error


@dataclass(frozen=True, slots=True)
class BlobStore:
    """``root`` is the folder's URL for Spark, ``prefix`` its path in the container."""

    container: ContainerClient
    prefix: str
    root: str

    @classmethod
    def of(cls, location: str, connection_string: str) -> BlobStore:
        """``location`` is abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX.

        Raises JobError.
        """
        account_url, name, prefix = container_of(location)
        if not name:
            raise JobError(f"--output {location}: names no container and account")
        container = open_container(account_url, name, "", connection_string)
        with azure_errors(f"--output {location}"):
            if not container.exists():
                raise JobError(f"--output {location}: there is no container {name}")
        return cls(container, prefix, location.rstrip("/"))

    def url(self, name: str) -> str:
        return f"{self.root}/{name}"

    def names(self, folder: str) -> list[str]:
        path = f"{self._path(folder)}/"
        with self._errors():
            children = self.container.walk_blobs(name_starts_with=path)
            return sorted({child.name.removeprefix(path).rstrip("/") for child in children})

    def read(self, name: str) -> bytes:
        with self._errors():
            try:
                return bytes(self.container.download_blob(self._path(name)).readall())
            except ResourceNotFoundError as error:
                raise FileNotFoundError(f"{self.root}/{name}") from error

    def write(self, name: str, content: bytes) -> None:
        with self._errors():
            self.container.upload_blob(self._path(name), content, overwrite=True)

    def create(self, name: str, content: bytes) -> bool:
        """Creates the blob. After a lost reply, the client repeats the request, and the blob that
        it then finds may be its own.
        """
        with self._errors():
            try:
                self.container.upload_blob(self._path(name), content, overwrite=False)
            except ResourceExistsError:
                return self.read(name) == content
        return True

    def delete(self, name: str) -> None:
        """Deletes a file or a folder. In a hierarchical namespace folders are blobs, too, so their
        contents must be deleted first.
        """
        path = self._path(name)
        with self._errors():
            for blob in sorted(self.container.list_blob_names(name_starts_with=path), reverse=True):
                if f"{blob}/".startswith(f"{path}/"):
                    with suppress(ResourceNotFoundError):
                        self.container.delete_blob(blob)

    def _path(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    def _errors(self) -> AbstractContextManager[None]:
        return azure_errors(f"--output {self.root}")
