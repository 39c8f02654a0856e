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

    All spans have the kind *internal*. The Functions host reports each invocation itself, and
    Application Insights would show a span of another kind as a second request.
    """

    def __init__(self, app_name: str | None, meter: Meter) -> None:
        self._app_name, self._meter = app_name or NAME, meter
        self._tracer = trace.get_tracer(NAME, VERSION)

    @contextmanager
    def invocation(
        self, function: str, trigger: str, context: Any, carried: Sequence[str]
    ) -> Iterator[None]:
        """The span and the duration of an invocation. It continues the trace that its message
        carries, and links that of the host, which the worker's ``context`` names.
        """
        of_metric = {"faas.name": f"{self._app_name}/{function}", "faas.trigger": trigger}
        parents, of_span = [*carried], dict(of_metric)
        if context is not None:
            parents.append(str(context.trace_context.trace_parent))
            of_span["faas.invocation_id"] = str(context.invocation_id)
        with self.span(function, parents, of_span):
            started = time.monotonic()
            try:
                yield
            except BaseException as error:
                of_metric["error.type"] = type(error).__name__
                raise
            finally:
                seconds = time.monotonic() - started
                self._meter([("faas.invoke_duration", seconds, of_metric)])

    @contextmanager
    def span(
        self, name: str, parents: Sequence[str] = (), attributes: Mapping[str, str] | None = None
    ) -> Iterator[None]:
        """A span that continues the first valid parent and links the others. Without a parent, it
        is a part of the current span.
        """
        if not _is_ready():
            yield
            return
        remote = [span for span in map(_remote, parents) if span.get_span_context().is_valid]
        with self._tracer.start_as_current_span(
            name,
            trace.set_span_in_context(remote[0]) if remote else None,
            attributes=attributes,
            links=[trace.Link(span.get_span_context()) for span in remote[1:]],
            record_exception=False,  # it is not redacted yet
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                kind = type(error).__name__
                span.set_attribute("error.type", kind)
                span.set_status(trace.StatusCode.ERROR, redacted(f"{kind}: {one_line(error)}"))
                raise

    def carrying(self, texts: Sequence[str]) -> list[str]:
        """The messages, which continue the current span unless they continue another one."""
        carrier = dict[str, str]()
        if _is_ready():
            W3C.inject(carrier)
        start, given = f'{{"{FIELD}":"', carrier.get(FIELD)
        return [
            f'{start}{given}",{text[1:]}'
            if given and text.startswith('{"') and not text.startswith(start)
            else text
            for text in texts
        ]


def _is_ready() -> bool:
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def _remote(traceparent: str) -> trace.Span:
    return trace.get_current_span(W3C.extract({FIELD: traceparent}, Context()))
