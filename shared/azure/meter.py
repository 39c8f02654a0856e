"""Records measurements as OpenTelemetry metrics.

The instruments use OpenTelemetry's API, which costs next to nothing while no exporter is
configured.
"""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry import metrics

from shared.values.metering import Measurement

NAME = "app-service-autoscaler"
GAUGES = {
    "autoscaler.metric": "",
    "autoscaler.capacity": "{instance}",
    "autoscaler.desired": "{instance}",
    "autoscaler.minimum": "{instance}",
    "autoscaler.maximum": "{instance}",
    "autoscaler.age": "s",
    "autoscaler.age.limit": "s",
    "autoscaler.throughput": "{item}/min",
    "autoscaler.throughput.low": "{item}/min",
    "autoscaler.throughput.error": "1",
    "ingestion.lag": "s",
    "ingestion.breaker": "",
    "trends.dates": "{date}",
}
COUNTERS = {
    "autoscaler.decisions": "{decision}",
    "autoscaler.log": "{line}",
    "ingestion.outcomes": "{event}",
}
DURATION_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 270)
"""A function stops itself after 270 seconds."""
HISTOGRAMS = {"autoscaler.sample.age": None, "functions.duration": DURATION_SECONDS}
"""The bounds of the buckets of each histogram of seconds; None for OpenTelemetry's own."""


class OpenTelemetryMeter:
    """See Meter. A measurement whose name is in none of the tables above raises KeyError."""

    def __init__(self, meter: metrics.Meter | None = None) -> None:
        meter = meter or metrics.get_meter(NAME)
        gauges = {name: meter.create_gauge(name, unit).set for name, unit in GAUGES.items()}
        counters = {name: meter.create_counter(name, unit).add for name, unit in COUNTERS.items()}
        histograms = {
            name: meter.create_histogram(
                name, "s", explicit_bucket_boundaries_advisory=bounds
            ).record
            for name, bounds in HISTOGRAMS.items()
        }
        self._record = {**gauges, **counters, **histograms}

    def __call__(self, measurements: Iterable[Measurement]) -> None:
        for name, value, dimensions in measurements:
            self._record[name](value, dict(dimensions))
