"""Starts and stops the delivery of events to a function by its app setting."""

from __future__ import annotations


class NoSwitch:
    """Delivery goes on; the breaker holds what is delivered."""

    async def turn(self, *, on: bool) -> None: ...
