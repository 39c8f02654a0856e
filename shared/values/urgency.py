"""Marks requests that pass all others where a service limits their number: those of orders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

is_urgent: ContextVar[bool] = ContextVar("is_urgent", default=False)


@contextmanager
def urgent(*, when: bool = True) -> Iterator[None]:
    """Requests that are sent within are urgent, if ``when`` is true."""
    token = is_urgent.set(when or is_urgent.get())
    try:
        yield
    finally:
        is_urgent.reset(token)
