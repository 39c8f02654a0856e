"""Optimistic concurrency: who loses the race for a resource's state reads and decides again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared.autoscaling.errors import StateConflict

ATTEMPTS_MAX = 10
"""Races lost in a row before the message goes back to the queue."""

T = TypeVar("T")


async def until_won(resource_name: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """The first attempt's answer that is not a StateConflict; the last one's StateConflict else."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return await attempt()
        except StateConflict:
            continue
    raise StateConflict(f"{resource_name}: lost {ATTEMPTS_MAX} races for its state in a row")
