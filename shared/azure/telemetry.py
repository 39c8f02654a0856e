"""Exports telemetry to Azure Monitor and over OTLP: to one of them or to both.

A thread imports the exporters during the first invocation, because that takes a second. The
OpenTelemetry SDK reads its standard variables (``OTEL_…``) itself.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from opentelemetry import trace

from shared.azure.invocation import lines
from shared.azure.meter import NAME, VERSION, OpenTelemetryMeter
from shared.values.metering import PREFIX
from shared.values.redaction import redact, redacted
from shared.values.text import one_line

log = logging.getLogger(__name__)

METRICS, TRACES, LOGS = "metrics", "traces", "logs"
AZURE = "APPLICATIONINSIGHTS_CONNECTION_STRING"
AUTHENTICATION = "APPLICATIONINSIGHTS_AUTHENTICATION_STRING"
"""``Authorization=AAD``, and ``;ClientId=…`` for a user-assigned identity, as for the host."""
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
SAMPLER, AZURE_TRACES_PER_SECOND = "OTEL_TRACES_SAMPLER", 2.0
"""Application Insights charges for each span, and an invocation has about ten. The SDK's own
sampler replaces this limit."""
EXIT_SECONDS_MAX = 5.0
"""How long the end of the process may be delayed to send the rest of the telemetry."""
NOT_EXPORTED = ("opentelemetry", "urllib3", "azure_functions_")
"""The start of the names of loggers whose lines are not exported: those of the export itself and of
the Functions worker."""
OWN = ("shared.", "function_app")
"""The start of the names of the app's own loggers."""
STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""The fields that every line has."""
ENDS = ("decided", "action_")
"""How the action of a line begins that says how a decision or an action ended."""

Exporter = Any
Factories = Mapping[str, Callable[[], Exporter]]


def export(environ: Mapping[str, str]) -> threading.Thread:
    """Start to export to where these variables say. A destination that cannot be set up is logged,
    and the other one is used."""
    worker = threading.Thread(target=_export, args=(environ,), name="telemetry", daemon=True)
    worker.start()
    return worker


def _export(environ: Mapping[str, str]) -> None:
    exporters: dict[str, list[Exporter]] = defaultdict(list)
    for factories in (_azure_monitor, _otlp):
        try:
            for signal, make in factories(environ).items():
                if _value(environ, f"OTEL_{signal.upper()}_EXPORTER").lower() != "none":
                    exporters[signal].append(make())
        except Exception as error:  # scaling must not depend on telemetry
            _log_failure(f"{type(error).__name__}: {one_line(error)}")
    try:
        providers = list(_providers(exporters, environ))
        if providers:
            _listen()
    except Exception as error:
        _log_failure(f"{type(error).__name__}: {one_line(error)}")
    else:
        atexit.register(_finish, providers)


def _log_failure(text: str) -> None:
    lines.warn(log, "telemetry_failed", redacted(text))


# --- destinations -----------------------------------------------------------------------------


def _azure_monitor(environ: Mapping[str, str]) -> Factories:
    """Without logs, because the Functions host sends the logs to Application Insights itself."""
    connection_string = _value(environ, AZURE)
    if not connection_string:
        return {}
    from azure.monitor.opentelemetry.exporter import (  # noqa: PLC0415  slow
        AzureMonitorMetricExporter,
        AzureMonitorTraceExporter,
    )

    options: dict[str, Any] = {"connection_string": connection_string}
    options |= _credential(_value(environ, AUTHENTICATION))
    return {
        METRICS: partial(AzureMonitorMetricExporter, **options),
        TRACES: partial(AzureMonitorTraceExporter, **options),
    }


def _value(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip()


def _credential(authentication: str) -> dict[str, Any]:
    parts = [part.partition("=") for part in authentication.split(";")]
    pairs = {name.strip().lower(): value.strip() for name, _, value in parts}
    if pairs.get("authorization", "").upper() != "AAD":
        return {}
    from azure.identity import ManagedIdentityCredential  # noqa: PLC0415

    client_id = pairs.get("clientid")
    return {"credential": ManagedIdentityCredential(client_id=client_id)}


def _otlp(environ: Mapping[str, str]) -> Factories:
    endpoint = _value(environ, ENDPOINT)
    if not endpoint:
        return {}
    from opentelemetry.exporter.otlp.proto.http._log_exporter import (  # noqa: PLC0415  slow
        OTLPLogExporter,
    )
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415  slow
        OTLPMetricExporter,
    )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415  slow
        OTLPSpanExporter,
    )

    failures = logging.getLogger("opentelemetry.exporter.otlp")
    failures.addHandler(_FirstFailure(endpoint))
    failures.propagate = False
    return {METRICS: OTLPMetricExporter, TRACES: OTLPSpanExporter, LOGS: OTLPLogExporter}


class _FirstFailure(logging.Handler):
    """Logs the first failure of the OTLP exporters, with the reason that they have logged before it
    as a warning, and drops all others."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._reason = ""
        self._logged = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR:
            self._reason = record.getMessage()
        elif not self._logged:
            self._logged = True
            text = f"{record.getMessage()} {self._reason}".rstrip(" .")
            _log_failure(
                f"{text}. Check {ENDPOINT} ({self._endpoint}). Functions continue, and further "
                "failures to export are not logged"
            )


# --- signals ----------------------------------------------------------------------------------


def _providers(
    exporters: Mapping[str, Sequence[Exporter]], environ: Mapping[str, str]
) -> Iterator[Any]:
    resource = _resource(where(environ))
    if exporters[METRICS]:
        yield _meter_provider(exporters[METRICS], resource)
    if exporters[TRACES]:
        limited = _value(environ, AZURE) and not environ.get(SAMPLER)
        per_second = AZURE_TRACES_PER_SECOND if limited else None
        yield _tracer_provider(exporters[TRACES], resource, per_second)
    if exporters[LOGS]:
        yield _logger_provider(exporters[LOGS], resource)


def where(environ: Mapping[str, str]) -> dict[str, str]:
    """What runs, and where, by the variables that Azure sets; elsewhere, it is being developed."""
    site, region = environ.get("WEBSITE_SITE_NAME"), environ.get("REGION_NAME")
    subscription = environ.get("WEBSITE_OWNER_NAME", "").partition("+")[0]
    group = environ.get("WEBSITE_RESOURCE_GROUP")
    path = f"/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Web/sites"
    named = {
        "service.name": site or NAME,
        "service.version": VERSION,
        "deployment.environment.name": "production" if site else "development",
        "faas.name": site or NAME,
        "cloud.provider": site and "azure",
        "cloud.platform": site and "azure.functions",
        "cloud.region": site and region,
        "cloud.account.id": site and subscription,
        "cloud.resource_id": site and subscription and group and f"{path}/{site}",
    }
    return {name: each for name, each in named.items() if each}


def _resource(attributes: Mapping[str, str]) -> Any:
    """The app and this process, unless the SDK's own settings say otherwise."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415  slow

    process = {"service.instance.id": f"{socket.gethostname()}-{os.getpid()}"}
    return Resource.create({**attributes, **process, **OTELResourceDetector().detect().attributes})


def _meter_provider(exporters: Sequence[Exporter], resource: Any) -> Any:
    from opentelemetry import metrics  # noqa: PLC0415  slow
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415  slow
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415  slow

    readers = [PeriodicExportingMetricReader(_of_new_values(each)) for each in exporters]
    provider = MeterProvider(readers, resource, shutdown_on_exit=False)
    metrics.set_meter_provider(provider)
    return provider


def _of_new_values(exporter: Exporter) -> Exporter:
    """The exporter, which exports a gauge only if it was set since the last export. By default, an
    instance repeats its last value forever, even if another instance has set a newer one."""
    from opentelemetry.sdk.metrics import _Gauge as Gauge  # noqa: PLC0415  slow
    from opentelemetry.sdk.metrics.export import AggregationTemporality  # noqa: PLC0415  slow

    temporality = exporter._preferred_temporality or {}
    exporter._preferred_temporality = {**temporality, Gauge: AggregationTemporality.DELTA}
    return exporter


def _tracer_provider(
    exporters: Sequence[Exporter], resource: Any, traces_per_second: float | None
) -> Any:
    """Traces of functions, decisions and calls to Azure, at most so many a second."""
    from azure.core.settings import settings  # noqa: PLC0415  slow
    from azure.core.tracing.ext.opentelemetry_span import OpenTelemetrySpan  # noqa: PLC0415  slow
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  slow
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415  slow

    class RedactingSpan(OpenTelemetrySpan):
        """A call to Azure. The span of the library keeps the text of its error as it is."""

        def __exit__(self, kind: Any, error: Any, place: Any) -> None:
            if error is not None:
                redact(error)
            super().__exit__(kind, error, place)

    sampler = None
    if traces_per_second is not None:
        from azure.monitor.opentelemetry.exporter import RateLimitedSampler  # noqa: PLC0415  slow

        sampler = RateLimitedSampler(traces_per_second)
    provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
    provider.sampler = unflagged(provider.sampler)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    settings.tracing_implementation = RedactingSpan
    return provider


def unflagged(sampler: Any) -> Any:
    """The sampler without regard to the flags of traces that come from elsewhere: the Functions
    host sets none unless it exports the trace itself."""
    from opentelemetry.sdk.trace.sampling import ParentBased  # noqa: PLC0415  slow

    root = getattr(sampler, "_root", sampler)
    return ParentBased(root, remote_parent_sampled=root, remote_parent_not_sampled=root)


def _logger_provider(exporters: Sequence[Exporter], resource: Any) -> Any:
    from opentelemetry._logs import set_logger_provider  # noqa: PLC0415  slow
    from opentelemetry.sdk._logs import LoggerProvider  # noqa: PLC0415  slow
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor  # noqa: PLC0415  slow

    provider = LoggerProvider(resource, shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    set_logger_provider(provider)
    return provider


def _listen() -> None:
    from opentelemetry.instrumentation.logging.handler import LoggingHandler  # noqa: PLC0415  slow

    handler = Lines(LoggingHandler().emit)
    handler.addFilter(lambda record: not record.name.startswith(NOT_EXPORTED))
    logging.getLogger().addHandler(handler)
    atexit.register(logging.getLogger().removeHandler, handler)  # it runs after _finish


class Lines(logging.Handler):
    """Exports each line. The app's own lines are counted, for alerts, and their fields get the
    app's prefix. Those of the line that ends a decision or an action also go to its span."""

    def __init__(self, export: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(logging.INFO)
        self._export, self._meter = export, OpenTelemetryMeter()

    def emit(self, record: logging.LogRecord) -> None:
        fields = {name: each for name, each in vars(record).items() if name not in STANDARD}
        found = re.match(r"\[(\w+)\]", record.getMessage())
        if found and record.name.startswith(OWN):
            fields["action"] = found[1]
            counted: dict[str, str] = {
                name: fields[name] for name in ("action", "resource") if name in fields
            }
            self._meter([("autoscaler.lines", 1, counted)])
            fields = {f"{PREFIX}{name}": each for name, each in fields.items()}
            if found[1].startswith(ENDS):
                trace.get_current_span().set_attributes(fields)
        standard = {name: each for name, each in vars(record).items() if name in STANDARD}
        self._export(logging.makeLogRecord(standard | fields))


def _finish(providers: Sequence[Any]) -> None:
    """Send the rest, all signals at once, and stop waiting after EXIT_SECONDS_MAX."""
    workers = [threading.Thread(target=each.shutdown, daemon=True) for each in providers]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + EXIT_SECONDS_MAX
    for worker in workers:
        worker.join(max(deadline - time.monotonic(), 0))
