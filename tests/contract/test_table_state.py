"""The state of a resource in a real table: rows that operators read, and rows that they write."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest
from azure.data.tables import TableServiceClient

from local.azurite import Azurite
from shared.autoscaling.declaring import Mode
from shared.autoscaling.state import Override
from shared.autoscaling.store.rows import profile_row
from shared.values.measurements import WeekProfile
from shared.wiring.app import App
from tests.builders import NOW, ago
from tests.contract.test_state_store import FULL, entry, table_store
from tests.wiring.test_platform_metrics import EXAMPLE


@pytest.fixture
def table(azurite: Azurite) -> Any:
    service = TableServiceClient.from_connection_string(azurite.connection_string)
    yield service.create_table_if_not_exists("Scaling")
    service.close()


async def test_rows_are_readable_for_operators(azurite: Azurite, table: Any) -> None:
    async with table_store(azurite) as store:
        name = f"plan-{uuid.uuid4().hex[:8]}"
        await store.commit(await store.load(name), FULL, [entry(name)])
    rows = {r["RowKey"]: r for r in table.query_entities(f"PartitionKey eq '{name}'")}
    decision, *others = list(rows)
    assert decision.startswith("decision|")
    assert others == ["desired", "learned", "metric|backlog", "metric|capacity", "rules", "wishes"]
    assert rows["desired"]["target"] == 3
    assert rows["desired"]["requested_at"] == ago(30)
    assert rows[decision]["reason"] == "mean backlog 200 > 100"


@pytest.mark.parametrize(
    ("topic", "subscription"), [("t" * 260, "s" * 50), (f"a/{'_.-' * 40}b", "t" * 50)]
)
async def test_the_shipped_rules_scale_by_the_longest_names_that_azure_allows(
    azurite: Azurite, topic: str, subscription: str
) -> None:
    async with App({**EXAMPLE, "Topic": topic, "Subscription": subscription}) as app:
        (resource,) = app.resources.values()
    (backlog,) = resource.metrics
    name = f"plan-{uuid.uuid4().hex[:8]}"
    state = replace(FULL, histories={backlog: FULL.histories["backlog"]})
    async with table_store(azurite) as store:
        await store.commit(await store.load(name), state, [])
        assert (await store.load(name)).state.histories == state.histories


@pytest.mark.parametrize(
    ("fields", "mode", "expires_at"),
    [
        ({"mode": "paused", "reason": "incident"}, Mode.PAUSED, None),
        ({"mode": "dry_run", "expires_at": "2026-03-01T12:00:00Z"}, Mode.DRY_RUN, NOW),
        ({"mode": "paused", "expires_at": NOW}, Mode.PAUSED, NOW),
        ({"mode": "stop!"}, Mode.PAUSED, None),
        ({"mode": "active", "expires_at": "tomorrow"}, Mode.PAUSED, None),
        ({}, Mode.PAUSED, None),
        ({"floor": 3}, None, None),
        ({"floor": "many"}, Mode.PAUSED, None),
        ({"freeze_scale_in": "yes please"}, Mode.PAUSED, None),
    ],
)
async def test_an_override_written_by_hand_is_applied_or_pauses_scaling(
    azurite: Azurite, table: Any, fields: dict[str, Any], mode: Mode | None, expires_at: Any
) -> None:
    name = f"plan-{uuid.uuid4().hex[:8]}"
    table.create_entity({"PartitionKey": name, "RowKey": "override", **fields})
    async with table_store(azurite) as store:
        override = (await store.load(name)).state.override
    assert override is not None
    assert (override.mode, override.expires_at) == (mode, expires_at)


@pytest.mark.parametrize(
    "written",
    [
        {"exact": 4, "reason": "load test"},
        {"exact": "4", "reason": "load test"},
    ],
)
async def test_an_override_written_by_hand_may_set_a_floor_or_an_exact_capacity(
    azurite: Azurite, table: Any, written: dict[str, Any]
) -> None:
    name = f"plan-{uuid.uuid4().hex[:8]}"
    row = {"PartitionKey": name, "RowKey": "override", "freeze_scale_in": True, **written}
    table.create_entity(row)
    async with table_store(azurite) as store:
        override = (await store.load(name)).state.override
    assert override == Override(None, "load test", None, freeze_scale_in=True, exact=4)


async def test_a_profile_is_read_and_an_unreadable_one_gives_the_reason(
    azurite: Azurite, table: Any
) -> None:
    name = f"plan-{uuid.uuid4().hex[:8]}"
    loads = (None, *[float(hour) for hour in range(1, 168)])
    profile = WeekProfile(loads, "Europe/Paris", (0, *[8] * 167))
    async with table_store(azurite) as store:
        table.create_entity(profile_row(name, profile))
        assert (await store.load(name)).state.profile == profile
        await store.commit(await store.load(name), FULL)
        assert (await store.load(name)).state == replace(FULL, profile=profile)
        table.upsert_entity({**profile_row(name, profile), "time_zone": "Mars/Olympus"})
        broken = (await store.load(name)).state.profile
        assert broken is not None
        assert "cannot be read" in broken.absent


async def test_a_resource_name_is_never_interpreted_as_a_query(azurite: Azurite) -> None:
    async with table_store(azurite) as store:
        name = f"o'brien-{uuid.uuid4().hex[:8]}"
        await store.commit(await store.load(name), FULL)
        assert (await store.load(name)).state == FULL
