"""Runs coroutines in virtual time: while nothing is under way on the network, the clock jumps to
the next timer. Requests to stand-ins in the same process are real and take no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if self._loop.under_way or not timeout:
            return super().select(timeout if timeout is None or not timeout else 0.05)
        ready = super().select(0)
        if not ready:
            self._loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """``under_way`` is the number of requests for whose answers the clock stands still."""

    def __init__(self) -> None:
        self.now, self.under_way = 0.0, 0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now


def run(work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
