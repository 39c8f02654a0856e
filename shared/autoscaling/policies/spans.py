"""Spans of time, of which the same few are asked for with every sample."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache


@lru_cache
def span(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
