"""Measurements of the app, and the port that records them.

docs/monitoring.md explains each metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

PREFIX = "autoscaler."
"""How the names of the app's own attributes of metrics, traces and log lines begin."""
Measurement = tuple[str, float, Mapping[str, str]]
"""The name of a metric, its value, and its dimensions, such as the resource."""
Meter = Callable[[Iterable[Measurement]], None]
"""Records measurements, an iterator of which costs nothing without a recorder."""


def no_meter(measurements: Iterable[Measurement]) -> None:
    """Record nothing."""
