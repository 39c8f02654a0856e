"""Says what an error means, for handlers, stores and redriving: it blames the input, it is known as
an outage, or it may be either, so the event is retried and ``doubt`` decides."""

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
    HandlerTimedOut,
    HubUnavailable,
    OutOfTime,
    StoreUnavailable,
    TransientFailure,
)

HOLDING = (DependencyDown, StoreUnavailable, HubUnavailable, BreakerOpen, OutOfTime)

ERRORS_MAX = 100
"""How many errors of a chain or group are examined."""

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
"""Errors of libraries that mean that a service could not be reached, by top-level package and
class, so that the libraries need not be installed."""

OPERATIONAL = "OperationalError"
"""The error class of database drivers for problems outside of the program's control (PEP 249)."""

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
"""HTTP statuses of a server that cannot serve any request now."""
REFUSING = frozenset({"DataError", "IntegrityError"})
"""The error classes of each database driver for a value that the database refuses (PEP 249)."""
REFUSING_STATES = ("22", "23", "54")
"""The classes of SQLSTATE for such a value: invalid, against a constraint, or above a limit."""


class FailureCause(StrEnum):
    """What caused a failure."""

    EVENT = "event"  # every attempt would fail, so the event is dead-lettered at once
    TRANSIENT = "transient"  # may pass, so the event is retried; then other calls decide
    UNREACHABLE = "unreachable"  # the event is retried; the partition is held if all attempts fail
    DEPENDENCY = "dependency"  # known to be down: the partition is held at once

    @property
    def is_retryable(self) -> bool:
        return self in (FailureCause.TRANSIENT, FailureCause.UNREACHABLE)

    @property
    def holds_partition(self) -> bool:
        """Whether the partition is held, and nothing is dead-lettered, if no attempt succeeds."""
        return self in (FailureCause.UNREACHABLE, FailureCause.DEPENDENCY)


def classify(error: Exception) -> FailureCause:
    """The cause of a failure, by the nearest known error in its chain; otherwise it may pass."""
    causes = (_known(each) for each in _chain(error))
    return next((cause for cause in causes if cause is not None), FailureCause.TRANSIENT)


def is_worth_retrying(error: Exception) -> bool:
    """Whether another attempt is worth its time."""
    return classify(error).is_retryable and not isinstance(error, HandlerTimedOut)


def blames_input(error: BaseException) -> bool:
    """Whether the error says that the input is at fault, so that every attempt would fail."""
    if isinstance(error, (BadEvent, UnicodeDecodeError)):
        return True
    for each in (error, getattr(error, "orig", None)):  # SQLAlchemy keeps the driver's error there
        state = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if str(state or "").startswith(REFUSING_STATES):
            return True
    return any(kind.__name__ in REFUSING for kind in type(error).__mro__)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, its causes, contexts (also hidden ones) and the members of groups, each once."""
    waiting, seen = deque([error]), set[int]()
    while waiting and len(seen) < ERRORS_MAX:
        each = waiting.popleft()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        origins = [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            origins += islice(each.exceptions, ERRORS_MAX)
        waiting.extend([origin for origin in origins if origin is not None])


def _known(error: BaseException) -> FailureCause | None:
    if blames_input(error):
        return FailureCause.EVENT
    if isinstance(error, HOLDING):
        return FailureCause.DEPENDENCY
    if isinstance(error, TransientFailure):
        return FailureCause.TRANSIENT
    if isinstance(error, (ConnectionError, TimeoutError)) or _is_outage(error):
        return FailureCause.UNREACHABLE
    return _by_status(error)


def _is_outage(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in UNREACHABLE:
        return True
    # SQLAlchemy knows which errors of its drivers mean a lost connection.
    if getattr(error, "connection_invalidated", False) is True:
        return True
    return any(_is_named(each) for each in type(error).__mro__)


def _is_named(kind: type) -> bool:
    package = kind.__module__.partition(".")[0]
    return kind.__name__ == OPERATIONAL or f"{package}.{kind.__name__}" in OUTAGES


def _by_status(error: BaseException) -> FailureCause | None:
    response = getattr(error, "response", None)
    for holder in (error, response):
        for name in ("status_code", "status"):
            status = getattr(holder, name, None)
            if isinstance(status, int) and status in BUSY_STATUSES:
                return FailureCause.UNREACHABLE
    return None
