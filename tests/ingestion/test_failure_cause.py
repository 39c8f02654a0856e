"""Which errors are outages of a dependency, and which are the event's own fault."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import socket
import sqlite3
import ssl
import urllib.error

import aiohttp
import azure.core.exceptions
import azure.servicebus.exceptions
import psycopg
import pytest
import requests
import sqlalchemy.exc
import urllib3.exceptions
from hypothesis import given
from hypothesis import strategies as st

from shared.ingestion.errors import (
    BadEvent,
    BreakerOpen,
    DependencyDown,
    HubUnavailable,
    StoreUnavailable,
    TransientFailure,
)
from shared.ingestion.failure_cause import ERRORS_MAX, FailureCause, classify


def of_library(module: str, name: str, *bases: str) -> type[Exception]:
    """A class as a library that need not be installed defines it."""
    base: type[Exception] = Exception
    for each in bases:
        base = type(each, (base,), {"__module__": module})
    return type(name, (base,), {"__module__": module})


def with_state(module: str, name: str, **state: str) -> Exception:
    error = of_library(module, name)("refused")
    error.__dict__.update(state)
    return error


def disconnected() -> sqlalchemy.exc.DBAPIError:
    """The error that SQLAlchemy raises if it recognizes a driver's error as a lost connection."""
    driver = RuntimeError("08S01 communication link failure")
    return sqlalchemy.exc.DBAPIError("SELECT 1", None, driver, connection_invalidated=True)


def answered(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError("no", response=response)


class Coded(Exception):
    def __init__(self, status: object) -> None:
        self.status = status


OUTAGES: list[Exception] = [
    ConnectionResetError("reset"),
    TimeoutError("late"),
    asyncio.IncompleteReadError(b"", 3),
    socket.gaierror(-3, "Temporary failure in name resolution"),
    OSError(errno.ENETUNREACH, "Network is unreachable"),
    OSError(errno.EHOSTUNREACH, "No route to host"),
    ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
    http.client.IncompleteRead(b""),
    http.client.RemoteDisconnected("closed"),
    sqlite3.OperationalError("database is locked"),
    psycopg.OperationalError("the connection is lost"),
    psycopg.errors.AdminShutdown("terminating connection"),
    sqlalchemy.exc.OperationalError("SELECT 1", None, Exception("server closed")),
    sqlalchemy.exc.TimeoutError("QueuePool limit reached"),
    disconnected(),
    requests.ConnectionError("Max retries exceeded"),
    requests.ReadTimeout("read timed out"),
    requests.exceptions.ChunkedEncodingError("connection broken"),
    urllib3.exceptions.ProtocolError("Connection aborted."),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ClientPayloadError("not all of it"),
    azure.core.exceptions.ServiceRequestError("cannot connect"),
    azure.core.exceptions.ServiceResponseError("connection aborted"),
    azure.servicebus.exceptions.ServiceBusConnectionError(message="gone"),
    of_library("httpx", "ConnectError", "TransportError", "NetworkError")("refused"),
    of_library("httpx", "ReadTimeout", "TransportError", "TimeoutException")("late"),
    of_library("pyodbc", "OperationalError", "Error", "DatabaseError")("08S01"),
    of_library("psycopg2", "InterfaceError", "Error")("connection already closed"),
    of_library("redis.exceptions", "BusyLoadingError", "RedisError", "ConnectionError")("loading"),
    of_library("pymongo.errors", "AutoReconnect", "PyMongoError", "ConnectionFailure")("gone"),
    answered(503),
    answered(429),
    Coded(504),
]
EVENTS: list[Exception] = [
    BadEvent("nonsense"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    sqlalchemy.exc.IntegrityError("INSERT", None, Exception("duplicate key")),
    sqlalchemy.exc.DataError("INSERT", None, Exception("too long")),
    psycopg.errors.ProgramLimitExceeded("index row size 5400 exceeds maximum 2704"),
    sqlalchemy.exc.OperationalError("INSERT", None, psycopg.errors.ProgramLimitExceeded("size")),
    of_library("asyncpg.exceptions", "DataError", "InterfaceError")("invalid input"),
    with_state("asyncpg.exceptions", "NotNullViolationError", sqlstate="23502"),
    with_state("psycopg2.errors", "StringDataRightTruncation", pgcode="22001"),
]
UNKNOWN: list[Exception] = [
    ValueError("not JSON"),
    KeyError("device"),
    AttributeError("'NoneType' object has no attribute 'text'"),
    json.JSONDecodeError("Expecting value", "<html>", 0),
    with_state("asyncpg.exceptions", "CannotConnectNowError", sqlstate="57P03"),
    with_state("asyncpg.exceptions", "AdminShutdownError", sqlstate="57P01"),
    with_state("asyncpg.exceptions", "TooManyConnectionsError", sqlstate="53300"),
    with_state("asyncpg.exceptions", "DeadlockDetectedError", sqlstate="40P01"),
    of_library("botocore.exceptions", "ClientError")("503 SlowDown"),
    of_library("grpc.aio", "AioRpcError", "RpcError")("UNAVAILABLE"),
    of_library("google.api_core.exceptions", "ServiceUnavailable", "ServerError")("503"),
    of_library("pyodbc", "ProgrammingError", "DatabaseError")("[42000] not available (40613)"),
    of_library("pyodbc", "Error")("[40001] deadlock victim (1205)"),
    FileNotFoundError(errno.ENOENT, "no such file"),
    sqlite3.InterfaceError("Error binding parameter 1"),
    requests.exceptions.InvalidURL("no host"),
    aiohttp.InvalidURL("no host"),
    urllib.error.URLError("unknown url type: device"),
    answered(400),
    answered(404),
    answered(500),
    Coded("503"),
]


def cause(error: Exception) -> Exception:
    outer = ValueError("the reading could not be kept")
    outer.__cause__ = error
    return outer


def context(error: Exception) -> Exception:
    outer = ValueError("the reading could not be kept")
    outer.__context__ = error
    return outer


def without_context(error: Exception) -> Exception:
    """``raise … from None`` inside an ``except`` block hides the context, but keeps it."""
    outer = context(error)
    outer.__suppress_context__ = True
    return outer


def deep(error: Exception) -> Exception:
    for wrap in (cause, context, cause, context, cause):
        error = wrap(error)
    return error


def group(error: Exception) -> Exception:
    nested = ExceptionGroup("tasks", [ValueError("one"), ExceptionGroup("more", [error])])
    return cause(nested)


WRAPS = [lambda error: error, cause, context, without_context, deep, group]


CAUSES: dict[FailureCause, list[Exception]] = {
    FailureCause.UNREACHABLE: OUTAGES,
    FailureCause.EVENT: EVENTS,
    FailureCause.TRANSIENT: UNKNOWN,
    FailureCause.DEPENDENCY: [
        DependencyDown("SQL"),
        StoreUnavailable("t"),
        HubUnavailable("h"),
        BreakerOpen("b"),
    ],
}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(error, cause, id=f"{cause.name}-{type(error).__qualname__}-{n}")
        for cause, errors in CAUSES.items()
        for n, error in enumerate(errors)
    ],
)
def test_an_error_is_an_outage_the_events_fault_or_unknown_wherever_it_is_in_the_chain(
    error: Exception, expected: FailureCause
) -> None:
    assert {classify(wrap(error)) for wrap in WRAPS} == {expected}


@pytest.mark.parametrize(
    ("cause", "retries", "holds"),
    [
        (FailureCause.EVENT, False, False),
        (FailureCause.TRANSIENT, True, False),
        (FailureCause.UNREACHABLE, True, True),
        (FailureCause.DEPENDENCY, False, True),
    ],
)
def test_the_cause_of_a_failure_decides_about_retries_and_holding(
    cause: FailureCause, *, retries: bool, holds: bool
) -> None:
    assert (cause.is_retryable, cause.holds_partition) == (retries, holds)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BadEvent("names a host that does not exist"), FailureCause.EVENT),
        (TransientFailure("try again"), FailureCause.TRANSIENT),
        (DependencyDown("SQL"), FailureCause.DEPENDENCY),
    ],
)
def test_the_error_that_a_handler_raises_overrides_its_causes(
    error: Exception, expected: FailureCause
) -> None:
    error.__cause__ = ConnectionError("refused")
    assert classify(error) is expected


@given(links=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.booleans()), max_size=30))
def test_a_cyclic_chain_of_errors_is_examined_only_once(
    links: list[tuple[int, int, bool]],
) -> None:
    errors = [ValueError(n) for n in range(8)]
    for outer, inner, is_cause in links:
        setattr(errors[outer], "__cause__" if is_cause else "__context__", errors[inner])
    assert classify(errors[0]) is FailureCause.TRANSIENT
    errors[0].__cause__ = ConnectionError("refused")
    assert classify(errors[0]) is FailureCause.UNREACHABLE


def test_a_long_chain_of_errors_is_examined_up_to_a_bound() -> None:
    error: Exception = ConnectionError("refused")
    for _ in range(10 * ERRORS_MAX):
        error = cause(error)
    assert classify(error) is FailureCause.TRANSIENT
    many = ExceptionGroup("many", [ValueError(n) for n in range(10_000)])
    assert classify(many) is FailureCause.TRANSIENT
