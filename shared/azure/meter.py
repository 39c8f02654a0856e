"""Records measurements as OpenTelemetry metrics, which cost next to nothing without an exporter."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry import metrics

from shared.values.metering import PREFIX, Measurement

NAME, VERSION = "app-service-autoscaler", "0.1.0"
"""As in pyproject.toml, which is not deployed."""
INSTRUMENTS = {
    "autoscaler.metric": ("gauge", "{value}", "Newest value of a metric that led to a decision"),
    "autoscaler.capacity": ("gauge", "{instance}", "Instances of the plan"),
    "autoscaler.desired": ("gauge", "{instance}", "Instances that the plan should have"),
    "autoscaler.minimum": ("gauge", "{instance}", "Declared minimum of instances"),
    "autoscaler.maximum": ("gauge", "{instance}", "Declared maximum of instances"),
    "autoscaler.age": ("gauge", "s", "Estimated age of the oldest waiting item"),
    "autoscaler.age.limit": ("gauge", "s", "Age limit of the goal"),
    "autoscaler.throughput": ("gauge", "{item}/min", "Likely rate of an instance"),
    "autoscaler.throughput.low": ("gauge", "{item}/min", "Rate of an instance to plan with"),
    "autoscaler.throughput.error": ("gauge", "1", "Relative standard error of the throughput"),
    "autoscaler.ingestion.lag": ("gauge", "s", "Time from the arrival of an event to its commit"),
    "autoscaler.ingestion.breaker": (
        "gauge",
        "{state}",
        "Circuit breaker, from closed to isolated",
    ),
    "autoscaler.trends.dates": ("gauge", "{date}", "Dates of the last week by state of their run"),
    "autoscaler.decisions": ("counter", "{decision}", "Decisions"),
    "autoscaler.log": ("counter", "{entry}", "Other entries of the decision log"),
    "autoscaler.lines": ("counter", "{line}", "Lines of the log"),
    "autoscaler.ingestion.outcomes": ("counter", "{event}", "Events by their outcome"),
    "autoscaler.sample.age": ("histogram", "s", "Time from a sample to its decision"),
    "faas.invoke_duration": ("histogram", "s", "Duration of an invocation of a function"),
}
RECORD = {"gauge": "set", "counter": "add", "histogram": "record"}
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 270)
"""The bounds of the buckets of durations. A function stops itself after 270 seconds."""
BUCKETS = {"faas.invoke_duration": {"explicit_bucket_boundaries_advisory": SECONDS}}


class OpenTelemetryMeter:
    """See Meter. A measurement whose name is not in INSTRUMENTS raises KeyError. A dimension gets
    the app's prefix, unless its name is one of OpenTelemetry's, with a dot."""

    def __init__(self, meter: metrics.Meter | None = None) -> None:
        meter, self._record = meter or metrics.get_meter(NAME, VERSION), {}
        for name, (kind, *about) in INSTRUMENTS.items():
            made = getattr(meter, f"create_{kind}")(name, *about, **BUCKETS.get(name, {}))
            self._record[name] = getattr(made, RECORD[kind])

    def __call__(self, measurements: Iterable[Measurement]) -> None:
        for name, value, dimensions in measurements:
            named = {key if "." in key else PREFIX + key: each for key, each in dimensions.items()}
            self._record[name](value, named)
