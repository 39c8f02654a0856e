"""Fixtures and Hypothesis settings for all tests."""

import asyncio
import gc
import math
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

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


LONGEST = (
    "tests/local/test_prove.py",
    "tests/cli/test_installed.py",
    "tests/local/test_soak.py",
    "tests/deployed/test_deployed_host.py",
    "tests/local/test_night.py",
    "tests/browser/test_dashboard.py",
    "tests/local/test_system.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests, so that none of them runs alone at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """A storage emulator in memory. Clients use its `connection_string`."""
    with Azurite() as running:
        yield running


class Hurried(ModuleType):
    """`asyncio` for the AMQP clients of the SDK, which open and close in steps of these waits."""

    SHORTER = {1: 0.05, 0.05: 0.005}  # noqa: RUF012  it never changes

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(self.SHORTER.get(seconds, seconds))


@pytest.fixture(scope="session", autouse=True)
def _amqp_clients_open_and_close_at_once() -> None:
    """The services of the tests answer at once, and hundreds of tests open a client."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("azure.eventhub.", "azure.servicebus.")) and hasattr(module, "asyncio"):
            vars(module)["asyncio"] = Hurried("asyncio")


@pytest.fixture(autouse=True)
def _warnings_that_a_test_ignores_stay_with_it(request: pytest.FixtureRequest) -> Iterator[None]:
    """The SDKs do not close a connection that was dropped. Collect it while the filter holds."""
    yield
    if request.node.get_closest_marker("filterwarnings"):
        gc.collect()


@pytest.fixture(scope="module", autouse=True)
def _resources_are_closed_by_their_own_module() -> Iterator[None]:
    """Report a client that a module did not close in that module. Otherwise, the garbage collector
    would report it later, in an unrelated test."""
    yield
    gc.collect()
