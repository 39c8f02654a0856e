"""The app's own functions, with the soak test's handler instead of metric decoding."""

from bench.host_app.function_app import app, functions
from bench.soak.handler import handler_of

__all__ = ["app", "functions"]

app.ingestion.handler_of = handler_of
