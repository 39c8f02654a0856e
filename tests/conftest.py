"""Fixtures of every test, and what keeps any test from depending on the load of the machine."""

import gc
import math
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from local.azurite import Azurite

# A time limit for an example, or for making one, would fail on a busy machine only.
settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")


def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto`: more workers than cores, because tests wait for emulators half of the time."""
    return math.ceil((os.cpu_count() or 1) * 1.5)


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """A storage emulator in memory; its `connection_string` is what a client needs."""
    with Azurite() as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def _resources_are_closed_by_their_own_module() -> Iterator[None]:
    """A client that a module left open is reported in that module. Without this the collector
    finds it whenever it happens to run, in the middle of an innocent test."""
    yield
    gc.collect()
