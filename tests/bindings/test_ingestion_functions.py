"""The functions of ingestion with mocked bindings: events, dead letters and the breaker's pages."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import azure.functions as func
import pytest
from azure_functions_runtime.bindings.datumdef import Datum

from local.demo.system import APP_DIR
from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryBreakerStore, MemoryIngestionStore
from shared.autoscaling import Guards, HubMetric, IngestionBreaker, Threshold
from shared.ingestion.errors import BreakerOpen, DependencyDown
from shared.ingestion.model import Effect, Event, OutboxMessage, Stream
from shared.ingestion.store.breakers import BreakerSnapshot
from shared.ingestion.store.rows import EFFECT
from shared.values.measurements import Metric, MetricValue
from shared.values.news import News
from shared.wiring.ingestion import IngestionParts
from tests.builders import NOW, decode_metric, encode_metric, resource
from tests.settings.test_settings import SINGLE

HUB = "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=a2V5"
ENVIRON = {
    **SINGLE,
    "AzureWebJobsStorage": "UseDevelopmentStorage=true",
    "EventHubConnection": HUB,
    "BreakerApprovalKey": "k" * 32,
    "AppUrl": "https://my-app.azurewebsites.net",
    "BreakerFailures": "5",
}
NAMES = {
    "metric_ingest",
    "ingest_tail",
    "breaker_page",
    "breaker_close",
    "breaker_status",
    "breaker_isolate",
    "dead_letters",
    "dead_letter",
    "dead_letter_redrive",
    "dead_letters_purge",
}
STREAM = Stream("shop.servicebus.windows.net", "metrics", "$Default", "3")
RESOURCE = resource(
    metrics={"pushed": HubMetric(), "breaker": IngestionBreaker()},
    policy=Threshold("pushed", 100, 10),
    guards=Guards(breaker_metric="breaker"),
)


def imported(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> ModuleType:
    for key, value in environ.items():
        monkeypatch.setenv(key, value)
    sys.modules.pop("function_app", None)
    return importlib.import_module("function_app")


class App:
    """function_app, freshly imported, with in-memory adapters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("scaling_rules.resources", lambda _settings: [RESOURCE])
        self.now = NOW
        self.store = MemoryIngestionStore(lambda: self.now)
        self.breakers = Breakers(lambda: self.now)
        self.hub = MemoryHubReader(ids=("3",))
        self.sent: list[str] = []
        self.notified: list[News] = []
        self.down = False
        self.install_in(imported(monkeypatch, ENVIRON))

    def install_in(self, module: ModuleType) -> None:
        """Replace the adapters of the module's app with the in-memory ones."""
        self.module, parts = module, module.app.ingestion
        parts.hub, parts.send, parts.store = self.hub, self.send, self.store
        parts.breaker_store = self.breakers
        module.app.notifications.notifier = self

    @property
    def parts(self) -> IngestionParts:
        parts: IngestionParts = self.module.app.ingestion
        return parts

    async def send(self, messages: Sequence[OutboxMessage]) -> None:
        if self.down:
            raise DependencyDown("queue metrics")
        self.sent += [message.body for message in messages]

    async def tell(self, news: News) -> None:
        self.notified.append(news)

    async def close(self) -> None: ...

    async def deliver(self, *events: func.EventHubEvent) -> None:
        await self.module.metric_ingest(list(events))

    async def trip(self, sequence: int = 0) -> None:
        """Let deliveries fail until the breaker opens."""
        self.down = True
        for _ in range(6):
            with pytest.raises(DependencyDown):
                await self.deliver(*batch(own(500), first=sequence))
        self.down = False

    async def get(self, name: str = "metric_ingest", **params: str) -> func.HttpResponse:
        return await self.ask("breaker_page", name, "text/html", params)

    async def ask(
        self,
        function: str,
        name: str = "metric_ingest",
        accept: str = "application/json",
        params: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> func.HttpResponse:
        request = func.HttpRequest(
            "GET",
            "https://x/",
            headers={
                "Accept": accept,
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
            },
            params=params or {},
            route_params={"name": name},
            body=body,
        )
        answer = await getattr(self.module, function)(request)
        assert isinstance(answer, func.HttpResponse)
        return answer

    async def token(self) -> str:
        answer = json.loads((await self.ask("breaker_status")).get_body())
        return str(answer["approval_url"].partition("?token=")[2])


class Breakers(MemoryBreakerStore):
    loads = 0

    async def load(self) -> BreakerSnapshot:
        self.loads += 1
        return await super().load()


def own(value: float, at: datetime = NOW) -> bytes:
    return encode_metric(Metric("plan-1", "pushed", MetricValue(at, value))).encode()


def metadata(count: int, first: int = 0) -> dict[str, Any]:
    system = [
        {"SequenceNumber": first + n, "Offset": n, "EnqueuedTimeUtc": "2026-03-01T12:00:00.627Z"}
        for n in range(count)
    ]
    return {
        "PartitionContext": {"PartitionId": "3", "ConsumerGroup": "$Default"},
        "SystemPropertiesArray": system,
        "PropertiesArray": [{}] * count,
    }


def batch(*bodies: bytes, first: int = 0) -> list[func.EventHubEvent]:
    found = {k: Datum(json.dumps(v), "json") for k, v in metadata(len(bodies), first).items()}
    return [func.EventHubEvent(body=body, trigger_metadata=found) for body in bodies]


def names(module: ModuleType) -> set[str]:
    return {function.get_function_name() for function in module.functions.get_functions()}


@pytest.fixture
async def app(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    app = App(monkeypatch)
    yield app
    await app.module.app.close()
    sys.modules.pop("function_app", None)


async def test_redelivered_events_become_messages_only_once(app: App) -> None:
    for _ in range(2):
        await app.deliver(*batch(own(5), b"nonsense", own(6, NOW + timedelta(seconds=1))))
    assert [decode_metric(body).value.value for body in app.sent] == [5, 6]
    assert [json.loads(body)["id"] for body in app.sent] == ["metrics:3:0", "metrics:3:2"]
    (letter,) = app.store.rows[STREAM].dead_letters.values()
    assert letter.error.startswith("the body is not JSON")


async def test_the_hosts_largest_batch_is_one_transaction(app: App) -> None:
    host = json.loads((APP_DIR / "host.json").read_text())
    size = host["extensions"]["eventHubs"]["maxEventBatchSize"]
    at = [NOW + timedelta(seconds=n) for n in range(size)]
    await app.deliver(*batch(*[own(n, at[n]) for n in range(size)]))
    beginning = 1
    assert (len(app.sent), app.store.rows[STREAM].version) == (size, beginning + 1)


async def test_a_configured_database_stores_all_results_of_ingestion(
    app: App, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/ingestion.db"
    app.module = imported(monkeypatch, {**ENVIRON, "IngestionDatabaseUrl": url})
    app.parts.send, app.parts.hub = app.send, app.hub
    for _ in range(2):
        await app.deliver(*batch(own(5), b"nonsense"))
    assert len(app.sent) == 1
    letters = await app.parts.store.dead_letters(STREAM, None, 10)
    assert [stored.letter.sequence for stored in letters] == [1]


async def test_the_tail_timer_reads_events_that_the_trigger_did_not_deliver(app: App) -> None:
    await app.deliver(*batch(own(5)))
    app.hub.add(STREAM, *[Event(n, "@", NOW, own(n, NOW)) for n in range(3)])
    for _ in range(2):
        await app.module.ingest_tail(Mock(spec=func.TimerRequest))
        app.now += timedelta(minutes=1)
    assert len(app.sent) == 3


async def test_the_tail_timer_removes_rows_after_their_retention_period(app: App) -> None:
    await app.deliver(*batch(own(5)))
    await app.store.memory.overwrite(EFFECT, STREAM.place, Effect(0, "kept"))
    effects = app.store.memory.stored[EFFECT.name, STREAM.place]
    app.hub.add(STREAM, Event(0, "@", NOW, own(5)))
    for days, left in ((0, 1), (89, 1), (90, 0)):
        app.now = NOW + timedelta(days=days)
        app.parts.effect_retention.due = 0
        await app.module.ingest_tail(Mock(spec=func.TimerRequest))
        assert len(effects) == left


async def test_the_functions_of_ingestion_exist_only_if_a_hub_is_configured(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(app.module) >= NAMES
    monkeypatch.setattr("scaling_rules.resources", lambda _settings: [resource()])
    assert not names(imported(monkeypatch, {"EventHubConnection": ""})) & NAMES


async def test_hub_metrics_without_a_configured_hub_stop_the_app(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    (problem,) = imported(monkeypatch, {"EventHubConnection": ""}).failure.problems
    assert problem.startswith("EventHubConnection = '': must be set, because scaling_")


# --- the breaker ------------------------------------------------------------------------------


async def test_an_open_breaker_holds_events_until_an_operator_closes_it_by_the_link(
    app: App,
) -> None:
    await app.trip()
    with pytest.raises(BreakerOpen):
        await app.deliver(*batch(own(501), first=1))
    token = await app.token()
    page = await app.get(token=token)
    text = page.get_body().decode()
    assert page.status_code == 200
    assert page.headers["Referrer-Policy"] == "no-referrer"
    assert "6 failures in 30 s, more than 5" in text
    assert "DependencyDown: queue metrics" in text
    hidden = re.search(r'name="token" value="([^"]+)"', text)
    assert hidden is not None
    assert (await app.breakers.load()).breaker.mode == "open", "the page itself changes nothing"
    form = f"token={hidden[1]}".encode()
    closed = await app.ask("breaker_close", accept="text/html", body=form)
    assert (closed.status_code, b"Events flow again" in closed.get_body()) == (200, True)
    again = await app.ask("breaker_close", body=form)
    assert (again.status_code, b"is over" in again.get_body()) == (403, True)
    assert b"<form" not in (await app.get(token=token)).get_body()
    await app.deliver(*batch(own(500), own(501, NOW + timedelta(seconds=1))))
    assert [decode_metric(body).value.value for body in app.sent] == [500, 501]


async def test_an_opening_is_announced_once_with_a_link_that_closes_the_breaker(
    app: App,
) -> None:
    await app.trip()
    for _ in range(3):
        with pytest.raises(BreakerOpen):
            await app.deliver(*batch(own(501), first=1))
    (news,) = app.notified
    assert (news.kind, news.subject) == ("breaker.opened", "metric_ingest")
    assert "6 failures in 30 s" in f"{news.headline} {news.text}"
    page, _, token = news.link.partition("?token=")
    assert page == "https://my-app.azurewebsites.net/api/breakers/metric_ingest"
    closed = await app.ask("breaker_close", body=json.dumps({"token": token}).encode())
    assert closed.status_code == 200
    app.now += timedelta(minutes=1)
    await app.trip(1)
    assert [news.news_id for news in app.notified] == ["metric_ingest/1", "metric_ingest/2"]


async def test_the_backlog_is_shown_for_each_partition(app: App) -> None:
    await app.deliver(*batch(own(5)))
    app.hub.add(STREAM, *[Event(n, "@", NOW, own(n)) for n in range(8)])
    status = json.loads((await app.ask("breaker_status")).get_body())
    assert status["backlog"] == [{"partition_id": "3", "events": 7, "remark": ""}]
    page = (await app.get(token=await app.token())).get_body().decode()
    assert re.search(r"<td[^>]*>3</td><td[^>]*>7</td>", page), page


@pytest.mark.parametrize("function", ["breaker_page", "breaker_close"])
async def test_a_request_without_a_valid_link_is_refused_without_reading_the_state(
    app: App, function: str
) -> None:
    await app.trip()
    token = await app.token()
    loads = app.breakers.loads
    cases = {"": 401, "x": 403, f"{token}x": 403, token[:-1]: 403}
    for wrong, code in cases.items():
        body = json.dumps({"token": wrong}).encode()
        answer = await app.ask(function, params={"token": wrong}, body=body)
        assert answer.status_code == code, wrong
        assert b"queue metrics" not in answer.get_body()
    assert app.breakers.loads == loads, "a request without a link reads no state"
    app.now += timedelta(hours=25)
    body = json.dumps({"token": token}).encode()
    late = await app.ask(function, params={"token": token}, body=body)
    assert (late.status_code, b"the link expired" in late.get_body()) == (403, True)
    other = await app.ask(function, "another", params={"token": token}, body=body)
    assert other.status_code == 404


async def test_texts_from_outside_are_escaped_on_the_page(app: App) -> None:
    body = json.dumps({"reason": "<script>alert(1)</script>"}).encode()
    stopped = await app.ask("breaker_isolate", body=body)
    assert json.loads(stopped.get_body())["mode"] == "isolated"
    text = (await app.get(token=await app.token())).get_body().decode()
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert b"<script>" not in (await app.get(name="<script>")).get_body()
