"""Telemetry reaches its destinations: Azure Monitor, an OTLP receiver, both, or none."""

from __future__ import annotations

import json
import logging
import re
import socket
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)

from shared.azure import telemetry as exporting
from shared.azure.meter import VERSION
from shared.azure.telemetry import unflagged, where
from shared.values.metering import no_meter
from shared.wiring.app import App
from tests.azure.conftest import insights, run
from tests.azure.receiver import Received, Receiver
from tests.bindings.test_function_app import ENVIRON

GUIDE = Path(__file__).parents[2] / "docs" / "monitoring.md"
SENDING = """
import logging, sys
from types import SimpleNamespace
from opentelemetry import metrics, trace
from opentelemetry._logs import get_logger_provider
from shared.azure.telemetry import AZURE, ENDPOINT, export
from shared.azure.meter import NAME
from shared.azure.tracing import Tracer
from shared.values.metering import no_meter

gauge = metrics.get_meter(NAME).create_gauge("autoscaler.capacity")
gauge.set(1, {"resource": "before the exporter is there"})
export({AZURE: sys.argv[1], ENDPOINT: sys.argv[2]}).join()
gauge.set(7, {"resource": "plan-1"})
by_host = SimpleNamespace(trace_parent=f"00-{1:032x}-{1:016x}-00")
context = SimpleNamespace(trace_context=by_host, invocation_id="1")
with Tracer(None, no_meter).invocation("scaler", "pubsub", context, []):
    pass
trace.get_tracer_provider().force_flush()
logging.getLogger("shared.rules").warning("[decided] plan-1: hold")
for _ in range(3):
    metrics.get_meter_provider().force_flush()
if sys.argv[2]:
    get_logger_provider().force_flush()
"""
"""Sends one value of a gauge, one span and one line of the log, and then exports twice more."""
FAILING = """
import atexit, logging, sys, time
from opentelemetry import metrics
from shared.azure import telemetry as exporting
from shared.azure.meter import NAME

logging.basicConfig(stream=sys.stdout, format="%(message)s")
exporting.EXIT_SECONDS_MAX = 0.5
atexit.register(lambda: print("[ended]", time.monotonic() - ending))
exporting.export({exporting.ENDPOINT: sys.argv[1]}).join()
gauge = metrics.get_meter(NAME).create_gauge("autoscaler.capacity")
for n in range(3):
    gauge.set(n)
    logging.getLogger("shared.rules").warning("[decided] plan-1: hold")
    if "wait" in sys.argv:
        metrics.get_meter_provider().force_flush()
ending = time.monotonic()
"""
"""Sends to a receiver that does not work. With ``wait``, it waits for three attempts to export. In
the end, it prints the seconds that the end of the process took."""


def documented() -> dict[str, set[str]]:
    """The metrics of the guide, each with its dimensions."""
    section = GUIDE.read_text(encoding="utf-8").partition("## Telemetry")[2].partition("\n## ")[0]
    rows = re.findall(r"^- (`autoscaler.*|`faas.*): .*, by (.*)$", section, re.MULTILINE)
    return {
        name: {
            each if "." in each else f"autoscaler.{each}"
            for each in re.sub(r"\(.*?\)", "", attributes).replace(" ", "").split(",")
        }
        for names, attributes in rows
        for name in re.findall(r"`([\w.]+)`", names)
    }


# --- what arrives -----------------------------------------------------------------------------


def test_the_metrics_of_the_guide_arrive_over_otlp_with_their_dimensions(
    emitted: Received,
) -> None:
    arrived: dict[str, set[str]] = {}
    for point in emitted.points:
        arrived.setdefault(point.name, set()).update(point.attributes)
    assert arrived == documented()


def test_application_insights_receives_the_same_metrics_at_the_same_time(
    emitted: Received,
) -> None:
    contents = [each["data"]["baseData"] for each in emitted.envelopes]
    metrics = [each for each in contents if "metrics" in each]
    arrived = {(each["metrics"][0]["name"], *sorted(each["properties"])) for each in metrics}
    assert {(point.name, *sorted(point.attributes)) for point in emitted.points} <= arrived


def test_log_lines_arrive_over_otlp_with_their_fields(emitted: Received) -> None:
    spans = {span.span_id for span in emitted.spans if span.name == "decide"}
    decided = [line for line in emitted.lines if line.body.startswith("[decided] plan-1: ")]
    assert spans >= {line.span_id for line in decided}
    (first, *_) = [line for line in decided if "autoscaler.epoch" in line.attributes]
    fields = {each.removeprefix("autoscaler."): v for each, v in first.attributes.items()}
    assert first.body.startswith(f"[decided] plan-1: {fields['current']} → {fields['desired']}")
    told = ("resource", "epoch", "guard", "evidence.rate_source")
    assert [fields[each] for each in told] == ["plan-1", 1, "none", "estimated from the backlog"]
    assert fields["value.orders-billing-backlog"] == fields["evidence.backlog"] > 0


def test_every_line_of_the_app_has_its_action_and_a_span(emitted: Received) -> None:
    lines = [line for line in emitted.lines if line.logger.startswith("shared.")]
    lines = [line for line in lines if not line.body.startswith("[override]")]  # no function did it
    actions = [re.match(r"\[(\w+)\]", line.body) for line in lines]
    assert [line.attributes.get("autoscaler.action") for line in lines] == [
        found and found[1] for found in actions
    ]
    assert {"decided", "poison", "dead_lettered", "trends_failed"} <= {
        found[1] for found in actions if found
    }
    assert {span.span_id for span in emitted.spans} >= {line.span_id for line in lines}


def test_attributes_have_names_of_the_conventions_or_the_prefix_of_the_app(
    emitted: Received,
) -> None:
    every = [point.attributes for point in emitted.points]
    every += [line.attributes for line in emitted.lines if line.logger.startswith("shared.")]
    spans = {span.name: span.attributes for span in emitted.spans}
    every += [spans[name] for name in ("metric_collector", "scaling_logic", "decide", "scaler")]
    names = {name for attributes in every for name in attributes}
    assert {name for name in names if not name.startswith("autoscaler.")} <= {
        "error.type",
        "exception.message",
        "exception.stacktrace",
        "exception.type",
        "faas.name",
        "faas.trigger",
        "faas.invocation_id",
    }


def test_every_metric_has_a_description_and_a_unit(emitted: Received) -> None:
    lacking = [each.name for each in emitted.points if not (each.description and each.unit)]
    assert lacking == []


def test_application_insights_receives_log_lines_from_the_host_only(emitted: Received) -> None:
    """Otherwise each line would be there twice, and alerts would count it twice."""
    names = {each["name"].rpartition(".")[2] for each in emitted.envelopes}
    assert names == {"Metric", "RemoteDependency"}


def test_traces_of_calls_to_azure_arrive_at_both_destinations(emitted: Received) -> None:
    call = "QueueClient.get_queue_properties"
    assert call in {span.name for span in emitted.spans}
    assert call in json.dumps(emitted.envelopes)


def test_standard_settings_of_opentelemetry_apply(emitted: Received) -> None:
    over_otlp = [each for each in emitted.headers if "protobuf" in each["content-type"]]
    assert {each.get("x-tenant") for each in over_otlp} == {"shop"}
    assert {each["deployment.environment.name"] for each in emitted.resources} == {"test"}


def test_each_process_has_a_name_of_its_own(emitted: Received) -> None:
    """Prometheus refuses two processes whose series have the same labels."""
    named = {(each["service.name"], each["service.instance.id"]) for each in emitted.resources}
    ((service, process),) = named
    assert service == "app-service-autoscaler"
    assert re.fullmatch(rf"{re.escape(socket.gethostname())}-\d+", process)


@pytest.mark.parametrize("to_azure", [False, True])
def test_a_gauge_is_exported_once_for_each_time_that_it_is_set(
    receiver: Receiver, *, to_azure: bool
) -> None:
    """Otherwise an idle instance would repeat an old capacity beside another instance's new one."""
    destinations = (insights(receiver.url), "") if to_azure else ("", receiver.url)
    run(["-c", SENDING, *destinations], {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    received = receiver.received
    contents = [each["data"]["baseData"] for each in received.envelopes]
    sent = [each["metrics"][0] for each in contents if "metrics" in each]
    values = [point.value for point in received.points if point.name == "autoscaler.capacity"]
    values += [each["value"] for each in sent if each["name"] == "autoscaler.capacity"]
    assert values == [7]
    assert [line.body for line in received.lines] == ["[decided] plan-1: hold"] * (not to_azure)


def test_a_trace_is_exported_although_the_host_does_not_export_it(receiver: Receiver) -> None:
    run(["-c", SENDING, "", receiver.url], {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    assert [span.trace_id.hex() for span in receiver.received.spans] == [f"{1:032x}"]


@pytest.mark.parametrize(
    ("sampler", "sampled"),
    [
        (DEFAULT_ON, True),
        (ALWAYS_ON, True),
        (ParentBasedTraceIdRatio(1), True),
        (TraceIdRatioBased(0), False),
        (DEFAULT_OFF, False),
    ],
)
@pytest.mark.parametrize("flag", [0, 1])
def test_the_setting_selects_traces_whatever_the_flag_of_the_host_is(
    sampler: Sampler, flag: int, *, sampled: bool
) -> None:
    host = trace.SpanContext(1, 1, is_remote=True, trace_flags=trace.TraceFlags(flag))
    parent = trace.set_span_in_context(trace.NonRecordingSpan(host))
    result = unflagged(sampler).should_sample(parent, 1, "scaler")
    assert result.decision.is_sampled() == sampled


AZURE = {
    "WEBSITE_SITE_NAME": "my-app",
    "WEBSITE_OWNER_NAME": "sub-1+group-1-WestEuropewebspace-Linux",
    "WEBSITE_RESOURCE_GROUP": "group-1",
    "REGION_NAME": "West Europe",
}
SITE = "/subscriptions/sub-1/resourceGroups/group-1/providers/Microsoft.Web/sites/my-app"
NAMED = {"service.name": "my-app", "faas.name": "my-app", "service.version": VERSION}
IN_AZURE = {"cloud.provider": "azure", "cloud.platform": "azure.functions"}
PRODUCTION = {**NAMED, **IN_AZURE, "deployment.environment.name": "production"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            AZURE,
            PRODUCTION
            | {"cloud.region": "West Europe", "cloud.account.id": "sub-1"}
            | {"cloud.resource_id": SITE},
        ),
        ({"WEBSITE_SITE_NAME": "my-app"}, PRODUCTION),
        (
            {},
            {
                "service.name": "app-service-autoscaler",
                "faas.name": "app-service-autoscaler",
                "service.version": VERSION,
                "deployment.environment.name": "development",
            },
        ),
    ],
)
def test_the_resource_says_what_runs_and_where(
    environ: dict[str, str], expected: dict[str, str]
) -> None:
    assert where(environ) == expected


@pytest.mark.parametrize(
    "text", ["ClientId=one;Authorization=AAD", " authorization=aad; clientid = one "]
)
def test_the_identity_of_telemetry_is_read_as_written_by_hand(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise telemetry would be sent without a login, or with that of the app."""
    monkeypatch.setattr("azure.identity.ManagedIdentityCredential", dict)
    assert exporting._credential(text) == {"credential": {"client_id": "one"}}


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads((GUIDE.parents[1] / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION


# --- receivers that do not work ---------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never replies."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed() -> str:
    """An address that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["silent", "closed", "collector:4318"])
def test_a_receiver_that_does_not_work_is_reported_once(
    kind: str, request: pytest.FixtureRequest
) -> None:
    endpoint = kind if ":" in kind else request.getfixturevalue(kind)
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT": "0.2"}
    printed = run(["-c", FAILING, endpoint, "wait"], settings)
    assert printed.count("[decided]") == 3
    reported, ended = [line for line in printed.splitlines() if "[decided]" not in line]
    assert ended.startswith("[ended]")
    assert reported.startswith("[telemetry_failed] Failed to export metrics batch")
    assert f"Check OTEL_EXPORTER_OTLP_ENDPOINT ({endpoint})" in reported


def test_a_receiver_that_never_replies_does_not_keep_the_process_alive(silent: str) -> None:
    """Without a limit of the app's own, the SDK waits for half a minute."""
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": silent, "OTEL_EXPORTER_OTLP_TIMEOUT": "600"}
    printed = run(["-c", FAILING, silent], settings)
    (seconds,) = re.findall(r"\[ended\] ([\d.]+)", printed)
    assert float(seconds) < 15


def test_one_destination_works_although_the_other_is_set_wrong(receiver: Receiver) -> None:
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
    run(["-c", SENDING, "not a connection string", receiver.url], settings)
    points = [point for point in receiver.received.points if point.name == "autoscaler.capacity"]
    assert [point.value for point in points] == [7]


# --- the settings -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "signals"),
    [
        ({}, {}),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, {"otlp": "metrics traces logs"}),
        ({"APPLICATIONINSIGHTS_CONNECTION_STRING": "I=1"}, {"azure": "metrics traces"}),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": " http://collector:4318",
                "OTEL_LOGS_EXPORTER": " None",
                "OTEL_METRICS_EXPORTER": "otlp",
            },
            {"otlp": "metrics traces"},
        ),
    ],
)
def test_settings_choose_destinations_and_signals(
    settings: dict[str, str], signals: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporters are recorded, and nothing is exported."""
    made: dict[str, list[str]] = {}

    def recording(destination: str, factories: Any) -> Any:
        def named(signal: str) -> None:
            made.setdefault(destination, []).append(signal)

        return lambda environ: {each: partial(named, each) for each in factories(environ)}

    monkeypatch.setattr(exporting, "_FirstFailure", lambda _: logging.NullHandler())
    for destination, name in {"azure": "_azure_monitor", "otlp": "_otlp"}.items():
        monkeypatch.setattr(exporting, name, recording(destination, getattr(exporting, name)))
    monkeypatch.setattr(exporting, "_providers", lambda *_: [])
    monkeypatch.setattr(exporting, "export", exporting._export)
    app = App({**ENVIRON, **settings})
    assert (app.meter is not no_meter) == bool(signals)
    assert app.meter is app.meter
    assert {name: " ".join(each) for name, each in made.items()} == signals


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"A": "1"}, None),
        ({exporting.AZURE: "I=1"}, 2.0),
        ({exporting.AZURE: "I=1", exporting.SAMPLER: "always_on"}, None),
    ],
)
def test_spans_for_azure_are_limited_unless_the_sdk_has_a_sampler_of_its_own(
    settings: dict[str, str], limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "_resource", lambda _: None)
    monkeypatch.setattr(exporting, "_tracer_provider", lambda *given: given[-1])
    exporters: dict[str, list[str]] = {"metrics": [], "traces": ["exporter"], "logs": []}
    assert list(exporting._providers(exporters, settings)) == [limit]
