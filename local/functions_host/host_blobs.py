"""The blobs in which hosts of one app keep the locks and the schedules of their timers."""

import hashlib
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from azure.core.exceptions import ResourceExistsError
from azure.core.pipeline.transport import AioHttpTransport
from azure.storage.blob.aio import BlobClient, ContainerClient

from local.functions_host.connections import Connection, Identities

CONTAINER = "azure-webjobs-hosts"
HOST_ID = "AzureFunctionsWebHost__hostid"
"""The setting that overrides the ID of the host, as in the real host."""

REQUEST_SECONDS_MAX = 10
_ID_CHARACTERS = 32


def host_id(settings: Mapping[str, str], app_dir: Path) -> str:
    """The ID that all hosts of one app on this machine share."""
    if given := settings.get(HOST_ID):
        return given
    machine = re.sub(r"[^a-z0-9]", "", socket.gethostname().lower())
    folder = hashlib.sha256(str(app_dir).encode()).hexdigest()[:10]
    return f"{machine[: _ID_CHARACTERS - 11]}-{folder}"


def container_client(
    connection: Connection, container: str, identities: Identities, **options: Any
) -> ContainerClient:
    if string := connection.connection_string:
        return ContainerClient.from_connection_string(string, container, **options)
    credential = identities.credential(connection)
    return ContainerClient(connection.storage_url("blob"), container, credential, **options)


class HostBlobs:
    """Blob clients by connection and path. They do not retry."""

    def __init__(self, identities: Identities | None = None) -> None:
        self._identities = identities or Identities()
        self._containers: dict[Connection, ContainerClient] = {}

    def client(self, connection: Connection, path: str) -> BlobClient:
        """The client of a blob. Neither the blob nor the container need exist."""
        if connection not in self._containers:
            options: dict[str, Any] = {
                "retry_total": 0,
                "transport": AioHttpTransport(
                    connection_timeout=REQUEST_SECONDS_MAX,
                    read_timeout=REQUEST_SECONDS_MAX,
                    use_env_settings=False,
                ),
            }
            self._containers[connection] = container_client(
                connection, CONTAINER, self._identities, **options
            )
        return self._containers[connection].get_blob_client(path)

    async def create_container(self, connection: Connection) -> None:
        """Create the container if it is missing."""
        with suppress(ResourceExistsError):
            await self._containers[connection].create_container()

    async def close(self) -> None:
        """Close every connection."""
        for container in self._containers.values():
            await container.close()
        self._containers.clear()
