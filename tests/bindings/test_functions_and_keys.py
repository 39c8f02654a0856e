"""The app's functions: the trigger of each one, and the key that an HTTP function requires."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from local.demo.hosted_app import hosted_app
from local.demo.system import APP_DIR
from local.functions_host.functions import HTTP_TRIGGER, RetryPolicy
from local.functions_host.host import FunctionsHost
from shared.autoscaling import QueueMetric
from shared.web import breaker_http, dead_letters_http
from shared.web.http import Request
from tests.bindings.test_ingestion_functions import ENVIRON
from tests.bindings.test_nightly_functions import JOB
from tests.builders import SOURCE, resource

EVERYTHING = {
    **ENVIRON,
    **JOB,
    "ServiceBusConnection": "Endpoint=sb://bus;SharedAccessKeyName=n;SharedAccessKey=a2V5",
}
DECLARED = resource(metrics={"backlog": SOURCE, "jobs": QueueMetric()})
"""Settings and rules with which the app has all its functions."""

HTTP = {  # the methods, the route and the authorization level of each function
    "dashboard": ("GET", "api/dashboard", "function"),
    "resources": ("GET", "api/resources/{name?}/{view?}", "function"),
    "override": ("POST", "api/resources/{name}/override", "function"),
    "push_metrics": ("POST", "api/resources/{name}/metrics", "function"),
    "trends": ("GET", "api/trends", "function"),
    "breakers": ("GET", "api/breakers", "function"),
    "breaker_page": ("GET", "api/breakers/{name}", "anonymous"),  # the link contains a token
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


def timer(schedule: str) -> dict[str, Any]:
    return {"type": "timerTrigger", "name": "timer", "schedule": schedule}


def queue(name: str) -> dict[str, Any]:
    return {
        "type": "queueTrigger",
        "name": "message",
        "queueName": name,
        "connection": "AzureWebJobsStorage",
    }


OTHERS: dict[str, dict[str, Any]] = {  # all properties of the trigger of each function
    "metric_collector": timer("*/15 * * * * *"),
    "scaling_logic": queue("metrics"),
    "scaler": queue("actions"),
    "reconciler": timer("0 * * * * *"),
    "metrics_poison": queue("metrics-poison"),
    "samples_received": queue("samples"),
    "samples_poison": queue("samples-poison"),
    "actions_poison": queue("actions-poison"),
    "log_retention": timer("0 40 3 * * *"),
    "notifier": timer("30 * * * * *"),
    "telemetry_arrived": queue("telemetry"),
    "telemetry_poison": queue("telemetry-poison"),
    "process_dataset": {
        "type": "serviceBusTrigger",
        "name": "message",
        "queueName": "working",
        "connection": "ServiceBusConnection",
        "isSessionsEnabled": True,  # a session is processed by one instance at a time
    },
    "metric_ingest": {
        "type": "eventHubTrigger",
        "name": "events",
        "eventHubName": "metrics",
        "consumerGroup": "$Default",
        "connection": "EventHubConnection",
        "cardinality": "MANY",
        "dataType": "BINARY",  # a body need not be text
    },
    "ingest_tail": timer("0 * * * * *"),
    "nightly_trends": timer("0 30 2 * * *"),
    "trend_runs": timer("30 * * * * *"),
}
RETRIED = {
    "metric_ingest": RetryPolicy("fixed_delay", -1, 5),  # otherwise the host skips the batch
    "nightly_trends": RetryPolicy("fixed_delay", 5, 300),  # otherwise the night is over
}
"""All other functions are repeated by their queue or their next timer."""
OF_SENDERS = {"samples_received", "samples_poison", "push_metrics"}
"""The functions that exist only if a QueueMetric is declared."""


@pytest.fixture
async def host(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FunctionsHost]:
    """The app as the official worker library indexes it. Only its HTTP triggers run."""
    monkeypatch.setattr("scaling_rules.resources", lambda _settings: [DECLARED])
    running = FunctionsHost(APP_DIR, settings=EVERYTHING, listeners={})
    async with hosted_app(running):
        yield running


def test_the_app_has_exactly_these_functions_triggers_and_retries(host: FunctionsHost) -> None:
    others = [each for each in host.functions if each.trigger.kind != HTTP_TRIGGER]
    triggers = {each.name: dict(each.trigger.properties) for each in others}
    assert all(trigger.pop("direction", "IN") == "IN" for trigger in triggers.values())
    assert triggers == OTHERS
    assert {each.name: each.retry for each in host.functions if each.retry} == RETRIED
    assert not [each.name for each in host.functions if each.inputs]


def test_every_http_function_has_its_methods_route_and_authorization_level(
    host: FunctionsHost,
) -> None:
    endpoints = {
        each.function.name: (
            ",".join(sorted(each.methods)),
            each.route.template,
            each.function.trigger.text("authLevel").lower(),
        )
        for each in host.endpoints
    }
    assert endpoints == HTTP


def test_no_function_has_an_output_binding_because_nothing_limits_its_time(
    host: FunctionsHost,
) -> None:
    outputs = {binding.kind for function in host.functions for binding in function.outputs.values()}
    assert outputs == {"http"}


async def test_without_a_key_only_functions_that_check_a_token_are_reached(
    host: FunctionsHost,
) -> None:
    async with aiohttp.ClientSession(host.url) as http:
        for name, (method, route, level) in HTTP.items():
            path = "/" + re.sub(r"\{(\w+)\??\}", "1", route)
            async with http.request(method, path) as answer:
                body = await answer.read()
            if level == "function":
                assert (answer.status, body) == (401, b""), name
            else:
                assert (answer.status, name in host.counts) == (404, True), "there is no breaker 1"
    assert set(host.counts) == {
        name for name, (_, _, level) in HTTP.items() if level == "anonymous"
    }


READS_A_BODY = {
    "override": "resources/plan-1/override",
    "push_metrics": "resources/plan-1/metrics",
    "breaker_close": "breakers/metric_ingest/close",
    "breaker_isolate": "breakers/metric_ingest/isolate",
    "dead_letters_purge": "dead-letters/purge",
}
READS_NO_BODY = {"dead_letter_redrive"}


def test_it_is_known_of_each_post_whether_it_reads_a_body() -> None:
    posts = {name for name, (method, _, _) in HTTP.items() if method == "POST"}
    assert posts == {*READS_A_BODY, *READS_NO_BODY}


async def test_without_a_declared_queue_metric_no_sender_finds_a_door(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scaling_rules.resources", lambda _settings: [resource()])
    running = FunctionsHost(APP_DIR, settings=EVERYTHING, listeners={})
    async with hosted_app(running):
        assert {each.name for each in running.functions} == {*HTTP, *OTHERS} - OF_SENDERS


@pytest.mark.parametrize("accept", ["application/json", "text/html"])
async def test_a_body_that_is_sent_in_chunks_is_refused_with_411(
    host: FunctionsHost, accept: str
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"mode": "paused", "reason": "sale", "by": "anna", "token": "t"}'

    key = {"x-functions-key": host.keys.host}
    headers = {**key, "Content-Type": "application/json", "Accept": accept}
    async with aiohttp.ClientSession(host.url, headers=headers) as http:
        for name, path in READS_A_BODY.items():
            async with http.post(f"/api/{path}", data=chunks()) as answer:
                text = await answer.text()
            assert (answer.status, name in host.counts) == (411, True), name
            assert "is missing. Send the body with its length and not in chunks" in text, name


async def test_wrong_settings_are_told_to_a_caller_with_a_key_and_nothing_else_runs() -> None:
    wrong = EVERYTHING | {"WindowSeconds": "ten"}
    async with FunctionsHost(APP_DIR, settings=wrong, listeners={}) as running:
        path = "/api/dashboard"
        async with aiohttp.ClientSession(running.url) as http:
            async with http.get(path) as answer:
                assert (answer.status, await answer.read()) == (401, b"")
            async with http.get(path, headers={"x-functions-key": running.keys.host}) as answer:
                told = await answer.json()
                assert (answer.status, "WindowSeconds = 'ten'" in str(told)) == (503, True)
            async with http.get("/api/resources") as answer:
                assert answer.status == 404
        assert not (await running.invoke("settings_check")).succeeded
        (trigger,) = (f.trigger for f in running.functions if f.name == "settings_check")
        assert (trigger.text("schedule"), trigger.is_true("runOnStartup")) == ("0 * * * * *", True)


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_a_cross_site_request_without_preflight_isolates_and_purges_nothing(
    kind: str,
) -> None:
    unused: Any = SimpleNamespace(name="metric_ingest")  # using any other attribute would fail
    body = b'{"reason": "evil", "older_than_days": 0}'
    request = Request(route={"name": "metric_ingest"}, headers={"content-type": kind}, body=body)
    answer = await dead_letters_http.dead_letters_purge(request, unused)
    assert (answer.status, "application/json" in answer.body) == (415, True)
    answer = await breaker_http.breaker_isolate(request, unused)
    assert (answer.status, "application/json" in answer.body) == (415, True)
