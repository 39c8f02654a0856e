"""The source that reads a metric of Azure Monitor."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from shared.autoscaling.azure_monitor.lag import usual_lag_seconds
from shared.autoscaling.sources import MetricSeries, Read, Reading, Source
from shared.values.bounds import Flag, Name, matching, problems_of
from shared.values.durations import iso
from shared.values.text import UUID, quoted

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
        return usual_lag_seconds(iso(self.time_grain))

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
