"""`App`, the object that builds the parts of the app and closes them."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from unittest.mock import AsyncMock

import pytest

from local.twins.autoscaling import MemoryCapacityControl, MemoryStateStore
from local.twins.ingestion import MemoryIngestionStore
from local.twins.rows import MemoryRows
from shared.azure.budget import ArmBudget, BudgetSpent
from shared.azure.invocation import INVOCATION_SECONDS_MAX
from shared.ingestion.model import Ownership, Stream
from shared.settings import SettingsError
from shared.values.urgency import urgent
from shared.wiring.app import App
from tests.bindings.test_ingestion_functions import ENVIRON, HUB
from tests.builders import NOW, read
from tests.ingestion.commits import commit
from tests.settings.test_arrival import NAMESPACE_ID

BUS = "Endpoint=sb://unused;SharedAccessKeyName=n;SharedAccessKey=a"


class Part:
    """Appends its name to a list when it is closed."""

    def __init__(self, name: str, closed: list[str], error: Exception | None = None) -> None:
        self.name, self.closed, self.error = name, closed, error

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed.append(self.name)
        if self.error:
            raise self.error


async def test_parts_are_closed_once_in_reverse_order_even_if_one_fails() -> None:
    app, closed = App(), list[str]()
    for name, error in (("a", None), ("b", OSError("lost")), ("c", None)):
        app.open(Part, name, closed, error)
    with pytest.raises(OSError, match="lost"):
        await app.close()
    await app.close()
    assert closed == ["c", "b", "a"]


async def test_no_part_is_opened_once_the_app_is_closing() -> None:
    """Otherwise an invocation that is still running would open a part that is never closed."""
    app, closed = App(ENVIRON), list[str]()
    app.open(Part, "a", closed)

    async def invocation() -> Any:
        await asyncio.sleep(0)  # the app is being closed meanwhile
        return app.scaling.store

    running = asyncio.create_task(invocation())
    await asyncio.sleep(0)
    await app.close()
    with pytest.raises(RuntimeError, match="the app is closed"):
        await running
    with pytest.raises(RuntimeError, match="the app is closed"):
        app.open(Part, "b", closed)
    assert closed == ["a"]


async def test_a_closed_reader_opens_no_client() -> None:
    app = App(ENVIRON)
    app.scaling.control = MemoryCapacityControl(lambda: NOW, {})
    reader = app.scaling.reader
    await app.close()
    (resource,) = app.resources.values()
    (source,) = resource.metrics.values()
    with pytest.raises(RuntimeError, match="the reader is closed"):
        await read(source, reader)


async def test_a_part_is_built_once_and_can_be_replaced_by_an_in_memory_adapter() -> None:
    async with App(ENVIRON) as app:
        store = MemoryStateStore(lambda: NOW)
        app.scaling.store = store
        assert app.web.board.store is store
        assert app.nightly.trends is app.nightly.trends
        app.ingestion.store = MemoryIngestionStore(lambda: NOW)
        assert app.ingestion.pipeline("0") is app.ingestion.pipeline("0")


async def test_all_clients_of_resource_manager_share_one_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policies, policy = list[ArmBudget](), ArmBudget.policy

    def noted(budget: ArmBudget) -> Any:
        policies.append(budget)
        return policy(budget)

    monkeypatch.setattr(ArmBudget, "policy", noted)
    also = {
        "ServiceBusNamespaceIds": NAMESPACE_ID,
        "ServiceBusCountsFrom": "resource-manager",
    }
    async with App({**ENVIRON, **also}) as app:
        (resource,) = app.resources.values()
        (source,) = (each for each in resource.metrics.values() if each.entity)
        control: Any = app.scaling.control
        reader: Any = app.scaling.reader
        platform: Any = app.scaling.platform_metrics
        parts = [
            control._client(resource.target),
            app.scaling.permissions,
            reader._bus_reader(app.scaling._bus(source.connection)),
            platform._client(""),
        ]
        assert policies == [app.arm_budget] * len(parts)
        platform._client("westeurope")  # a service of its own, with limits of its own
        assert len(policies) == len(parts)
        await parts[2].close()


async def test_a_request_is_given_up_before_its_time_limit_and_tells_how_long_to_wait() -> None:
    """Otherwise its outcome would seem to be unknown, although nothing was sent."""
    limits = {"ArmTimeoutSeconds": "30", "SourceTimeoutSeconds": "1"}
    async with App({**ENVIRON, **limits}) as app:
        for kind, patience in (("writes", 24), ("reads", 0.8)):
            line = app.arm_budget.line("s", kind)
            line.bucket.pause(time.monotonic() + patience + 0.1)
            with urgent(60 if kind == "writes" else 0), pytest.raises(BudgetSpent) as spent:
                await app.arm_budget.send("s", kind, AsyncMock())
            assert spent.value.wait_seconds == pytest.approx(patience + 0.1, abs=0.1)


async def test_rows_have_the_same_names_whatever_their_case_in_the_settings() -> None:
    rows = MemoryRows(lambda: NOW)
    names = ("sb://Shop.servicebus.windows.net", "Metrics", "$Default")
    for change, last in ((str.upper, 3), (str.lower, 7), (str.swapcase, 9)):
        namespace, hub, group = map(change, names)
        changed = {"EventHubName": hub, "EventHubConsumerGroup": group}
        changed["EventHubConnection"] = HUB.replace("sb://shop.servicebus.windows.net", namespace)
        async with App({**ENVIRON, **changed}) as app:
            app.ingestion.rows = rows
            store, stream = app.ingestion.store, app.ingestion.stream("0")
            saved = await store.load(stream)
            await store.commit(stream, saved, commit(saved.checkpoint, last))
            owned = (await app.ingestion.owners.owners()).rows
            version = owned[0].version if owned else None
            await app.ingestion.owners.write(Ownership("0", change("me"), 1, version, ""))
    (only,) = await store.streams()
    assert only == Stream("shop.servicebus.windows.net", "metrics", "$Default", "0")
    assert len((await app.ingestion.owners.owners()).rows) == 1
    assert all(place[:3] == only.place[:3] for _, place in rows.stored)


@pytest.mark.parametrize(
    ("setting", "batch_seconds"), [("", 180), ("20", 220), ("100", 140), ("3600", 40)]
)
async def test_the_last_call_of_a_batch_ends_before_the_function_stops_itself(
    setting: str, batch_seconds: float
) -> None:
    async with App({**ENVIRON, "HandlerSecondsMaximum": setting}) as app:
        app.ingestion.store = MemoryIngestionStore(lambda: NOW)
        assert (app.ingestion.pipeline("0")).seconds_max == batch_seconds
        assert batch_seconds + min(float(setting or 60), 200) <= INVOCATION_SECONDS_MAX - 30


def test_settings_are_read_on_first_use() -> None:
    app = App({})
    with pytest.raises(SettingsError, match="AzureWebJobsStorage"):
        _ = app.settings


def test_breaker_links_tell_deployments_apart_by_what_they_read_and_where_they_keep_state() -> None:
    account = {"AzureWebJobsStorage": "", "AzureWebJobsStorage__accountName": "state1"}
    deployments = [
        ENVIRON,
        {"EventHubName": "other"},
        {"EventHubConnection": "Endpoint=sb://b;SharedAccessKeyName=n;SharedAccessKey=a2V5"},
        {"EventHubConsumerGroup": "staging"},
        account,
        account | {"AzureWebJobsStorage__accountName": "state2"},
        {"IngestionDatabaseUrl": "postgresql+psycopg://user:secret@db/one"},
        {"IngestionDatabaseUrl": "postgresql+psycopg://user:secret@db/two"},
    ]
    told = [App(ENVIRON | each).ingestion.deployment for each in deployments]
    assert len(set(told)) == len(deployments)
    new_password = {"IngestionDatabaseUrl": "postgresql+psycopg://user:new@db/one"}
    assert App(ENVIRON | new_password).ingestion.deployment == told[-2]


@pytest.mark.parametrize("entity", ["Orders", "other"])
def test_a_key_for_another_entity_than_the_rules_read_is_refused(entity: str) -> None:
    app = App({**ENVIRON, "ServiceBusConnection": f"{BUS};EntityPath={entity}"})
    if entity == "Orders":
        assert app.checked
        return
    with pytest.raises(SettingsError) as raised:
        _ = app.checked
    assert raised.value.problems == (
        "ServiceBusConnection: its EntityPath is 'other', so its key does not allow 'orders'. Use "
        "a key of the namespace",
    )
