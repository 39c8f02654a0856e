"""A receiver of telemetry on this machine: OTLP over HTTP, and the protocol of Azure Monitor."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


@dataclass(frozen=True)
class Point:
    """One data point. ``kind`` is gauge, sum or histogram, as in the protocol."""

    name: str
    description: str
    unit: str
    kind: str
    attributes: dict[str, Any]
    value: float
    """The sum of the values, if the point is a histogram."""
    bounds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Line:
    """One line of the log."""

    body: str
    logger: str
    attributes: dict[str, Any]
    span_id: bytes


@dataclass(frozen=True)
class Span:
    """One span, with the IDs of the spans that it links."""

    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    links: tuple[bytes, ...]
    attributes: dict[str, Any]


@dataclass
class Received:
    """All that has arrived so far."""

    points: list[Point] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    envelopes: list[dict[str, Any]] = field(default_factory=list)
    """What arrived by the protocol of Azure Monitor."""

    def add(self, path: str, body: bytes) -> bytes:
        """Decode a request and return the body of the reply."""
        match path:
            case "/v1/metrics":
                self._add_metrics(ExportMetricsServiceRequest.FromString(body))
            case "/v1/logs":
                self._add_logs(ExportLogsServiceRequest.FromString(body))
            case "/v1/traces":
                self._add_spans(ExportTraceServiceRequest.FromString(body))
            case "/v2.1/track":
                envelopes = json.loads(body)
                self.envelopes += envelopes
                count = {"itemsReceived": len(envelopes), "itemsAccepted": len(envelopes)}
                return json.dumps({**count, "errors": []}).encode()
            case _:
                raise LookupError(path)
        return b""

    def _add_metrics(self, request: ExportMetricsServiceRequest) -> None:
        for of_resource in request.resource_metrics:
            self.resources.append(plain(of_resource.resource.attributes))
            for scope in of_resource.scope_metrics:
                for metric in scope.metrics:
                    kind = str(metric.WhichOneof("data"))
                    for point in getattr(metric, kind).data_points:
                        histogram = kind == "histogram"
                        number = 0.0 if histogram else getattr(point, point.WhichOneof("value"))
                        self.points.append(
                            Point(
                                metric.name,
                                metric.description,
                                metric.unit,
                                kind,
                                plain(point.attributes),
                                point.sum if histogram else number,
                                tuple(point.explicit_bounds) if histogram else (),
                            )
                        )

    def _add_logs(self, request: ExportLogsServiceRequest) -> None:
        for of_resource in request.resource_logs:
            self.resources.append(plain(of_resource.resource.attributes))
            for scope in of_resource.scope_logs:
                for each in scope.log_records:
                    attributes = plain(each.attributes)
                    body = each.body.string_value
                    self.lines.append(Line(body, scope.scope.name, attributes, each.span_id))

    def _add_spans(self, request: ExportTraceServiceRequest) -> None:
        for of_resource in request.resource_spans:
            self.resources.append(plain(of_resource.resource.attributes))
            for scope in of_resource.scope_spans:
                self.spans += [
                    Span(
                        span.name,
                        span.trace_id,
                        span.span_id,
                        span.parent_span_id,
                        tuple(link.span_id for link in span.links),
                        plain(span.attributes),
                    )
                    for span in scope.spans
                ]


def plain(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in attributes
    }


class Receiver:
    """Listens on a free port of this machine while it is entered."""

    def __init__(self) -> None:
        self.received = Received()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                try:
                    reply = received.add(
                        self.path, gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
                    )
                    received.headers.append({k.lower(): v for k, v in self.headers.items()})
                except LookupError:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, format: str, *args: object) -> None: ...

        return Handler

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
