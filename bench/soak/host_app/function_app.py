"""The product's own functions, with the soak's handler in the place of the rules."""

from bench.host_app.function_app import app
from bench.soak.handler import handler_of
from shared.wiring import ingestion as wiring_ingestion

__all__ = ["app"]

wiring_ingestion.handler = handler_of
