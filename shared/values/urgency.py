"""Marks requests that pass all others where a service limits their number: those of orders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

URGENT_SECONDS_MAX = 60.0
TURN_SHARE = 0.8
"""A request must have its turn within this share of the time limit of what it is for."""
urgent_seconds: ContextVar[float] = ContextVar("urgent_seconds", default=0.0)
"""How long an urgent request waits for its turn at most; 0 if requests are not urgent."""


@contextmanager
def urgent(seconds: float = URGENT_SECONDS_MAX) -> Iterator[None]:
    """Requests that are sent within are urgent, and wait for their turn at most so long."""
    token = urgent_seconds.set(seconds)
    try:
        yield
    finally:
        urgent_seconds.reset(token)
