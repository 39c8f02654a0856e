"""Records measurements as OpenTelemetry metrics.

The instruments use OpenTelemetry's API, which costs next to nothing while no exporter is
configured.
"""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry import metrics

from shared.values.metering import PREFIX, Measurement

NAME, VERSION = "app-service-autoscaler", "0.1.0"
"""As in pyproject.toml, which is not deployed."""
GAUGES = {
    "autoscaler.metric": ("{value}", "Newest value of a metric that led to a decision"),
    "autoscaler.capacity": ("{instance}", "Instances of the plan"),
    "autoscaler.desired": ("{instance}", "Instances that the plan should have"),
    "autoscaler.minimum": ("{instance}", "Declared minimum of instances"),
    "autoscaler.maximum": ("{instance}", "Declared maximum of instances"),
    "autoscaler.age": ("s", "Estimated age of the oldest waiting item"),
    "autoscaler.age.limit": ("s", "Age limit of the goal"),
    "autoscaler.throughput": ("{item}/min", "Items that an instance finishes, likely value"),
    "autoscaler.throughput.low": ("{item}/min", "Items that an instance finishes, planned with"),
    "autoscaler.throughput.error": ("1", "Relative standard error of the throughput"),
    "autoscaler.ingestion.lag": ("s", "Time from an event's arrival in the hub to its commit"),
    "autoscaler.ingestion.breaker": (
        "{state}",
        "State of the circuit breaker: 0 closed, 1 half open, 2 open, 3 isolated",
    ),
    "autoscaler.trends.dates": ("{date}", "Dates of the last week, by the state of their run"),
}
COUNTERS = {
    "autoscaler.decisions": ("{decision}", "Decisions"),
    "autoscaler.log": ("{line}", "Entries of the decision log that are no decisions"),
    "autoscaler.ingestion.outcomes": ("{event}", "Events that were processed, by outcome"),
}
DURATION_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 270)
"""A function stops itself after 270 seconds."""
HISTOGRAMS = {
    "autoscaler.sample.age": (None, "Time from a sample to its decision"),
    "faas.invoke_duration": (DURATION_SECONDS, "Duration of an invocation of a function"),
}
"""The bounds of the buckets of each histogram of seconds; None for OpenTelemetry's own."""


class OpenTelemetryMeter:
    """See Meter. A measurement whose name is in none of the tables above raises KeyError.

    A dimension gets the app's prefix, unless its name is one of OpenTelemetry's, with a dot.
    """

    def __init__(self, meter: metrics.Meter | None = None) -> None:
        meter = meter or metrics.get_meter(NAME, VERSION)
        gauges = {name: meter.create_gauge(name, *about).set for name, about in GAUGES.items()}
        counters = {
            name: meter.create_counter(name, *about).add for name, about in COUNTERS.items()
        }
        histograms = {
            name: meter.create_histogram(
                name, "s", description, explicit_bucket_boundaries_advisory=bounds
            ).record
            for name, (bounds, description) in HISTOGRAMS.items()
        }
        self._record = {**gauges, **counters, **histograms}

    def __call__(self, measurements: Iterable[Measurement]) -> None:
        for name, value, dimensions in measurements:
            named = {key if "." in key else PREFIX + key: each for key, each in dimensions.items()}
            self._record[name](value, named)
