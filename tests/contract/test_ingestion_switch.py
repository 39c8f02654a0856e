"""The app setting that disables a function, by the real client, and no other setting changed."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable

import pytest

from local.azure_apis.loopback_server import Fault, LoopbackServer, Reply, Request
from shared.adapters.arm.consumption_switch import AppSettingSwitch, SwitchingAnnouncer
from shared.ingestion.breaker.breaker import Breaker
from shared.ingestion.errors import DependencyDown

APP = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/group-1"
    "/providers/Microsoft.Web/sites/my-app"
)
KEY = "AzureWebJobs.metric_ingest.Disabled"
GIVEN = {"A": "1", "Secret": "hunter2"}


class Sites(LoopbackServer):
    """The app settings of one Function App. ``meanwhile`` runs after each read."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = dict(GIVEN)
        self.meanwhile: Callable[[], None] = lambda: None
        self.writes = 0

    def unauthorized(self) -> Reply:
        return Reply(401)

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
    found = AppSettingSwitch(APP, "metric_ingest", sites.base_url)
    yield found
    await found.close()


async def test_the_function_is_disabled_and_enabled_and_the_rest_stays(
    sites: Sites, switch: AppSettingSwitch
) -> None:
    for _ in range(2):
        await switch.turn(on=False)
    assert (sites.settings, sites.writes) == ({**GIVEN, KEY: "true"}, 1)
    for _ in range(2):
        await switch.turn(on=True)
    assert (sites.settings, sites.writes) == (GIVEN, 2), "an app that is as it should be stays up"


async def test_who_writes_at_the_same_time_is_not_overwritten(
    sites: Sites, switch: AppSettingSwitch
) -> None:
    changes = iter(["2", "3"])

    def change() -> None:
        sites.settings["A"] = next(changes, sites.settings["A"])

    sites.meanwhile = change
    await switch.turn(on=False)
    assert sites.settings == {**GIVEN, "A": "3", KEY: "true"}


async def test_no_answer_is_a_failure_that_names_no_secret(
    sites: Sites, switch: AppSettingSwitch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []

    class Told:
        async def announce(self, breaker: Breaker) -> None:
            told.append(breaker.epoch)

    sites.fail_next(Fault(Reply(403, '{"error": {"code": "AuthorizationFailed"}}')), 9)
    with pytest.raises(DependencyDown, match="my-app: "):
        await switch.turn(on=False)
    await SwitchingAnnouncer(Told(), switch).announce(Breaker(epoch=3))
    assert told == [3], "people are told, and the breaker holds the events"
    assert "[not_disabled] my-app" in caplog.text
    assert "hunter2" not in caplog.text
