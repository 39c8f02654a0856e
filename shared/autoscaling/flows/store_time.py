"""The store's clock, for flows that need no state."""

from __future__ import annotations

from datetime import datetime

from shared.autoscaling.errors import StateUnreadable
from shared.autoscaling.ports import StateStore


async def store_time(resource_name: str, store: StateStore) -> datetime:
    """The time of a read, whether or not what was read can be understood."""
    try:
        return (await store.load(resource_name)).read_at
    except StateUnreadable as error:
        return error.read_at
