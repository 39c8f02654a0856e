"""The implementations that the contract tests of ingestion run against."""

from __future__ import annotations

import pytest

from shared.adapters.ingestion_memory import MemoryIngestionStore
from tests.builders import NOW
from tests.contract.ingestion import Store


@pytest.fixture(params=["memory"])
async def store(request: pytest.FixtureRequest) -> Store:
    return MemoryIngestionStore(lambda: NOW)
