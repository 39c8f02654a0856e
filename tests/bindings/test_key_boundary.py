"""A key opens only its own function: no address makes that function answer for another one."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest
from yarl import URL

from local.demo.hosted_app import hosted_app
from local.demo.system import APP_DIR
from local.functions_host.host import FunctionsHost
from local.twins.autoscaling import MemoryStateStore
from shared.web.board import Board, Panel, Shown
from tests.bindings.test_ingestion_functions import ENVIRON
from tests.builders import NOW, resource

SECRETS = {"breakers": "the-closing-token", "trends": "the-trends", "dead-letters": "the-bodies"}
"""The content of each panel, which only the function of that panel may return."""
PANEL_OF = {"breakers": "breakers", "trends": "trends"}
"""The functions that return a panel, and the name of the panel."""
RESOURCES = ("plan-1", "api", "breakers", "trends", "resources", "dead-letters")
"""Resources may have any name. The names of routes are the most likely to cause confusion."""
ADDRESSES = [
    "/API/resources/api/breakers",
    "/Api/resources/api/trends",
    "/api/resources/api/breakers",
    "/api/resources/api%2Fbreakers",
    "/API/RESOURCES/api%2fbreakers",
    "/api/resources/x%2Fapi%2Fbreakers",
    "/api/resources/x%252Fapi%252Fbreakers",
    "/api/resources/%2Fapi%2F/breakers",
    "/api/resources/..%2F/breakers",
    "/api/resources/../breakers",
    "/api/resources/..%2fbreakers",
    "/api//resources//breakers",
    "/API/trends/api/breakers",
    "/api/trends?x=/api/breakers",
    "/API/trends?x=/api/breakers",
    "/API/trends%3Fx=/api/breakers",
]


def panel(secret: str) -> Panel:
    async def answer() -> Shown:
        return Shown([{"secret": secret}])

    return answer


def board() -> Board:
    store = MemoryStateStore(lambda: NOW)
    panels = {name: panel(secret) for name, secret in SECRETS.items()}
    return Board({name: resource(name) for name in RESOURCES}, store, 30, panels)


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaling_rules.resources", lambda _settings: [resource()])
    for key, value in ENVIRON.items():
        monkeypatch.setenv(key, value)


def shown_by_others(function: str, text: str) -> list[str]:
    """The secrets in a response of ``function`` that its key must not give access to."""
    own = SECRETS[PANEL_OF[function]] if function in PANEL_OF else None
    return [secret for secret in SECRETS.values() if secret != own and secret in text]


@dataclass(frozen=True, slots=True)
class Host:
    running: FunctionsHost
    http: aiohttp.ClientSession

    async def get(self, address: str) -> tuple[set[str], str]:
        """The functions that the request invoked, and the text of the response."""
        before = self.invocations()
        async with self.http.get(URL(f"{self.running.url}{address}", encoded=True)) as answer:
            text = await answer.text()
        after = self.invocations()
        return {name for name in after if after[name] != before.get(name)}, text

    def invocations(self) -> Mapping[str, int]:
        return {name: count.invocations for name, count in self.running.counts.items()}


@asynccontextmanager
async def running() -> AsyncIterator[Host]:
    host = FunctionsHost(APP_DIR, settings=ENVIRON, listeners={})
    async with hosted_app(host) as app:
        app.web.board = board()
        async with aiohttp.ClientSession(headers={"x-functions-key": host.keys.host}) as http:
            yield Host(host, http)


def addresses(count: int) -> Iterator[str]:
    """Random addresses below the prefixes of routes, of words and separators that may confuse."""
    chance = random.Random(1)
    words = ["api", "API", "%61pi", "breakers", "BREAKERS", "trends", "resources", "plan-1", "x"]
    separators = ["/", "/", "/", "//", "%2f", "%2F", "%252F", "/./", "/../", "/..%2f", "?", "%3F"]
    for _ in range(count):
        parts = [
            chance.choice(words) + chance.choice(separators) for _ in range(chance.randint(1, 5))
        ]
        yield chance.choice(["/api/", "/API/", "/", "//"]) + "".join(parts)


async def test_through_the_host_no_function_answers_for_another(environ: None) -> None:
    reached = Counter[str]()
    async with running() as host:
        for address in [*ADDRESSES, *addresses(200)]:
            invoked, text = await host.get(address)
            function = invoked.pop() if invoked else "none"
            assert shown_by_others(function, text) == [], (function, address)
            reached[function] += 1
        assert set(reached) >= {"resources", "trends", "breakers", "none"}
        # Routes ignore case, and a resource may be called api.
        invoked, text = await host.get("/API/Breakers")
        assert (invoked, json.loads(text)) == ({"breakers"}, [{"secret": SECRETS["breakers"]}])
        invoked, text = await host.get("/api/resources/api")
        assert (invoked, json.loads(text)["name"]) == ({"resources"}, "api")
