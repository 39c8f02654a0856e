"""Secrets that are planted in the settings appear in no error, log line or repr."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from azure.core.settings import settings as azure_settings
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shared import settings
from shared.autoscaling import ServiceBusQueue, StorageQueue
from shared.autoscaling.plans.app_service import AppServiceControl
from shared.autoscaling.services.clients import ServiceBusReader, StorageQueueReader
from shared.autoscaling.store.tables import TableStateStore
from shared.azure import telemetry
from shared.ingestion.hub.client import EventHubReader
from shared.ingestion.model import Stream
from shared.ingestion.store.events import EventStore
from shared.notifications.notifiers import LogNotifier, Webhook
from shared.settings import SETTINGS
from shared.trends.nightly.model import Job
from shared.trends.submitters.inputs import StoredInputs
from shared.trends.submitters.livy import LivySubmitter
from shared.values.concurrency import JitteredRetrying
from shared.values.messages import Message
from shared.values.news import News, NewsKind
from shared.wiring.batch_sender import batch_sender
from tests.builders import NOW, plan, set_capacity

PLANTED = "hunter2hunter2hunter2hunter2hunter2hunter2+/"
KEY = base64.b64encode(PLANTED.encode()).decode()
FORMS = [form for secret in (PLANTED, KEY) for form in (secret, quote(secret, safe=""))]
PATIENCE_SECONDS = 4
NOBODY = 9
STREAM = Stream("bus", "metrics", "$Default", "0")

Attempt = Callable[[settings.Settings], Awaitable[object]]


@dataclass
class Refusing:
    """A server that refuses every request and repeats it in the response, as the worst ones do."""

    port: int = 0

    async def refuse(self, request: web.Request) -> web.Response:
        text = f"{request.url} {dict(request.headers)} {await request.text()}"
        return web.Response(status=403, text=text)


@pytest.fixture
async def refusing() -> AsyncIterator[Refusing]:
    server = Refusing()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.refuse)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()


BY_KEY = f"AccountName=account;AccountKey={KEY};"
BY_SIGNATURE = f"SharedAccessSignature=sv=2024-11-04&ss=qt&se=2027-01-01&sig={KEY};"


def loaded(port: int, access: str = BY_KEY) -> settings.Settings:
    """Settings with a secret wherever one is possible. All their endpoints refuse requests."""
    account = f"http://127.0.0.1:{port}/account"
    endpoints = "".join(f"{kind}Endpoint={account};" for kind in ("Queue", "Table", "Blob"))
    bus = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=n;SharedAccessKey={KEY};"
    return settings.load(
        {
            "AzureWebJobsStorage": f"{access}{endpoints}",
            "AZURE_STORAGE_CONNECTION_STRING": f"{access}{endpoints}",
            "ServiceBusConnection": bus + "UseDevelopmentEmulator=true",
            "EventHubConnection": bus + "UseDevelopmentEmulator=true",
            "EventHubName": "metrics",
            "WebhookUrl": f"http://127.0.0.1:{port}/hook?sig={PLANTED}",
            "Webhooks": json.dumps(
                [
                    {
                        "url": f"http://127.0.0.1:{port}/{PLANTED}",
                        "headers": {"Authorization": f"Bearer {PLANTED}"},
                    },
                    {"url": f"http://127.0.0.1:{port}/", "style": "pagerduty", "key": PLANTED},
                ]
            ),
            "BreakerApprovalKey": PLANTED,
            "ArmEndpoint": f"https://127.0.0.1:{port}",
            "TrendsSubmitter": "livy",
            "TrendsEndpoint": f"http://127.0.0.1:{port}/livy?api-key={PLANTED}",
            "TrendsRequest": f'{{"file": "x", "conf": {{"spark.hadoop.password": "{PLANTED}"}}}}',
            "TrendsInput": "https://account.blob.core.windows.net/in",
            "TrendsOutput": "https://account.blob.core.windows.net/out",
        }
    )


def closing(
    make: Callable[[settings.Settings], Any], call: Callable[[Any], Awaitable[object]]
) -> Attempt:
    async def attempt(loaded: settings.Settings) -> None:
        adapter = make(loaded)
        try:
            await call(adapter)
        finally:
            close = getattr(adapter, "close", None)
            await (close() if close else adapter.link.close())

    return attempt


def storage(make: Callable[[Any], Any], call: Callable[[Any], Awaitable[object]]) -> Attempt:
    return closing(lambda loaded: make(loaded.storage("AzureWebJobsStorage")), call)


def bus(make: Callable[[Any], Any], call: Callable[[Any], Awaitable[object]]) -> Attempt:
    return closing(lambda loaded: make(loaded.service_bus("ServiceBusConnection")), call)


async def read_hub(loaded: settings.Settings) -> None:
    hub = loaded.ingestion.hub
    assert hub is not None
    await EventHubReader(hub, "readback").state(STREAM)


async def tell(loaded: settings.Settings) -> None:
    notifications = loaded.notifications
    retry = JitteredRetrying(2, 0.001, 0.001)
    webhook = LogNotifier([Webhook(each, retry, "app") for each in notifications.addresses])
    await webhook.tell(News("1", NewsKind.SCALED, "a", NOW, "2 → 3"))


async def headers() -> Mapping[str, str]:
    return {"Authorization": f"Basic {KEY}"}


def livy(loaded: settings.Settings) -> LivySubmitter:
    return LivySubmitter(loaded.nightly.endpoint, loaded.nightly.request, headers)


def inputs(loaded: settings.Settings) -> StoredInputs:
    return StoredInputs(loaded.nightly.inputs, loaded.nightly.input_connection_string)


ATTEMPTS: dict[str, Attempt] = {
    "state": storage(TableStateStore, lambda a: a.load("plan-1")),
    "queue": storage(StorageQueueReader, lambda a: a.read(StorageQueue("jobs"))),
    "events": storage(EventStore, lambda a: a.load(STREAM)),
    "counts": bus(ServiceBusReader, lambda a: a.read(ServiceBusQueue("jobs"))),
    "webhook": tell,
    "batch on Livy": closing(livy, lambda a: a.submit(Job("token", ("--password", PLANTED)))),
    "inputs": closing(inputs, lambda a: a.newest("in", [NOW.date()])),
    "plan": closing(AppServiceControl, lambda a: set_capacity(a, plan(), 3)),
}
OVER_AMQP: dict[str, Attempt] = {
    "batch": bus(
        lambda c: batch_sender(c, "jobs", lambda: NOW), lambda a: a.send([Message(b"{}")])
    ),
    "hub": read_hub,
}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """All spans that the export got, as if traces were exported."""
    exporter, set_ = InMemorySpanExporter(), partial(monkeypatch.setattr, trace, "_TRACER_PROVIDER")
    monkeypatch.setattr(trace, "set_tracer_provider", set_)
    provider = telemetry._tracer_provider([exporter], Resource.create({}), None)

    def exported() -> str:
        provider.force_flush()
        return "".join(each.to_json() for each in exporter.get_finished_spans())

    yield exported
    azure_settings.tracing_implementation.unset_value()
    provider.shutdown()


@pytest.mark.parametrize("access", [BY_KEY, BY_SIGNATURE], ids=["key", "signature"])
async def test_no_span_of_a_call_to_azure_reveals_a_planted_secret(
    refusing: Refusing, access: str, spans: Callable[[], str]
) -> None:
    given = loaded(refusing.port, access)
    await asyncio.gather(*(_failure(attempt, given) for attempt in ATTEMPTS.values()))
    texts = spans()
    assert "HttpResponseError" in texts
    for secret in FORMS:
        assert secret not in texts


@pytest.mark.parametrize("access", [BY_KEY, BY_SIGNATURE], ids=["key", "signature"])
async def test_no_refusal_reveals_a_planted_secret(
    refusing: Refusing, access: str, caplog: pytest.LogCaptureFixture
) -> None:
    await check(ATTEMPTS, loaded(refusing.port, access), caplog)


async def test_no_connection_failure_reveals_a_planted_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await check(ATTEMPTS | OVER_AMQP, loaded(NOBODY), caplog)


async def check(
    attempts: Mapping[str, Attempt], given: settings.Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    texts = await asyncio.gather(*(_failure(attempt, given) for attempt in attempts.values()))
    for name, text in zip(attempts, texts, strict=True):
        assert text, f"{name} did not fail"
        for secret in FORMS:
            assert secret not in text, name
    for secret in FORMS:
        assert secret not in caplog.text


async def _failure(attempt: Attempt, given: settings.Settings) -> str:
    """All text that could reach a log: the error, its causes, and the traceback."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await attempt(given)
    except Exception as error:
        with suppress(RecursionError):
            return "".join(traceback.format_exception(error)) + repr(error)
    return ""


def test_the_repr_of_settings_contains_no_secret() -> None:
    given = loaded(NOBODY)
    text = f"{given!r} {given.ingestion!r} {given.notifications!r}"
    text += repr(given.storage("AzureWebJobsStorage"))
    text += repr(given.service_bus("ServiceBusConnection"))
    assert PLANTED not in text
    assert KEY not in text


SECRET_SETTINGS = [name for name, setting in SETTINGS.items() if setting.secret]


@pytest.mark.parametrize("name", SECRET_SETTINGS)
def test_a_secret_setting_is_never_shown_whether_valid_or_not(name: str) -> None:
    parsed = settings.parse({name: "hunter2"})
    assert "hunter2" not in repr(parsed[0])
    texts = parsed[1]
    with suppress(settings.SettingsError):
        parsed[0].storage("AzureWebJobsStorage")
    try:
        parsed[0].service_bus("ServiceBusConnection")
    except settings.SettingsError as error:
        texts += error.problems
    assert "hunter2" not in " ".join(texts)


WRONG = {
    "ArmEndpoint": f"https://app:{PLANTED}@management.azure.com",
    "TrendsEndpoint": f"ftp://app:{PLANTED}@livy.example?sig={KEY}",
    "TrendsArguments": f"--event checkout --filter {PLANTED} 'open",
    "TrendsDataSets": f"AccountKey={KEY}",
    "TrendsSubmitter": f"Endpoint=sb://x;SharedAccessKeyName=n;SharedAccessKey={KEY}",
    "NightlyTrendsSchedule": f"https://x/?code={KEY}",
    "WindowSeconds": f"Bearer {KEY}",
    "ResourceToScale": f"Endpoint=sb://x;SharedAccessKeyName=n;SharedAccessKey={KEY}",
    "DryRun": f"password={PLANTED}",
}
"""Values with a secret, or a part of one, in settings that should hold none."""


@pytest.mark.parametrize("name", WRONG)
def test_a_secret_in_a_setting_for_another_value_is_not_shown(name: str) -> None:
    given = {"TrendsSubmitter": "livy"} | {name: WRONG[name]}
    loaded, problems = settings.parse(given)
    with suppress(settings.SettingsError):
        loaded.single_resource()
    error = settings.SettingsError(problems)
    try:
        loaded.single_resource()
    except settings.SettingsError as single:
        problems = [*problems, *single.problems]
    text = f"{error} {error!r} {error.problems} {problems}"
    assert name in text
    assert [secret for secret in FORMS if secret.lower() in text.lower()] == []


async def test_the_status_of_a_job_reveals_no_secret() -> None:
    batch = {
        "id": 1,
        "state": "dead",
        "errorInfo": [{"message": f"403 for https://a/?sig={KEY}"}],
        "log": [f"java.io.IOException: fs.azure.account.key: AccountKey={KEY}"],
    }

    class Client(LivySubmitter):
        async def _get(self, _handle: str, /) -> dict[str, Any]:
            return batch

    client = Client(f"https://app:{PLANTED}@livy.example", {}, headers)
    status = await client.status("1")
    assert status.error
    assert [secret for secret in FORMS if secret in f"{status}"] == []
