"""`App`, the object that builds the parts of the app and closes them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shared.adapters.memory.autoscaling import MemoryCapacityControl, MemoryStateStore
from shared.settings import SettingsError
from shared.wiring.app import App
from tests.bindings.test_ingestion_functions import ENVIRON
from tests.builders import NOW


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


async def test_an_interrupted_invocation_leaves_nothing_open() -> None:
    """The app registers a part before anything is awaited, so it closes the part."""
    app, closed = App(), list[str]()

    async def invocation() -> None:
        app.open(Part, "a", closed)
        await asyncio.Event().wait()

    running = asyncio.create_task(invocation())
    await asyncio.sleep(0)
    running.cancel()
    await app.close()
    assert closed == ["a"]


async def test_a_closed_reader_opens_no_client() -> None:
    app = App(ENVIRON)
    app.scaling.control = MemoryCapacityControl(lambda: NOW, {})
    reader = app.scaling.reader
    await app.close()
    (resource,) = app.resources.values()
    (source,) = resource.metrics.values()
    with pytest.raises(RuntimeError, match="the reader is closed"):
        await reader.read(source)


async def test_a_part_is_built_once_and_can_be_replaced_by_an_in_memory_adapter() -> None:
    async with App(ENVIRON) as app:
        store = MemoryStateStore(lambda: NOW)
        app.scaling.store = store
        assert app.web.board.store is store
        assert app.nightly.trends is app.nightly.trends
        assert app.ingestion.pipeline("0") is app.ingestion.pipeline("0")


async def test_two_apps_share_no_parts() -> None:
    async with App(ENVIRON) as one, App({**ENVIRON, "EventHubName": "other"}) as another:
        assert one.scaling.store is not another.scaling.store
        assert (one.ingestion.stream("0").hub, another.ingestion.stream("0").hub) == (
            "metrics",
            "other",
        )


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
