"""The app keeps to docs/openapi.json, whatever it is sent."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.core.parameters import ParameterLocation

from local import http_reference
from local.demo.hosted_app import hosted_app
from local.demo.system import APP_DIR
from local.functions_host.host import FunctionsHost
from local.twins.autoscaling import MemoryQueueSender, MemoryStateStore
from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryBreakerStore, MemoryIngestionStore
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.store.tables import TableStateStore
from shared.ingestion.breaker.approval import issue
from shared.ingestion.breaker.failure_window import Tally
from shared.ingestion.model import OutboxMessage
from shared.ingestion.store.breakers import BreakerStore
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.tables import TableRows
from shared.settings.connections import StorageConnection
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.web import http, panels
from shared.web.board import Board, Shown
from shared.wiring.app import App
from tests.bindings.test_functions_and_keys import DECLARED, EVERYTHING
from tests.builders import NOW, as_message, encode_metric
from tests.ingestion.dead_letters.test_redrive import store_with
from tests.web.test_panels import days

EXAMPLES = 10
ADDRESS_CHARACTERS_MAX = 7000
START_SECONDS_MAX = 60
BREAKER, PLAN, PARTITION = "metric_ingest", "plan-1", "0"
INCIDENT = 1
KEY = EVERYTHING["BreakerApprovalKey"].encode()
DEPLOYMENT = App(EVERYTHING).ingestion.deployment
TOKEN = issue(KEY, DEPLOYMENT, BREAKER, INCIDENT, NOW, timedelta(hours=1))


class Sender:
    async def send(self, messages: Sequence[OutboxMessage]) -> None: ...

    async def close(self) -> None: ...


async def install_twins(app: App) -> None:
    """Replace the adapters of the app with new in-memory ones that hold something to show."""
    for built in ("ingestion", "web"):
        vars(app).pop(built, None)
    ingestion, hub = app.ingestion, MemoryHubReader(ids=(PARTITION,))
    ingestion.hub, ingestion.send = hub, Sender().send
    app.scaling.samples_queue = MemoryQueueSender()
    letters = MemoryIngestionStore(lambda: NOW)
    ingestion.store = letters
    await store_with(range(1, 7), ingestion.stream(PARTITION), letters)
    ingestion.breaker_store = MemoryBreakerStore(lambda: NOW)
    await ingestion.breaker_store.put_tally(Tally(NOW, "i-1", failures=3, last_error="refused"))
    store, now = MemoryStateStore(lambda: now), NOW
    for minute in range(8):
        now = NOW + timedelta(minutes=minute)
        for name, value in ((CAPACITY_METRIC, 2.0), ("backlog", 200.0)):
            sample = Metric(PLAN, name, MetricValue(now, value))
            await scaling_logic.process_samples(as_message(sample), {PLAN: DECLARED}, store)

    async def trends() -> Shown:
        return Shown(panels.trends(days()))

    shown = {"trends": trends, "breakers": app.web.breakers, "dead-letters": app.web.dead_letters}
    app.web.board = Board({PLAN: DECLARED}, store, 30, shown)


@dataclass(frozen=True, slots=True)
class Api:
    """The app in a local Functions host, whose event loop runs in another thread."""

    app: App
    host: FunctionsHost
    loop: asyncio.AbstractEventLoop

    @property
    def options(self) -> dict[str, Any]:
        """What a request needs to reach the app."""
        keys = {"x-functions-key": self.host.keys.host}
        return {"base_url": f"{self.host.url}/api", "headers": keys}


@pytest.fixture
def api(running: Api) -> Api:
    """The app as it is before any request."""
    asyncio.run_coroutine_threadsafe(install_twins(running.app), running.loop).result()
    return running


@pytest.fixture(scope="module")
def running() -> Iterator[Api]:
    patch = pytest.MonkeyPatch()
    patch.setattr("scaling_rules.resources", lambda _settings: [DECLARED])
    started: list[Api] = []
    ready, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        host = FunctionsHost(APP_DIR, settings=EVERYTHING, listeners={})
        async with hosted_app(host) as app:
            await install_twins(app)
            started.append(Api(app, host, loop))
            ready.set()
            await stop.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(START_SECONDS_MAX)
    yield started[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()
    patch.undo()


REFUSALS = ["400", "401", "403", "404", "411", "413", "415"]

# The rules between the fields of an override, and the declared names, are not in their schema.
BEYOND_THE_SCHEMA = {
    "include-operation-id": ["override", "push_metrics"],
    "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", "400", "404"]}},
}
config = schemathesis.Config.from_dict(
    {
        "generation": {
            "max-examples": EXAMPLES,
            "deterministic": True,
            "allow-extra-parameters": False,  # the page ignores parameters that it does not know
        },
        "checks": {
            "unsupported_method": {"enabled": False},  # see an_undeclared_method_is_not_found
            "negative_data_rejection": {"expected-statuses": REFUSALS},
        },
        "operations": [BEYOND_THE_SCHEMA],
    }
)
schema = schemathesis.openapi.from_path(http_reference.OPENAPI, config=config)


def aim(case: Any) -> None:
    """Direct the request at something that exists, unless its address is meant to be wrong."""
    if case.path_parameters and not case.meta.is_negative_at(ParameterLocation.PATH):
        known = {"name": BREAKER if "breakers" in case.path else PLAN, "partition": PARTITION}
        case.path_parameters |= {k: v for k, v in known.items() if k in case.path_parameters}


def an_undeclared_method_is_not_found(_context: Any, response: Any, case: Any) -> None:
    """The Functions host answers 404, where other servers answer 405."""
    declared = {name.upper() for name in case.operation.schema[case.operation.path]}
    if response.request.method not in declared:
        assert response.status_code == 404


@schema.parametrize()
def test_the_app_answers_as_described_whatever_it_is_sent(case: Any, running: Api) -> None:
    aim(case)
    if len(urlencode(case.query or {})) > ADDRESS_CHARACTERS_MAX:
        return  # the server refuses the address before it knows the route
    case.call_and_validate(**running.options, additional_checks=[an_undeclared_method_is_not_found])


JSON = {"Accept": "application/json"}
OF_PLAN = {"path_parameters": {"name": PLAN}}
OF_BREAKER = {"path_parameters": {"name": BREAKER}}
OF_LETTER = {"path_parameters": {"partition": PARTITION, "sequence": 2}}
TYPE = {"media_type": "application/json"}
SAMPLE = json.loads(encode_metric(Metric(PLAN, "jobs", MetricValue(NOW, 5))))
GOOD: Sequence[tuple[str, dict[str, Any], Any]] = (
    ("dashboard", {}, None),
    ("resources", {}, None),
    ("resource", OF_PLAN, None),
    ("resource_decisions", OF_PLAN, None),
    ("resource_history", OF_PLAN, None),
    ("override", OF_PLAN, {"floor": 3, "reason": "sale", "for": "2h", "by": "anna"}),
    ("push_metrics", OF_PLAN, SAMPLE),
    ("push_metrics", OF_PLAN, [SAMPLE, SAMPLE]),
    ("resource", OF_PLAN, None),  # with the override
    ("trends", {}, None),
    ("breaker_isolate", OF_BREAKER, {"reason": "a test"}),
    ("breakers", {}, None),
    ("breaker_status", OF_BREAKER, None),
    ("breaker_page", {**OF_BREAKER, "query": {"token": TOKEN}}, None),
    ("breaker_page", {**OF_BREAKER, "query": {"token": TOKEN}, "headers": JSON}, None),
    ("breaker_close", {**OF_BREAKER, "headers": JSON}, {"token": TOKEN}),
    ("dead_letters", {"query": {"kind": "poison", "limit": 2}}, None),
    ("dead_letter", OF_LETTER, None),
    ("dead_letter_redrive", OF_LETTER, None),
    ("dead_letters_purge", {}, {"older_than_days": 0}),
)


class FrozenQueue(MemoryQueueSender):
    async def send_texts(self, _texts: Sequence[str]) -> None:
        await asyncio.Event().wait()


def never_answering() -> socket.socket:
    """A port that accepts connections and never answers."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(100)
    return server


def test_every_operation_answers_in_time_while_storage_is_frozen(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ANSWER_SECONDS_MAX", 0.3)
    with never_answering() as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/a"
        storage = StorageConnection(
            "S",
            f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey=eA==;TableEndpoint={address}",
        )

        async def freeze() -> None:
            ingestion, store = api.app.ingestion, TableStateStore(storage)
            ingestion.store = EventStore(TableRows(storage))
            ingestion.breaker_store = BreakerStore(TableRows(storage), BREAKER)
            api.app.scaling.samples_queue = FrozenQueue()
            shown: Any = dict.fromkeys(api.app.web.board.panels, lambda: store.load(PLAN))
            api.app.web.board = Board({PLAN: DECLARED}, store, 30, shown)

        async def thaw() -> None:
            stores: list[Any] = [api.app.ingestion.store, api.app.ingestion.breaker_store]
            for store in (*stores, api.app.web.board.store):
                await store.close()

        asyncio.run_coroutine_threadsafe(freeze(), api.loop).result()
        for name, request, body in GOOD:
            options = request if body is None else {**request, **TYPE, "body": body}
            case = schema.find_operation_by_id(name).Case(**options)
            response = case.call(**api.options, timeout=5)
            case.validate_response(response, excluded_checks=[not_a_server_error])
            assert response.status_code == 503, (name, response.text)
            assert "no answer within 0.3 s" in response.text.lower()
            assert ("not known whether" in response.text) is (case.method == "POST"), name
        asyncio.run_coroutine_threadsafe(thaw(), api.loop).result()


def test_every_operation_succeeds_with_the_described_reply(api: Api) -> None:
    for name, request, body in GOOD:
        options = request if body is None else {**request, **TYPE, "body": body}
        case = schema.find_operation_by_id(name).Case(**options)
        response = case.call(**api.options)
        case.validate_response(response)
        assert response.status_code == 200, (name, response.text)
    assert {name for name, _, _ in GOOD} == {
        operation["operationId"]
        for methods in schema.raw_schema["paths"].values()
        for operation in methods.values()
    }
