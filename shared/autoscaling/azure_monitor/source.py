"""The source that reads a metric of Azure Monitor."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from shared.autoscaling.azure_monitor.lag import GRAIN, grain_of, usual_lag_seconds
from shared.autoscaling.sources import Read, Reading, Series, Source, name_problems
from shared.values.text import UUID

Aggregation = Literal["average", "total", "minimum", "maximum", "count"]
AGGREGATIONS = ("average", "total", "minimum", "maximum", "count")
RESOURCE_ID = re.compile(
    rf"/subscriptions/{UUID.pattern}/resourceGroups/[^/]+/providers/[^/]+(/[^/]+/[^/]+)+/?", re.I
)
EXAMPLE = "/subscriptions/…/resourceGroups/…/providers/Microsoft.ServiceBus/namespaces/…"


@dataclass(frozen=True, slots=True)
class AzureMonitorMetric(Source):
    """A platform metric of ``resource_id``, read from Azure Monitor once a minute.

    ``time_grain`` is an ISO 8601 duration. ``filter`` selects values of dimensions, such as
    ``EntityName eq 'orders'``; without it, Azure Monitor aggregates over all dimensions.
    ``streamed=True`` takes the metric from the event hub instead, where a diagnostic setting sends
    it. Streamed records that are divided by a dimension are not read: see docs/events.md.
    ``namespace`` is that of a custom metric, such as ``azure.applicationinsights``.
    """

    resource_id: str
    metric: str
    aggregation: Aggregation = "average"
    time_grain: str = "PT1M"
    filter: str = ""
    streamed: bool = False
    namespace: str = ""
    roles = ("Monitoring Reader",)
    time_limits = 2  # one for all requests that share a limit of Azure Monitor, one for the last

    async def read(self, at: Reading) -> Read:
        return await at.using(lambda services: services.azure_monitor(self))

    @property
    def usual_lag_seconds(self) -> float:  # type: ignore[override]
        return usual_lag_seconds(grain_of(self.time_grain))

    @property
    def highest(self) -> float | None:  # type: ignore[override]
        return 100.0 if "percent" in self.metric.lower() else None

    @property
    def is_total(self) -> bool:
        return self.aggregation in ("total", "count")

    @property
    def pushed(self) -> bool:
        return self.streamed

    @property
    def needs_hub(self) -> bool:  # type: ignore[override]
        return self.streamed

    @property
    def series(self) -> Series:
        interval = grain_of(self.time_grain)
        return Series(self.resource_id, self.metric, self.aggregation, self.time_grain, interval)

    def problems(self) -> Iterable[str]:
        is_name = not list(name_problems("", self.resource_id))
        if not is_name or not RESOURCE_ID.fullmatch(self.resource_id):
            yield f"resource_id = {self.resource_id!r}: must be a resource ID such as {EXAMPLE}"
        yield from name_problems("metric", self.metric)
        if self.aggregation not in AGGREGATIONS:
            yield f"aggregation = {self.aggregation!r}: must be one of {', '.join(AGGREGATIONS)}"
        if not isinstance(self.time_grain, str) or not GRAIN.fullmatch(self.time_grain):
            yield f"time_grain = {self.time_grain!r}: must be a duration such as 'PT1M'"
        for key in ("filter", "namespace"):
            value = getattr(self, key)
            if not isinstance(value, str) or (value and self.streamed):
                yield f"{key} = {value!r}: must be text, and empty for a streamed metric"
        if not isinstance(self.streamed, bool):
            yield f"streamed = {self.streamed!r}: must be True or False"
