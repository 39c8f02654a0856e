"""In-memory adapter of PlatformMetrics, for unit tests and simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from shared.autoscaling.azure_monitor.queries import (
    QUERY_EVERY,
    MetricPoint,
    Taken,
    queried_span,
    take,
)
from shared.autoscaling.azure_monitor.source import AzureMonitorMetric, PlatformReading
from shared.autoscaling.errors import ReadFailed
from shared.autoscaling.sources import Source


class MemoryPlatformMetrics:
    """See PlatformMetrics. It returns what was published by now of the given points.

    A point is published ``lag`` after its interval begins, as long as it is not in ``unpublished``.
    A source without points raises no error in the caller: its reading is a ReadFailed.
    """

    def __init__(self, clock: Callable[[], datetime], lag: timedelta = timedelta(0)) -> None:
        self._clock = clock
        self.lag = lag
        self.points: dict[Source, dict[datetime, float]] = {}
        self.unpublished: set[datetime] = set()
        self.failing: dict[AzureMonitorMetric, str] = {}
        self._asked_at: dict[AzureMonitorMetric, datetime] = {}
        self._taken: dict[AzureMonitorMetric, Taken] = {}

    async def read(
        self, sources: Sequence[AzureMonitorMetric]
    ) -> Mapping[AzureMonitorMetric, PlatformReading]:
        now = self._clock()
        due = [source for source in dict.fromkeys(sources) if self._is_due(source, now)]
        self._asked_at.update(dict.fromkeys(due, now))
        return {source: self._reading(source, now) for source in due}

    async def close(self) -> None: ...

    def restart(self) -> None:
        """Forget what was returned, as another process does not know it."""
        self._asked_at.clear()
        self._taken.clear()

    def _is_due(self, source: AzureMonitorMetric, now: datetime) -> bool:
        asked_at = self._asked_at.get(source)
        return asked_at is None or not now - QUERY_EVERY < asked_at <= now

    def _reading(self, source: AzureMonitorMetric, now: datetime) -> PlatformReading:
        if source in self.failing:
            return ReadFailed(self.failing[source])
        if source not in self.points:
            return ReadFailed(f"{source.resource_id}: no answer for {source.metric}")
        published = self._published(source, now)
        samples, self._taken[source] = take(
            published, self._taken.get(source, Taken()), source, now
        )
        return samples

    def _published(self, source: AzureMonitorMetric, now: datetime) -> Iterable[MetricPoint]:
        start = now - queried_span(source)
        for time, value in self.points[source].items():
            if start <= time <= now - self.lag and time not in self.unpublished:
                yield MetricPoint(time, value)
