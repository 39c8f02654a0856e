"""One trace leads from the reading of a metric to the change of the plan."""

from __future__ import annotations

import json
import logging
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import azure.functions as func
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from local.demo.system import APP_DIR
from local.functions_host.worker import Invocation, Worker, text_datum
from shared.autoscaling import QueueMetric, Threshold
from shared.autoscaling.messages import decode_action, decode_samples, traceparents
from shared.azure import telemetry as exporting
from shared.ingestion.model import OutboxMessage
from shared.values.measurements import CAPACITY_METRIC
from shared.values.samples import encode_samples
from tests.bindings.test_function_app import BACKLOG, ENVIRON, App, message, taken
from tests.bindings.test_functions_and_keys import EVERYTHING
from tests.bindings.test_ingestion_functions import imported
from tests.builders import encode_metric, metric, resource

OTLP = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
TIMER = Mock(spec=func.TimerRequest)
COLLECTED, DECIDED, SCALED, ELSEWHERE = (f"00-{n:032x}-{n:016x}-00" for n in (1, 2, 3, 4))
"""The host's traces of three invocations, and one of somebody else. The flag says: not exported."""


def by_host(traceparent: str) -> Any:
    """The context of an invocation, as the worker passes it."""
    named = SimpleNamespace(trace_parent=traceparent, trace_state="")
    return SimpleNamespace(trace_context=named, invocation_id="invocation-1")


class Spans:
    """The spans that have ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()

    def named(self, name: str) -> list[ReadableSpan]:
        return [each for each in self.exporter.get_finished_spans() if each.name == name]

    def path_to(self, span: ReadableSpan) -> list[str]:
        """The names of the span and of those above it, from the top."""
        by_id = {each.context.span_id: each for each in self.exporter.get_finished_spans()}
        above = by_id.get(span.parent.span_id) if span.parent else None
        return [*(self.path_to(above) if above else ()), span.name]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Spans]:
    """Spans are kept here, and lines are read, as if the export had started."""
    caplog.set_level(logging.INFO)
    spans, provider = Spans(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans.exporter))
    provider.sampler = exporting.unflagged(provider.sampler)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setattr(exporting, "export", lambda _: None)
    lines = exporting.Lines(lambda _: None)
    logging.getLogger().addHandler(lines)
    yield spans
    logging.getLogger().removeHandler(lines)


class Traced(App):
    """The app of a plan that is read, decided on and changed within traces of the host."""

    async def collect(self) -> str:
        await self.module.metric_collector(TIMER, context=by_host(COLLECTED))
        (body,) = taken(self.metrics)
        return body

    async def decide(self, body: str) -> list[str]:
        await self.module.scaling_logic(message(body), context=by_host(DECIDED))
        return taken(self.actions)

    async def scale(self) -> None:
        """Collect and decide until there is an action, and carry it out."""
        actions: list[str] = []
        while not actions:
            actions = await self.decide(await self.collect())
            self.now += timedelta(seconds=15)
        await self.module.scaler(message(actions[0]), context=by_host(SCALED))


@pytest.fixture
async def app(monkeypatch: pytest.MonkeyPatch, spans: Spans) -> AsyncIterator[Traced]:
    module = imported(monkeypatch, {**ENVIRON, **OTLP})
    yield Traced(module)
    sys.modules.pop("function_app", None)
    await module.app.close()


def trace_of(traceparent: str) -> int:
    return int(traceparent.split("-")[1], 16)


def links_of(span: ReadableSpan) -> set[int]:
    return {link.context.trace_id for link in span.links}


# --- one decision -----------------------------------------------------------------------------


async def test_one_trace_leads_from_the_reading_of_a_metric_to_the_change_of_the_plan(
    app: Traced, spans: Spans
) -> None:
    await app.scale()
    assert app.control.changes == [("plan-1", 3)]
    (scaler,) = spans.named("scaler")
    assert spans.path_to(scaler) == ["metric_collector", "scaling_logic", "decide", "scaler"]
    assert {each.context.trace_id for each in spans.exporter.get_finished_spans()} == {
        trace_of(COLLECTED)
    }
    assert links_of(scaler) == {trace_of(SCALED)}
    assert links_of(spans.named("scaling_logic")[0]) == {trace_of(DECIDED)}


async def test_a_call_to_azure_is_a_part_of_the_function_that_makes_it(
    app: Traced, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = app.control.change

    async def put(*arguments: Any) -> int | None:
        with trace.get_tracer("azure").start_as_current_span("PUT"):
            return await change(*arguments)

    monkeypatch.setattr(app.control, "change", put)
    await app.scale()
    (call,) = spans.named("PUT")
    assert spans.path_to(call)[-2:] == ["scaler", "PUT"]


async def test_the_spans_of_a_decision_say_what_was_decided_on_what_values(
    app: Traced, spans: Spans
) -> None:
    await app.scale()
    decided = spans.named("decide")[-1].attributes
    scaled = spans.named("scaler")[-1].attributes
    assert decided is not None
    assert scaled is not None
    expected = {"action": "decided", "resource": "plan-1", "epoch": 1, "current": 2, "desired": 3}
    expected |= {"guard": "none", f"value.{BACKLOG}": 500.0}
    assert (
        expected.items() <= {k.removeprefix("autoscaler."): v for k, v in decided.items()}.items()
    )
    names = ("action", "epoch", "desired")
    assert [scaled[f"autoscaler.{each}"] for each in names] == ["action_confirmed", 1, 3]
    assert scaled["faas.name"] == "app-service-autoscaler/scaler"
    assert scaled["faas.invocation_id"] == "invocation-1"


async def test_of_many_resources_in_one_message_each_has_the_span_of_its_decision(
    app: Traced, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["plan-1", "plan-2"]
    rules = {name: resource(name) for name in names}
    monkeypatch.setattr(app.module, "declared", rules)
    pairs = [metric(2.0, name=CAPACITY_METRIC), metric(5.0)]
    one = json.loads(encode_samples(pairs))
    parts = [one | {"resource_name": each} for each in names]
    many = {"schema_version": 3, "messages": parts, "traceparent": COLLECTED}
    await app.decide(json.dumps(many))
    decisions = spans.named("decide")
    assert {span.attributes["autoscaler.resource"] for span in decisions if span.attributes} == {
        *names
    }
    assert {span.context.trace_id for span in decisions} == {trace_of(COLLECTED)}


async def test_an_action_that_the_reconciler_sends_again_continues_its_span(
    app: Traced, spans: Spans
) -> None:
    while not await app.decide(await app.collect()):
        app.now += timedelta(seconds=15)
    app.now += timedelta(minutes=5)
    await app.module.reconciler(TIMER, context=by_host(ELSEWHERE))
    (action,) = taken(app.actions)
    (span,) = spans.named("reconciler")
    assert traceparents(action) == [f"00-{trace_of(ELSEWHERE):032x}-{span.context.span_id:016x}-01"]


async def test_a_posted_sample_continues_the_trace_of_its_sender(app: Traced, spans: Spans) -> None:
    app.module.declared["plan-1"] = resource(
        metrics={"jobs": QueueMetric()}, policy=Threshold("jobs", upper=100, lower=10)
    )
    app.module.app.scaling.samples_queue = app.samples
    body = encode_metric(metric(500.0, name="jobs")).encode()
    about = {"content-type": "application/json", "content-length": str(len(body))}
    plan = {"name": "plan-1"}
    request = func.HttpRequest("POST", "/", headers=about, route_params=plan, body=body)
    await app.module.push_metrics(request, context=by_host(ELSEWHERE))
    (text,) = taken(app.samples)
    await app.decide(encode_metric(metric(2.0, 30, CAPACITY_METRIC)))
    await app.module.samples_received(message(text), context=by_host(DECIDED))
    decision = spans.named("decide")[-1]
    assert spans.path_to(decision) == ["push_metrics", "samples_received", "decide"]
    assert decision.context.trace_id == trace_of(ELSEWHERE)


async def test_a_message_that_ingestion_sends_continues_its_trace(
    app: Traced, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []

    class Sender:
        def __init__(self, *_: object) -> None: ...

        async def send_texts(self, sent: list[str]) -> None:
            texts.extend(sent)

        async def close(self) -> None: ...

    monkeypatch.setattr("shared.azure.queues.StorageQueueSender", Sender)
    sample = encode_metric(metric(5.0))
    with app.module.app.tracer.span("metric_ingest"):
        sent = [OutboxMessage("1", sample), OutboxMessage("2", "7"), OutboxMessage("3", "{}")]
        await app.module.app.ingestion.send(sent)
    (span,) = spans.named("metric_ingest")
    (carried,) = traceparents(texts[0])
    assert carried.split("-")[2] == f"{span.context.span_id:016x}"
    assert decode_samples(texts[0]) == decode_samples(sample)
    assert texts[1:] == ["7", "{}"]


async def test_a_span_of_a_function_that_fails_has_the_redacted_error(
    app: Traced, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = RuntimeError("AccountKey=c2VjcmV0c2VjcmV0c2VjcmV0; refused")
    monkeypatch.setattr(app.store, "load", Mock(side_effect=error))
    with pytest.raises(RuntimeError):
        await app.decide(encode_metric(metric(5.0, name=BACKLOG)))
    (span,) = spans.named("scaling_logic")
    assert span.status.status_code is trace.StatusCode.ERROR
    assert str(span.status.description).startswith("RuntimeError: ")
    assert "c2VjcmV0" not in span.to_json()
    assert span.attributes is not None
    assert span.attributes["error.type"] == "RuntimeError"


async def test_the_worker_passes_the_trace_of_the_host(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaling_rules.resources", lambda _settings: [resource()])
    for key, value in {**EVERYTHING, **OTLP}.items():
        monkeypatch.setenv(key, value)
    worker = Worker(APP_DIR)
    ids = {each.name: each.function_id for each in await worker.load()}
    invocation = Invocation("message", text_datum("nonsense"), traceparent=COLLECTED)
    answer = await worker.call(ids["telemetry_poison"], invocation)
    worker.close()
    assert answer.succeeded, answer.error
    (span,) = spans.named("telemetry_poison")
    assert (span.context.trace_id, span.parent and span.parent.span_id) == (1, 1)
    assert span.attributes is not None
    assert span.attributes["faas.invocation_id"] == invocation.id


# --- the field of messages --------------------------------------------------------------------

VALID = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SINGLE = json.loads(encode_metric(metric(5.0)))
SAMPLES = {"schema_version": 2, "resource_name": "plan-1", "samples": {}}
MANY = {"schema_version": 3, "messages": [SINGLE, SINGLE]}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (json.dumps(SINGLE), []),
        (json.dumps(SINGLE | {"traceparent": VALID}), [VALID]),
        (json.dumps(SAMPLES | {"traceparent": VALID}, separators=(",", ":")), [VALID]),
        (json.dumps(MANY | {"traceparent": VALID}), [VALID]),
        (b64encode(json.dumps(SINGLE | {"traceparent": VALID}).encode()).decode(), [VALID]),
        (json.dumps([SINGLE | {"traceparent": each} for each in (VALID, COLLECTED, VALID)]),
         [VALID, COLLECTED]),
        (json.dumps([SINGLE | {"traceparent": f"00-{n:032x}-{n:016x}-01"} for n in range(99)]),
         [f"00-{n:032x}-{n:016x}-01" for n in range(32)]),
        (json.dumps(SINGLE | {"name": f'"traceparent":"{VALID}"'}), []),
        ("%%%", []),
    ],
)  # fmt: skip
def test_the_traces_of_a_message_of_any_version_are_found(body: str, found: list[str]) -> None:
    assert traceparents(body) == found


@pytest.mark.parametrize(
    "wrong", [None, 7, "", "nonsense", f"ff{VALID[2:]}", f"00-{0:032x}-{0:016x}-01", VALID * 99, []]
)
async def test_an_invalid_trace_of_a_message_is_ignored(
    wrong: object, app: Traced, spans: Spans
) -> None:
    await app.decide(json.dumps(json.loads(await app.collect()) | {"traceparent": wrong}))
    (span,) = spans.named("scaling_logic")
    assert (span.context.trace_id, list(span.links)) == (trace_of(DECIDED), [])
    assert spans.named("decide")


async def test_a_message_with_the_samples_of_several_traces_links_them(
    app: Traced, spans: Spans
) -> None:
    body = json.loads(await app.collect())
    await app.decide(json.dumps([body | {"traceparent": each} for each in (VALID, ELSEWHERE)]))
    (span,) = spans.named("scaling_logic")
    assert span.context.trace_id == trace_of(VALID)
    assert links_of(span) == {trace_of(ELSEWHERE), trace_of(DECIDED)}


async def test_without_telemetry_messages_carry_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    module = imported(monkeypatch, ENVIRON)
    app = Traced(module)
    actions: list[str] = []
    while not actions:
        body = await app.collect()
        actions = await app.decide(body)
        app.now += timedelta(seconds=15)
    assert module.app.tracer is None
    assert "traceparent" not in body + actions[0]
    await module.app.close()


async def test_messages_with_a_trace_are_read_like_those_without(app: Traced) -> None:
    actions: list[str] = []
    while not actions:
        body = await app.collect()
        actions = await app.decide(body)
        app.now += timedelta(seconds=15)
    for text, decode in ((body, decode_samples), (actions[0], decode_action)):
        plain: Mapping[str, Any] = json.loads(text)
        older = {name: each for name, each in plain.items() if name != "traceparent"}
        assert plain != older
        assert decode(text) == decode(json.dumps(older))
