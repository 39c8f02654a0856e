"""Checks that all metric sources, state rows and plans can be read, and that all plans can be
changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

from shared.autoscaling.declaring import AzureMonitorMetric, CapacityTarget, MetricSource
from shared.autoscaling.errors import CapacityRefused, ReadFailed
from shared.autoscaling.flows.metric_collector import monitored_sources_of, sources_of
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import MetricReader, Permissions, PlatformMetrics, StateStore
from shared.values.checks import check


async def check_all(
    resources: Iterable[Resource],
    reader: MetricReader,
    permissions: Permissions,
    store: StateStore,
    timeout_seconds: float,
    platform: PlatformMetrics | None = None,
) -> list[dict[str, Any]]:
    """One result for each check: ``resource, what, ok, told``. The checks change nothing."""
    checks: list[tuple[Resource, str, Awaitable[str]]] = []
    for resource in resources:
        checks.append((resource, "state", _state(store, resource)))
        for name, source in sources_of(resource).items():
            checks.append((resource, f"metric {name}", _value(reader, source)))
        for name, source in monitored_sources_of(resource).items():
            checks.append((resource, f"metric {name}", _platform_value(platform, source)))
        plan = resource.target
        checks.append((resource, f"plan {plan.name}", _plan(permissions, plan)))
    return await asyncio.gather(
        *(check(timeout_seconds, resource.name, what, told) for resource, what, told in checks)
    )


async def _state(store: StateStore, resource: Resource) -> str:
    await store.load(resource.name)
    return "is readable"


async def _plan(permissions: Permissions, plan: CapacityTarget) -> str:
    if lacking := await permissions.lacking(plan):
        raise CapacityRefused(
            f"the identity lacks {', '.join(lacking)}: assign it a role with them"
        )
    return "may be read and changed"


async def _value(reader: MetricReader, source: MetricSource) -> str:
    reading = await reader.read(source)
    return f"reads {reading.value:g}"


async def _platform_value(platform: PlatformMetrics | None, source: AzureMonitorMetric) -> str:
    assert platform is not None, "there is a reader where a rule needs one"
    readings = await platform.read([source])
    reading = readings.get(source, ())
    if isinstance(reading, ReadFailed):
        raise reading
    if not reading:
        return "is readable, and has no value of the last minutes"
    return f"reads {reading[-1].value:g}, up to {reading[-1].time:%H:%M} UTC"
