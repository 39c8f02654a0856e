"""HTTP transport of all Azure clients. It keeps the time of the server's responses, refuses answers
that do not come from Azure, and can connect to local stand-ins."""

from __future__ import annotations

import re
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from azure.core.exceptions import ServiceResponseError
from azure.core.pipeline.transport import AioHttpTransport

_server_time: ContextVar[datetime | None] = ContextVar("server_time", default=None)

CONNECT_SECONDS = 20.0
READ_SECONDS = 60.0
"""The wait for a service that sends nothing. The default of azure-core, 300 s, is as long as a
function may run."""

STORAGE_RETRIES = {
    "retry_total": 2,
    "initial_backoff": 0.2,
    "increment_base": 1,
    "random_jitter_range": 0,
}
"""Options of the clients of blobs and queues, in seconds. By default they wait 15 s and more."""

LOOPBACK_HOSTS = ("127.0.0.1", "localhost")

WAIT_HEADERS = {"retry-after-ms": 0.001, "x-ms-retry-after-ms": 0.001, "retry-after": 1.0}
"""The headers with which Azure says how long to wait, and their units in seconds."""
WAIT = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
WAIT_SECONDS_MAX = 86_400.0

FORMS = ("json", "xml")
PAGE = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?<(?:!doctype\s+)?html\b", re.IGNORECASE
)
PAGE_START_BYTES = 200


class ForeignAnswer(ServiceResponseError):
    """Something else, such as a proxy, answered in place of Azure."""

    def __init__(self, response: Any) -> None:
        kind = _content_type(response) or "none"
        super().__init__(
            f"the answer of {urlsplit(response.request.url).hostname} is not what Azure sends "
            f"(status {response.status_code}, content type {kind}), such as a proxy's page"
        )
        self.response = response


def server_time() -> datetime:
    """The ``Date`` header of the last response that this task received, to the second. So all
    instances of the app use one clock."""
    time = _server_time.get()
    assert time is not None, "this task has not received a response yet"
    return time


def retry_after_seconds(response: Any) -> float | None:
    """How long to wait before the next request, as the headers of a response say, or None. A date
    is compared with the server's clock. A wait above WAIT_SECONDS_MAX is ignored."""
    given = getattr(response, "headers", None) or {}
    headers = {str(name).lower(): str(text).strip() for name, text in given.items()}
    for name, unit in WAIT_HEADERS.items():
        text = headers.get(name, "")
        if WAIT.fullmatch(text):
            seconds = float(text) * unit
        elif name == "retry-after" and (until := http_time(text)):
            now = http_time(headers.get("date", "")) or datetime.now(UTC)  # noqa: TID251  no other
            seconds = max((until - now).total_seconds(), 0.0)
        else:
            continue
        if seconds <= WAIT_SECONDS_MAX:
            return seconds
    return None


def is_loopback(url: str) -> bool:
    return urlsplit(url if "//" in url else f"//{url}").hostname in LOOPBACK_HOSTS


class ServerTimeTransport(AioHttpTransport):  # type: ignore[misc]  # azure-core exports it lazily
    """Keeps the ``Date`` header of each response for the task that sent the request. Raises
    ForeignAnswer for a response that does not come from Azure.

    It reads the proxy settings from the environment once; the client would read them for each
    request.
    """

    def __init__(self) -> None:
        super().__init__(
            use_env_settings=bool(getproxies()),
            connection_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
        )

    async def send(self, request: Any, **kwargs: Any) -> Any:
        response = await super().send(request, **kwargs)
        if _is_foreign(request, response, has_body=not kwargs.get("stream")):
            raise ForeignAnswer(response)
        if date := http_time(response.headers.get("Date", "")):
            _server_time.set(date)
        return response


class LoopbackTransport(ServerTimeTransport):
    """Uses plain HTTP for loopback addresses, even if the client insists on HTTPS."""

    async def send(self, request: Any, **kwargs: Any) -> Any:
        url = request.url
        if is_loopback(url):
            request.url = url.replace("https://", "http://", 1)
        try:
            return await super().send(request, **kwargs)
        finally:
            request.url = url  # before a retry, the client's policies require https again


def transport_for(url: str) -> AioHttpTransport:
    return LoopbackTransport() if is_loopback(url) else ServerTimeTransport()


def http_time(text: str) -> datetime | None:
    """The time in a header such as ``Date``; None if it is none."""
    with suppress(ValueError, TypeError, OverflowError):
        return parsedate_to_datetime(text).astimezone(UTC)
    return None


def _is_foreign(request: Any, response: Any, *, has_body: bool) -> bool:
    """Whether a response is a web page, is empty, or has another form than was asked for. With a
    header of Azure it comes from Azure in any form: a blob may be a web page."""
    if any(name.lower().startswith("x-ms-") for name in response.headers):
        return False
    if "x-ms-version" in request.headers and response.status_code == 200:
        return True  # storage answers with its version, too
    kind = _content_type(response)
    body = _body(response) if has_body else b"-"
    if "html" in kind or PAGE.match(body[:PAGE_START_BYTES]):
        return True
    if response.status_code != 200 or request.method not in ("GET", "POST", "PUT"):
        return False
    accepted = request.headers.get("Accept", "").lower()
    forms = [form for form in FORMS if form in accepted] or FORMS
    return not body or (bool(kind) and not any(form in kind for form in forms))


def _content_type(response: Any) -> str:
    return str(response.headers.get("Content-Type", "")).partition(";")[0].strip().lower()


def _body(response: Any) -> bytes:
    body = response.content if hasattr(response, "content") else response.body()
    return bytes(body)
