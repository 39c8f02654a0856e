"""One partition that is read under a lease: batch after batch into the function."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from azure.eventhub import EventData

from shared.adapters.azure.retry import pause
from shared.adapters.event_hubs.receiver import DeliverData

CLOSING_SECONDS_MAX = 20

Receive = Callable[[DeliverData], Awaitable[None]]
"""Delivers what follows the checkpoint; it only ends by failing."""
Process = Callable[[Sequence[EventData], asyncio.Event], Awaitable[None]]
"""Takes a batch; once the event is set it begins nothing more and writes no checkpoint."""


class PartitionReading:
    """See Reading. Whatever fails is begun again, from the checkpoint."""

    error: BaseException | None = None

    def __init__(
        self,
        receive: Receive,
        process: Process,
        failed: Callable[[Exception], None],
        stopping: asyncio.Event,
    ) -> None:
        self._receive = receive
        self._process = process
        self._failed = failed
        self._stopping = stopping
        self._given_up = asyncio.Event()
        self._batch: asyncio.Future[None] | None = None
        self._failures = 0
        self._task = asyncio.create_task(self._run())

    def cancel(self) -> None:
        self._given_up.set()
        self._task.cancel()

    async def ended(self) -> None:
        """Who stops ends the batch in work before another may have the partition. For who was
        robbed of it that is too late, and waiting would cost it the others."""
        await asyncio.wait([self._task], timeout=CLOSING_SECONDS_MAX)
        if self._batch is not None and self._stopping.is_set():
            await asyncio.wait([self._batch])

    async def _run(self) -> None:
        while True:
            try:
                await self._receive(self._deliver)
            except Exception as error:
                self._failed(error)
                self._failures += 1
                await pause(self._failures)

    async def _deliver(self, events: Sequence[EventData]) -> None:
        """In a task of its own, for an invocation is not to be cancelled."""
        self._failures = 0
        if events and not self._given_up.is_set():
            work: Any = self._process(events, self._given_up)
            self._batch = asyncio.ensure_future(work)
            await asyncio.shield(self._batch)
