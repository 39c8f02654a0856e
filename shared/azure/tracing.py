"""Records spans, which messages continue, and the durations of functions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared.azure.meter import NAME, VERSION
from shared.values.metering import Meter
from shared.values.redaction import redacted
from shared.values.text import one_line

FIELD = "traceparent"
"""The field of a message that names the span that it continues, by the W3C Trace Context."""
W3C = TraceContextTextMapPropagator()


class Tracer:
    """Records no span until the exporters are ready, or if traces are switched off.

    All spans are *internal*: the Functions host reports each invocation itself, and Application
    Insights would show a span of another kind as a second request.
    """

    def __init__(self, app_name: str | None, meter: Meter) -> None:
        self._app_name, self._meter = app_name or NAME, meter
        self._tracer = trace.get_tracer(NAME, VERSION)

    @contextmanager
    def invocation(
        self, function: str, trigger: str, context: Any, carried: Sequence[str]
    ) -> Iterator[None]:
        """The span and the duration of an invocation. It continues the trace of its message, and
        links that of the host, which the worker's ``context`` names."""
        told = {"faas.name": f"{self._app_name}/{function}", "faas.trigger": trigger}
        parents = [*carried, str(context.trace_context.trace_parent)] if context else carried
        with self.span(function, parents, told) as span:
            if context:
                span.set_attribute("faas.invocation_id", str(context.invocation_id))
            started = time.monotonic()
            try:
                yield
            except BaseException as error:
                told["error.type"] = type(error).__name__
                raise
            finally:
                self._meter([("faas.invoke_duration", time.monotonic() - started, told)])

    @contextmanager
    def span(
        self, name: str, parents: Sequence[str] = (), attributes: Mapping[str, str] | None = None
    ) -> Iterator[trace.Span]:
        """A span that continues the first valid parent, or the current span, and links the
        others."""
        remote = [W3C.extract({FIELD: each}, Context()) for each in parents]
        known = [trace.get_current_span(each).get_span_context() for each in remote]
        with self._tracer.start_as_current_span(
            name,
            next((each for each, span in zip(remote, known, strict=True) if span.is_valid), None),
            attributes=attributes,
            links=[trace.Link(span) for span in known if span.is_valid][1:],
            record_exception=False,  # it is not redacted yet
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except Exception as error:
                span.set_attribute("error.type", kind := type(error).__name__)
                span.set_status(trace.StatusCode.ERROR, redacted(f"{kind}: {one_line(error)}"))
                raise

    def carrying(self, texts: Sequence[str]) -> list[str]:
        """The messages, which continue the current span if there is one."""
        carrier = dict[str, str]()
        W3C.inject(carrier)
        front = f'{{"{FIELD}":"{carrier[FIELD]}",' if carrier else "{"
        return [front + text[1:] if text.startswith('{"') else text for text in texts]
