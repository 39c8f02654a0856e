"""HTTP transport of all Azure clients. The transport keeps the time of the server's responses, and
can connect to local stand-ins.
"""

from __future__ import annotations

from contextvars import ContextVar
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from azure.core.pipeline.transport import AioHttpTransport

_server_time: ContextVar[datetime | None] = ContextVar("server_time", default=None)

CONNECT_SECONDS = 20.0
READ_SECONDS = 60.0
"""Seconds that a client waits for a service that sends nothing. This is the default of the storage
clients; the default of azure-core, 300 s, is as long as a function may run.
"""

STORAGE_RETRIES = {
    "retry_total": 2,
    "initial_backoff": 0.2,
    "increment_base": 1,
    "random_jitter_range": 0,
}
"""Options of the clients of blobs and queues, in seconds. Their own defaults are waits of 15 s and
more, also after a failed login: a reading would come too late, and a partition would stand still.
"""

LOOPBACK_HOSTS = ("127.0.0.1", "localhost")


def server_time() -> datetime:
    """The ``Date`` header of the last response that this task received, to the second.

    All instances of the app thereby use one clock: each reads the state together with the time of
    the response.
    """
    time = _server_time.get()
    assert time is not None, "this task has not received a response yet"
    return time


def is_loopback(url: str) -> bool:
    return urlsplit(url if "//" in url else f"//{url}").hostname in LOOPBACK_HOSTS


class ServerTimeTransport(AioHttpTransport):  # type: ignore[misc]  # azure-core exports it lazily
    """Keeps the ``Date`` header of each response for the task that sent the request.

    It reads the proxy settings from the environment only once. By default, the client reads them
    for each request in a thread, which takes a third of the cost of a request.
    """

    def __init__(self) -> None:
        super().__init__(
            use_env_settings=bool(getproxies()),
            connection_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
        )

    async def send(self, request: Any, **kwargs: Any) -> Any:
        response = await super().send(request, **kwargs)
        date = response.headers.get("Date")
        if date:
            _server_time.set(parsedate_to_datetime(date).astimezone(UTC))
        return response


class LoopbackTransport(ServerTimeTransport):
    """Uses plain HTTP for loopback addresses, even if the client insists on HTTPS.

    Requests to any other address are sent unchanged.
    """

    async def send(self, request: Any, **kwargs: Any) -> Any:
        url = request.url
        if is_loopback(url):
            request.url = url.replace("https://", "http://", 1)
        try:
            return await super().send(request, **kwargs)
        finally:
            request.url = url  # before a retry, the client's policies require https again


def transport_for(url: str) -> AioHttpTransport:
    """A new transport for a service at ``url``."""
    return LoopbackTransport() if is_loopback(url) else ServerTimeTransport()
