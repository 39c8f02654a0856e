"""The port through which Azure Monitor is read, for many sources in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from shared.autoscaling.azure_monitor.source import AzureMonitorMetric
from shared.autoscaling.errors import ReadFailed
from shared.values.measurements import MetricValue

PlatformReading = tuple[MetricValue, ...] | ReadFailed


class PlatformMetrics(Protocol):
    """Reads metrics of Azure Monitor."""

    async def read(
        self, sources: Sequence[AzureMonitorMetric]
    ) -> Mapping[AzureMonitorMetric, PlatformReading]:
        """The samples that are new since the last call, oldest first, or why there is no answer.

        A sample may be older than one that was returned before. None is returned twice by the same
        object; another object, as after a restart, returns the last minutes again. A source that is
        not due yet is left out. The failure of one source does not affect others. ReadDenied is
        returned once, and again only if its message changes or after the source could be read.
        """
        ...

    async def close(self) -> None: ...


class _Call:
    """A call that begins once all tasks that are ready have named their source."""

    def __init__(self, ask: Callable[[], PlatformMetrics]) -> None:
        self.sources: list[AzureMonitorMetric] = []
        self.waiting = 0
        self._ask = ask
        self.task = asyncio.create_task(self._run())
        self.began = False

    async def _run(self) -> Mapping[AzureMonitorMetric, PlatformReading]:
        self.began = True
        return await self._ask().read(self.sources)


class Together:
    """Reads metrics of Azure Monitor. Reads that begin at the same time share requests."""

    def __init__(self, platform: Callable[[], PlatformMetrics]) -> None:
        self._platform = platform
        self._call: _Call | None = None

    async def read(self, source: AzureMonitorMetric) -> Sequence[MetricValue]:
        """The new samples, oldest first; none if the source is not due. Raises ReadFailed."""
        hash(source)  # an error of the user's own subclass is raised before others wait for it
        call = self._call
        if call is None or call.began:
            call = self._call = _Call(self._platform)
        call.sources.append(source)
        call.waiting += 1
        try:
            found = await asyncio.shield(call.task)
        finally:
            call.waiting -= 1
            if not call.waiting:  # a read that gives up does not end the call for the others
                call.began = True
                call.task.cancel()
        answer = found.get(source, ())
        if isinstance(answer, ReadFailed):
            raise answer
        return answer
