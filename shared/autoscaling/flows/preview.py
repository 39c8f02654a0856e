"""preview: reads all sources, decides what the app would do now, and writes nothing."""

from __future__ import annotations

from typing import Any

from shared.autoscaling.acting.actions import as_of
from shared.autoscaling.deciding.clocks import dated
from shared.autoscaling.flows import metric_collector
from shared.autoscaling.flows.metric_collector import SourceFailure
from shared.autoscaling.flows.policy_threads import POLICY_THREADS, PolicyThreads
from shared.autoscaling.operating import presenting
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import StateStore
from shared.autoscaling.sources import Services
from shared.autoscaling.transition import merged


async def make_preview(
    resource: Resource,
    store: StateStore,
    services: Services,
    timeout_seconds: float,
    threads: PolicyThreads = POLICY_THREADS,
) -> dict[str, Any]:
    """Read every source and the state, decide, and explain the decision. The metric of a source
    that fails is missing, as in a real decision."""
    collection = await metric_collector.collect([resource], services, timeout_seconds)
    snapshot = await store.load(resource.name)
    failures, state = list(collection.failures), as_of(snapshot.state, snapshot.read_at)
    state = state.with_plan(collection.plans.get(resource.name))
    dated_metrics = [dated(state, metric, snapshot.read_at) for metric in collection.metrics]
    found = merged(resource, state, dated_metrics, snapshot.read_at)
    failures += [SourceFailure(resource.name, m.name, str(error)) for m, error in found.refused]
    state = found.state
    decision = await threads.decide(resource, state, snapshot.read_at)
    decision = await threads.explain(resource, state, decision)
    return {
        **presenting.decision(decision),
        "readings": [presenting.sample(each.name, each.value) for each in collection.metrics],
        "failures": [{"name": each.metric_name, "reason": each.reason} for each in failures],
    }
