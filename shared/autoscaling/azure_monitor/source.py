"""The source that reads a metric of Azure Monitor, and the port through which many are read in one
call."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal, Protocol

from shared.autoscaling.errors import ReadFailed
from shared.autoscaling.sources import MetricSeries, Read, Reading, Source
from shared.values.bounds import Flag, Name, matching, problems_of
from shared.values.concurrency import AskedTogether
from shared.values.durations import iso
from shared.values.measurements import MetricValue
from shared.values.text import UUID, quoted

LAG_SECONDS_MAX = 900.0
"""The longest usual lag, for intervals of a minute: ten for publishing, one for the minute, one
until the next query, one until a sum is read a second time, and two for a failed query."""
A_MINUTE = timedelta(minutes=1)

Aggregation = Literal["average", "total", "minimum", "maximum", "count"]
GRAIN = re.compile(r"P(?:([0-9]+)D|T(?:([0-9]+)H|([0-9]+)M))")
"""A duration in days, hours or minutes, such as PT5M."""

RESOURCE_ID = re.compile(
    rf"/subscriptions/{UUID.pattern}/resourceGroups/[^/]+/providers/[^/]+(/[^/]+/[^/]+)+/?", re.I
)
SUCH_AN_ID = (
    "must be a resource ID such as "
    "/subscriptions/…/resourceGroups/…/providers/Microsoft.ServiceBus/namespaces/…"
)


@dataclass(frozen=True, slots=True)
class AzureMonitorMetric(Source):
    """A platform metric of ``resource_id``, read from Azure Monitor once a minute.

    ``time_grain`` is an ISO 8601 duration. ``filter`` selects values of dimensions, such as
    ``EntityName eq 'orders'``; without it, Azure Monitor aggregates over all dimensions.
    ``streamed=True`` takes the metric from the event hub instead, where a diagnostic setting sends
    it. Streamed records that are divided by a dimension are not read: see
    docs/sources/hub-metric.md.
    ``namespace`` is that of a custom metric, such as ``azure.applicationinsights``.
    """

    resource_id: Annotated[str, matching(RESOURCE_ID, SUCH_AN_ID)]
    metric: Name
    aggregation: Aggregation = "average"
    time_grain: Annotated[str, matching(GRAIN, "must be a duration such as 'PT1M'")] = "PT1M"
    filter: str = ""
    streamed: Flag = False
    namespace: str = ""
    roles = ("Monitoring Reader",)
    time_limits = 2  # one for all requests that share a limit of Azure Monitor, one for the last

    async def read(self, at: Reading) -> Read:
        return await at.using(lambda services: services.azure_monitor(self))

    @property
    def usual_lag_seconds(self) -> float:
        return LAG_SECONDS_MAX + (iso(self.time_grain) - A_MINUTE).total_seconds()

    @property
    def highest(self) -> float | None:
        return 100.0 if "percent" in self.metric.lower() else None

    @property
    def is_total(self) -> bool:
        return self.aggregation in ("total", "count")

    @property
    def pushed(self) -> bool:
        return self.streamed

    @property
    def needs_hub(self) -> bool:
        return self.streamed

    @property
    def series(self) -> MetricSeries:
        interval = iso(self.time_grain)
        return MetricSeries(
            self.resource_id, self.metric, self.aggregation, self.time_grain, interval
        )

    def problems(self) -> Iterable[str]:
        yield from problems_of(self)
        for key in ("filter", "namespace"):
            value = getattr(self, key)
            if not isinstance(value, str) or (value and self.streamed):
                yield f"{key} = {quoted(value)}: must be text, and empty for a streamed metric"


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
