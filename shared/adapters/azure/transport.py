"""HTTP transport of all Azure clients: keeps the server's time, speaks to loopback stand-ins."""

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
"""Patience with a service that sends nothing, as the storage clients have it by themselves. That of
azure-core is 300 s, as long as a function may run."""

LOOPBACK_HOSTS = ("127.0.0.1", "localhost")


def server_time() -> datetime:
    """The ``Date`` of the last answer that this task received, to the second.

    One clock for all instances of the app: whoever reads the state reads the time with it.
    """
    time = _server_time.get()
    assert time is not None, "no answer was received yet"
    return time


def is_loopback(url: str) -> bool:
    return urlsplit(url if "//" in url else f"//{url}").hostname in LOOPBACK_HOSTS


class ServerTimeTransport(AioHttpTransport):  # type: ignore[misc]  # azure-core exports it lazily
    """Remembers the ``Date`` header of each answer for the task that asked.

    The environment is asked for proxies once: the client would ask it in a thread, per request,
    which is a third of the cost of a request.
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
    """Plain http for loopback addresses, where some clients insist on https; for no others."""

    async def send(self, request: Any, **kwargs: Any) -> Any:
        url = request.url
        if is_loopback(url):
            request.url = url.replace("https://", "http://", 1)
        try:
            return await super().send(request, **kwargs)
        finally:
            request.url = url  # a retry passes the policies that insist on https again


def transport_for(url: str) -> AioHttpTransport:
    return LoopbackTransport() if is_loopback(url) else ServerTimeTransport()
