"""What the arena feeds to each of a resource's metrics, minute by minute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from shared.autoscaling import Resource
from shared.autoscaling.declaring import PushedMetric
from shared.autoscaling.transition import counts_backlog

Feed = Literal["backlog", "finished", "incoming", "0"]


@dataclass(slots=True)
class Minute:
    """Items: left at the end of the minute, finished in it, and come in it."""

    backlog: float
    finished: float = 0.0
    incoming: float = 0.0

    def of(self, feed: Feed) -> float:
        if feed == "backlog":
            return self.backlog
        if feed == "0":
            return 0.0
        return self.finished if feed == "finished" else self.incoming


def feeds(resource: Resource, backlog_metric: str | None = None) -> Mapping[str, Feed]:
    """By metric. All that count waiting items see the whole backlog, or only the one named."""
    return {name: _feed(resource, name, backlog_metric) for name in resource.metrics}


def _feed(resource: Resource, name: str, backlog_metric: str | None) -> Feed:
    if name == resource.throughput.completed_metric:
        return "finished"
    if name == resource.throughput.incoming_metric:
        return "incoming"
    if backlog_metric is not None:
        return "backlog" if name == backlog_metric else "0"
    return "backlog" if counts_backlog(resource.metrics[name]) else "0"


def not_in_a_trace(resource: Resource, fed: Mapping[str, Feed]) -> list[str]:
    """Metrics whose zeros say nothing, for nobody knows what they would have been: CPU, say.

    That there are neither dead letters nor scheduled messages is true of a trace.
    """
    return [
        name
        for name, source in resource.metrics.items()
        if fed[name] == "0" and isinstance(source, PushedMetric)
    ]
