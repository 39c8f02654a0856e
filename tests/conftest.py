"""Fixtures of every test."""

from collections.abc import Iterator

import pytest

from local.azurite import Azurite


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """A storage emulator in memory; its `connection_string` is what a client needs."""
    with Azurite() as running:
        yield running
