"""Disabling a function through its app setting, with the real client."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from local.azure_apis.loopback_server import Fault, LoopbackServer, Reply, Request
from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryIngestionStore
from local.twins.rows import MemoryRows
from shared.ingestion.breaker.state import Breaker, BreakerMode, BreakerTimes
from shared.ingestion.errors import DependencyDown
from shared.ingestion.hub.consumption_switch import AppSettingSwitch
from shared.ingestion.operating.breaker_controller import BreakerController
from shared.ingestion.store.breakers import BreakerStore
from tests.builders import NOW
from tests.notifications.test_notifications import Recipient

APP = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/group-1"
    "/providers/Microsoft.Web/sites/my-app"
)
KEY = "AzureWebJobs.metric_ingest.Disabled"
GIVEN = {"A": "1", "Secret": "hunter2"}


class Sites(LoopbackServer):
    """A stand-in with the app settings of one Function App. ``meanwhile`` runs after each read."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = dict(GIVEN)
        self.meanwhile: Callable[[], None] = lambda: None
        self.writes = 0

    def unauthorized(self, reason: str) -> Reply:
        return Reply(401, reason)

    def handle(self, request: Request) -> Reply:
        path = re.escape(APP) + "/config/appsettings"
        if request.method == "POST" and re.fullmatch(f"{path}/list", request.path, re.IGNORECASE):
            answer = self._reply()
            self.meanwhile()
            return answer
        assert request.method == "PUT"
        assert re.fullmatch(path, request.path, re.IGNORECASE)
        self.settings = json.loads(request.body)["properties"]
        self.writes += 1
        return self._reply()

    def _reply(self) -> Reply:
        return Reply(200, json.dumps({"properties": self.settings}))


@pytest.fixture
async def sites() -> AsyncIterator[Sites]:
    async with Sites() as server:
        yield server


@pytest.fixture
async def switch(sites: Sites) -> AsyncIterator[AppSettingSwitch]:
    switch = AppSettingSwitch(APP, "metric_ingest", sites.base_url)
    yield switch
    await switch.close()


async def test_an_answer_without_settings_does_not_delete_them(
    sites: Sites, switch: AppSettingSwitch
) -> None:
    sites.fail_next(Fault(Reply(200, '{"error": "blocked"}')), times=2)
    with pytest.raises(DependencyDown, match="the answer contains no app settings"):
        await switch.turn(on=False)
    assert (sites.settings, sites.writes) == (GIVEN, 0)


async def test_the_function_is_disabled_and_enabled_without_other_changes(
    sites: Sites, switch: AppSettingSwitch
) -> None:
    for _ in range(2):
        await switch.turn(on=False)
    assert (sites.settings, sites.writes) == ({**GIVEN, KEY: "true"}, 1)
    for _ in range(2):
        await switch.turn(on=True)
    assert (sites.settings, sites.writes) == (GIVEN, 2), (
        "an app whose setting is right is not restarted"
    )


async def test_a_concurrent_change_of_app_settings_is_not_overwritten(
    sites: Sites, switch: AppSettingSwitch
) -> None:
    changes = iter(["2", "3"])

    def change() -> None:
        sites.settings["A"] = next(changes, sites.settings["A"])

    sites.meanwhile = change
    await switch.turn(on=False)
    assert sites.settings == {**GIVEN, "A": "3", KEY: "true"}


async def test_a_refused_change_raises_an_error_without_secrets(
    sites: Sites, switch: AppSettingSwitch, caplog: pytest.LogCaptureFixture
) -> None:
    hub = MemoryHubReader()
    stores = BreakerStore(MemoryRows(lambda: NOW), "b"), MemoryIngestionStore(lambda: NOW)
    of_app: Any = (hub, switch, None, (), timedelta(days=1), "", BreakerTimes())
    controller, notifier = BreakerController("b", "app", *stores, *of_app), Recipient()
    sites.fail_next(Fault(Reply(403, '{"error": {"code": "AuthorizationFailed"}}')), 9)
    with pytest.raises(DependencyDown, match="my-app: "):
        await switch.turn(on=False)
    await controller.announce(notifier, Breaker(BreakerMode.OPEN, 3, NOW))
    assert len(notifier.received) == 1, "the opening is announced even if the switch fails"
    assert "[not_disabled] my-app" in caplog.text
    assert "hunter2" not in caplog.text
    sites.stop_failing()
    await controller.announce(notifier, Breaker(BreakerMode.OPEN, 4, NOW))
    assert (len(notifier.received), sites.settings) == (2, {**GIVEN, KEY: "true"})
