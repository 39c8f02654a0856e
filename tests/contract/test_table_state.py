"""What only a real table shows: rows as people see them, and rows as people write them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from azure.data.tables import TableServiceClient

from local.azurite import Azurite
from shared.autoscaling.model import Mode
from tests.builders import NOW, ago
from tests.contract.test_state_store import FULL, entry, table_store


@pytest.fixture
def table(azurite: Azurite) -> Any:
    service = TableServiceClient.from_connection_string(azurite.connection_string)
    yield service.create_table_if_not_exists("Scaling")
    service.close()


async def test_rows_can_be_read_by_people(azurite: Azurite, table: Any) -> None:
    async with table_store(azurite) as store:
        name = f"plan-{uuid.uuid4().hex[:8]}"
        await store.commit(await store.load(name), FULL, [entry(name)])
    rows = {r["RowKey"]: r for r in table.query_entities(f"PartitionKey eq '{name}'")}
    decision, *others = list(rows)
    assert decision.startswith("decision|")
    assert others == ["desired", "metric|backlog", "metric|capacity"]
    assert rows["desired"]["target"] == 3
    assert rows["desired"]["requested_at"] == ago(30)
    assert rows[decision]["reason"] == "mean backlog 200 > 100"


@pytest.mark.parametrize(
    ("fields", "mode", "expires_at"),
    [
        ({"mode": "paused", "reason": "incident"}, Mode.PAUSED, None),
        ({"mode": "dry_run", "expires_at": "2026-03-01T12:00:00Z"}, Mode.DRY_RUN, NOW),
        ({"mode": "paused", "expires_at": NOW}, Mode.PAUSED, NOW),
        ({"mode": "stop!"}, Mode.PAUSED, None),
        ({"mode": "active", "expires_at": "tomorrow"}, Mode.PAUSED, None),
        ({}, Mode.PAUSED, None),
    ],
)
async def test_an_override_written_by_hand_is_understood_or_pauses(
    azurite: Azurite, table: Any, fields: dict[str, Any], mode: Mode, expires_at: Any
) -> None:
    name = f"plan-{uuid.uuid4().hex[:8]}"
    table.create_entity({"PartitionKey": name, "RowKey": "override", **fields})
    async with table_store(azurite) as store:
        override = (await store.load(name)).state.override
    assert override is not None
    assert (override.mode, override.expires_at) == (mode, expires_at)


async def test_a_resource_name_is_data_not_query(azurite: Azurite) -> None:
    async with table_store(azurite) as store:
        name = f"o'brien-{uuid.uuid4().hex[:8]}"
        await store.commit(await store.load(name), FULL)
        assert (await store.load(name)).state == FULL
