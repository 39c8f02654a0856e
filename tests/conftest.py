"""Fixtures and Hypothesis settings for all tests."""

import gc
import math
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from local.azurite import Azurite
from tests.census import pytest_collection_finish, pytest_itemcollected  # noqa: F401  hooks

# Time limits for examples would fail only because the machine is busy.
settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")


@pytest.hookimpl(optionalhook=True)  # absent with -p no:xdist
def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto`: 1.5 workers for each core, because tests often wait for emulators."""
    return math.ceil((os.cpu_count() or 1) * 1.5)


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """A storage emulator in memory. Clients use its `connection_string`."""
    with Azurite() as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def _resources_are_closed_by_their_own_module() -> Iterator[None]:
    """Report a client that a module did not close in that module. Otherwise, the garbage collector
    would report it later, in an unrelated test."""
    yield
    gc.collect()
