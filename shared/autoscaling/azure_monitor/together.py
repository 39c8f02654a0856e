"""The port through which Azure Monitor is read, for many sources in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from shared.autoscaling.azure_monitor.source import AzureMonitorMetric
from shared.autoscaling.errors import ReadFailed
from shared.values.concurrency import AskedTogether
from shared.values.measurements import MetricValue

PlatformReading = tuple[MetricValue, ...] | ReadFailed


class PlatformMetrics(Protocol):
    async def read(
        self, sources: Sequence[AzureMonitorMetric]
    ) -> Mapping[AzureMonitorMetric, PlatformReading]:
        """The samples that are new since the last call, oldest first, or why there is no answer.

        A sample may be older than one that was returned before. None is returned twice by the same
        object. A source that is not due yet is left out. The failure of one source does not affect
        others. ReadDenied is returned once, and again only if its message changes or after the
        source could be read.
        """
        ...

    async def close(self) -> None: ...


class Together(AskedTogether[AzureMonitorMetric, PlatformReading]):
    """Reads metrics of Azure Monitor. Reads that begin at the same time share requests."""

    def __init__(self, platform: Callable[[], PlatformMetrics]) -> None:
        super().__init__(lambda sources: platform().read(sources))

    async def read(self, source: AzureMonitorMetric) -> Sequence[MetricValue]:
        """The new samples, oldest first; none if the source is not due. Raises ReadFailed."""
        answer = await self.ask(source)
        if isinstance(answer, ReadFailed):
            raise answer
        return answer or ()
