"""A blob lease that only one host of an app can hold, as the real host's singleton listeners use.

Source: `SingletonManager` and `BlobLeaseDistributedLockManager` of the WebJobs SDK.
"""

import asyncio
import time
from contextlib import suppress

from azure.core.exceptions import (
    AzureError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceRequestTimeoutError,
)
from azure.storage.blob.aio import BlobLeaseClient

from local.functions_host.connections import Connection
from local.functions_host.host_blobs import HostBlobs
from local.functions_host.waiting import stops_within

REFUSED_SECONDS_MAX = 26.0
"""The real host ends when storage has refused connections for about this long."""

_RETRY_SECONDS = 1.0


class StorageRefused(Exception):
    """Storage has refused connections for so long that the host ends."""


class ListenerLock:
    """The lease on one blob, for a period of `seconds`. After a crash, it stays taken until its
    period has passed.
    """

    def __init__(self, blobs: HostBlobs, connection: Connection, path: str, seconds: int) -> None:
        self._blobs = blobs
        self._connection = connection
        self._blob = blobs.client(connection, path)
        self._period_seconds = seconds
        self._lease: BlobLeaseClient | None = None
        self._refused_since: float | None = None

    async def take(self) -> bool:
        """Try once to take the lease. Returns False if another host holds it.

        Raises AzureError if storage fails, and StorageRefused if it has refused for too long.
        """
        try:
            self._lease = await self._acquired()
        except AzureError as error:
            self._note(error)
            raise
        self._refused_since = None
        return self._lease is not None

    async def hold(self, stopping: asyncio.Event) -> None:
        """Renew the lease at half its period, until the host stops or another host has taken it.

        A failed renewal does not end it. Raises StorageRefused.
        """
        assert self._lease is not None, "take() has not succeeded"
        wait = self._period_seconds / 2
        while not await stops_within(stopping, wait):
            try:
                await self._lease.renew()
            except HttpResponseError as error:
                if error.status_code in (404, 409, 412):
                    return
                wait = _RETRY_SECONDS
            except AzureError as error:
                self._note(error)
                wait = _RETRY_SECONDS
            else:
                self._refused_since = None
                wait = self._period_seconds / 2

    async def release(self) -> None:
        """Let another host take the lease at once."""
        lease, self._lease = self._lease, None
        if lease is not None:
            with suppress(AzureError):  # Then the lease expires after its period.
                await lease.release()

    async def _acquired(self) -> BlobLeaseClient | None:
        try:
            return await self._try_once()
        except ResourceNotFoundError:
            await self._create()
        return await self._try_once()

    async def _try_once(self) -> BlobLeaseClient | None:
        try:
            return await self._blob.acquire_lease(lease_duration=self._period_seconds)
        except ResourceExistsError:  # 409: another host holds it
            return None

    async def _create(self) -> None:
        await self._blobs.create_container(self._connection)
        with suppress(ResourceExistsError):
            await self._blob.upload_blob(b"", overwrite=False)

    def _note(self, error: AzureError) -> None:
        """Remember since when storage has refused. A time-out is no refusal."""
        refused = isinstance(error, ServiceRequestError)
        if not refused or isinstance(error, ServiceRequestTimeoutError):
            self._refused_since = None
            return
        now = time.monotonic()
        self._refused_since = now if self._refused_since is None else self._refused_since
        if now - self._refused_since >= REFUSED_SECONDS_MAX:
            raise StorageRefused(
                f"storage has refused connections for {REFUSED_SECONDS_MAX:g} s: {error}. "
                "Start the storage (Azurite on this machine), then the host"
            ) from error
