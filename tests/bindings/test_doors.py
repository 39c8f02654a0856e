"""The whole surface of the app: what starts each function, and which key opens it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from local.demo.hosted_app import hosted_app
from local.demo.system import APP_DIR
from local.functions_host.functions import HTTP_TRIGGER
from local.functions_host.host import FunctionsHost
from shared.web import breaker_http, dead_letters_http
from shared.web.http import Request
from tests.bindings.test_ingestion_functions import ENVIRON
from tests.bindings.test_nightly_functions import JOB
from tests.builders import resource

EVERYTHING = {
    **ENVIRON,
    **JOB,
    "ServiceBusConnection": "Endpoint=sb://bus;SharedAccessKeyName=n;SharedAccessKey=a2V5",
}
"""Settings with which every function is there."""

HTTP = {  # each with its methods, its route and its level
    "dashboard": ("GET", "api/dashboard", "function"),
    "resources": ("GET", "api/resources/{name?}/{view?}", "function"),
    "override": ("POST", "api/resources/{name}/override", "function"),
    "trends": ("GET", "api/trends", "function"),
    "breakers": ("GET", "api/breakers", "function"),
    "breaker_page": ("GET", "api/breakers/{name}", "anonymous"),  # whoever holds a link's token
    "breaker_close": ("POST", "api/breakers/{name}/close", "anonymous"),  # likewise
    "breaker_status": ("GET", "api/breakers/{name}/status", "function"),
    "breaker_isolate": ("POST", "api/breakers/{name}/isolate", "function"),
    "dead_letters": ("GET", "api/dead-letters", "function"),
    "dead_letter": ("GET", "api/dead-letters/{partition}/{sequence}", "function"),
    "dead_letter_redrive": (
        "POST",
        "api/dead-letters/{partition}/{sequence}/redrive",
        "function",
    ),
    "dead_letters_purge": ("POST", "api/dead-letters/purge", "function"),
}
OTHERS = {
    "metric_collector": "timerTrigger",
    "scaling_logic": "queueTrigger",
    "scaler": "queueTrigger",
    "reconciler": "timerTrigger",
    "metrics_poison": "queueTrigger",
    "actions_poison": "queueTrigger",
    "log_retention": "timerTrigger",
    "notifier": "timerTrigger",
    "telemetry_arrived": "queueTrigger",
    "telemetry_poison": "queueTrigger",
    "process_dataset": "serviceBusTrigger",
    "metric_ingest": "eventHubTrigger",
    "ingest_tail": "timerTrigger",
    "nightly_trends": "timerTrigger",
    "trend_runs": "timerTrigger",
}


@pytest.fixture
async def host(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FunctionsHost]:
    """The app as the official worker library indexes it; only HTTP is listened to."""
    monkeypatch.setattr("scaling_rules.resources", lambda _settings: [resource()])
    running = FunctionsHost(APP_DIR, settings=EVERYTHING, listeners={})
    async with hosted_app(running):
        yield running


def test_every_function_starts_as_it_should_and_no_other_is_there(host: FunctionsHost) -> None:
    others = {
        f.name: f.trigger.text("type") for f in host.functions if f.trigger.kind != HTTP_TRIGGER
    }
    assert others == OTHERS


def test_every_http_function_has_its_methods_route_and_level(host: FunctionsHost) -> None:
    found = {
        each.function.name: (
            ",".join(sorted(each.methods)),
            each.route.template,
            each.function.trigger.text("authLevel").lower(),
        )
        for each in host.endpoints
    }
    assert found == HTTP


async def test_without_a_key_only_what_takes_a_token_is_reached(host: FunctionsHost) -> None:
    async with aiohttp.ClientSession(host.url) as http:
        for name, (method, route, level) in HTTP.items():
            path = "/" + re.sub(r"\{(\w+)\??\}", "1", route)
            async with http.request(method, path) as answer:
                body = await answer.read()
            if level == "function":
                assert (answer.status, body) == (401, b""), name
            else:
                assert (answer.status, name in host.counts) == (404, True), "no breaker is called 1"
    assert set(host.counts) == {
        name for name, (_, _, level) in HTTP.items() if level == "anonymous"
    }


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_what_a_foreign_page_can_send_without_asking_isolates_and_purges_nothing(
    kind: str,
) -> None:
    nobody: Any = SimpleNamespace(name="metric_ingest")  # whatever is asked of it fails
    body = b'{"reason": "evil", "older_than_days": 0}'
    asked = Request(route={"name": "metric_ingest"}, headers={"content-type": kind}, body=body)
    answer = await dead_letters_http.purge_older(asked, nobody)
    assert (answer.status, "application/json" in answer.body) == (415, True)
    answer = await breaker_http.isolate(asked, nobody)
    assert (answer.status, "application/json" in answer.body) == (415, True)
