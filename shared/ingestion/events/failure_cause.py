"""Whether a failure is the event's fault. Only what is may become a dead letter."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from itertools import islice

from shared.ingestion.errors import (
    BadEvent,
    BreakerOpen,
    DependencyDown,
    HubUnavailable,
    OutOfTime,
    StoreUnavailable,
    TransientFailure,
)

Outages = tuple[type[Exception], ...]

HOLDING = (DependencyDown, StoreUnavailable, HubUnavailable, BreakerOpen, OutOfTime)

ERRORS_MAX = 100
"""Of a chain or group of errors, so many are looked at."""

OUTAGES = frozenset(
    {
        "aiohttp.ClientConnectionError",
        "aiohttp.ClientPayloadError",
        "asyncio.IncompleteReadError",
        "asyncpg.InterfaceError",
        "asyncpg.PostgresConnectionError",
        "azure.ConnectError",
        "azure.ConnectionLostError",
        "azure.OperationTimeoutError",
        "azure.ServiceBusCommunicationError",
        "azure.ServiceBusConnectionError",
        "azure.ServiceBusServerBusyError",
        "azure.ServiceRequestError",
        "azure.ServiceResponseError",
        "botocore.HTTPClientError",
        "http.IncompleteRead",
        "httpcore.NetworkError",
        "httpcore.RemoteProtocolError",
        "httpcore.TimeoutException",
        "httpx.NetworkError",
        "httpx.RemoteProtocolError",
        "httpx.TimeoutException",
        "psycopg2.InterfaceError",
        "pymongo.ConnectionFailure",
        "redis.ConnectionError",
        "redis.TimeoutError",
        "requests.ChunkedEncodingError",
        "requests.ConnectionError",
        "requests.Timeout",
        "socket.gaierror",
        "socket.herror",
        "sqlalchemy.DisconnectionError",
        "sqlalchemy.TimeoutError",
        "ssl.SSLError",
        "urllib3.ProtocolError",
        "urllib3.TimeoutError",
    }
)
"""Errors of libraries that say that something was out of reach, by top-level package and class.
Names, so that no library has to be installed, and no module inside a library may move."""

OPERATIONAL = "OperationalError"
"""Each database driver's error for what the program does not control (PEP 249), and that of
SQLAlchemy, Django and Peewee, which wrap it."""

UNREACHABLE = frozenset(
    {
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENETRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENOTCONN,
        errno.ENOBUFS,
    }
)
BUSY_STATUSES = frozenset({408, 429, 502, 503, 504})
"""HTTP: whoever answers cannot serve anybody now."""
SERVER_ERROR = 500
"""HTTP: the server failed, perhaps on this very request."""


class FailureCause(StrEnum):
    EVENT = "event"  # it fails however often it is tried: a dead letter now
    TRANSIENT = "transient"  # it may pass: tried again, a dead letter if it fails to the end
    UNREACHABLE = "unreachable"  # tried again, and the partition held if that does not help
    DEPENDENCY = "dependency"  # known to be down: the partition is held now

    @property
    def is_retryable(self) -> bool:
        return self in (FailureCause.TRANSIENT, FailureCause.UNREACHABLE)

    @property
    def holds_partition(self) -> bool:
        """Where no attempt succeeds, the partition is held rather than the event given up."""
        return self in (FailureCause.UNREACHABLE, FailureCause.DEPENDENCY)


def classify(error: Exception, outages: Outages = ()) -> FailureCause:
    """Who is to blame, by the error or else by what led to it, the nearest first.

    ``outages`` are classes that a user names besides. An error that is unknown all the way down is
    the event's: it would hold the partition for ever.
    """
    if isinstance(error, BadEvent):
        return FailureCause.EVENT
    known = (_known(each, outages) for each in _chain(error))
    return next((found for found in known if found is not None), FailureCause.EVENT)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, its causes and contexts, also hidden ones, and the members of groups; each once.

    A context that ``raise … from None`` hides still tells what was down.
    """
    waiting, seen = deque([error]), set[int]()
    while waiting and len(seen) < ERRORS_MAX:
        each = waiting.popleft()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        led = [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            led += islice(each.exceptions, ERRORS_MAX)
        waiting.extend([found for found in led if found is not None])


def _known(error: BaseException, outages: Outages) -> FailureCause | None:
    """What the error says by itself; None where it is unknown."""
    if isinstance(error, HOLDING):
        return FailureCause.DEPENDENCY
    if isinstance(error, TransientFailure):
        return FailureCause.TRANSIENT
    if isinstance(error, (ConnectionError, TimeoutError, *outages)) or _is_outage(error):
        return FailureCause.UNREACHABLE
    return _by_status(error)


def _is_outage(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in UNREACHABLE:
        return True
    if getattr(error, "connection_invalidated", False) is True:  # SQLAlchemy knows its drivers
        return True
    return any(_is_named(each) for each in type(error).__mro__)


def _is_named(of: type) -> bool:
    package = of.__module__.partition(".")[0]
    return of.__name__ == OPERATIONAL or f"{package}.{of.__name__}" in OUTAGES


def _by_status(error: BaseException) -> FailureCause | None:
    """What an HTTP status means, of an error that carries one as HTTP clients do."""
    response = getattr(error, "response", None)
    for holder in (error, response):
        for name in ("status_code", "status"):
            status = getattr(holder, name, None)
            if status == SERVER_ERROR:
                return FailureCause.TRANSIENT
            if isinstance(status, int) and status in BUSY_STATUSES:
                return FailureCause.UNREACHABLE
    return None
