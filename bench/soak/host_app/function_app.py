"""The product's own functions, with the soak's handler in the place of the rules."""

from bench.host_app.function_app import app, functions
from bench.soak.handler import handler_of

__all__ = ["app", "functions"]

app.ingestion.handler_of = handler_of
