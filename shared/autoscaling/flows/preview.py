"""preview: what would be decided right now, from fresh readings; nothing is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shared.autoscaling.actions import as_of, confirm_if_observed
from shared.autoscaling.deciding.decide import Decision, decide, explained
from shared.autoscaling.deciding.samples import merge
from shared.autoscaling.errors import BadMessage
from shared.autoscaling.flows import metric_collector
from shared.autoscaling.flows.metric_collector import SourceFailure
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric
from shared.autoscaling.operating import presenting
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import MetricReader, Snapshot, StateStore
from shared.autoscaling.state import ScalingState


@dataclass(frozen=True, slots=True)
class Preview:
    """The decision, and what it was made from."""

    decision: Decision
    readings: tuple[Metric, ...]
    failures: tuple[SourceFailure, ...]

    def shown(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **presenting.decision(self.decision),
            "readings": [presenting.reading(metric) for metric in self.readings],
            "failures": [{"name": f.metric_name, "reason": f.reason} for f in self.failures],
        }


async def run(
    resource: Resource, store: StateStore, reader: MetricReader, timeout_seconds: float
) -> Preview:
    """Reads every source and the state; a source that fails is missing, as in production."""
    collection = await metric_collector.run([resource], reader, timeout_seconds)
    snapshot = await store.load(resource.name)
    failures, state = list(collection.failures), as_of(snapshot.state, snapshot.read_at)
    for metric in collection.metrics:
        try:
            state = _merged(resource, state, metric, snapshot)
        except BadMessage as error:
            failures.append(SourceFailure(resource.name, metric.name, str(error)))
    decision = explained(resource, state, decide(resource, state, snapshot.read_at))
    return Preview(decision, collection.metrics, tuple(failures))


def _merged(
    resource: Resource, state: ScalingState, metric: Metric, snapshot: Snapshot
) -> ScalingState:
    now, kept = snapshot.read_at, (resource.window_seconds, resource.history_seconds)
    new = merge(state, metric, now, *kept).state
    return confirm_if_observed(new, metric.value) if metric.name == CAPACITY_METRIC else new
