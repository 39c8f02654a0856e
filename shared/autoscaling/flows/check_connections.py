"""Is every source, table and plan there, and may we do what will have to be done?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

from shared.autoscaling.declaring import CapacityTarget, MetricSource
from shared.autoscaling.errors import CapacityRefused
from shared.autoscaling.flows.metric_collector import sources_of
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import MetricReader, Permissions, StateStore


async def run(
    resources: Iterable[Resource],
    reader: MetricReader,
    permissions: Permissions,
    store: StateStore,
    timeout_seconds: float,
) -> list[dict[str, Any]]:
    """One line for each thing that was tried: ``resource, what, ok, told``; nothing is changed."""

    checks: list[tuple[Resource, str, Awaitable[str]]] = []
    for resource in resources:
        checks.append((resource, "state", _state(store, resource)))
        for name, source in sources_of(resource).items():
            checks.append((resource, f"metric {name}", _value(reader, source)))
        plan = resource.target
        checks.append((resource, f"plan {plan.name}", _plan(permissions, plan)))
    return await asyncio.gather(*(_tried(timeout_seconds, *check) for check in checks))


async def _state(store: StateStore, resource: Resource) -> str:
    await store.load(resource.name)
    return "can be read"


async def _plan(permissions: Permissions, plan: CapacityTarget) -> str:
    if lacking := await permissions.lacking(plan):
        raise CapacityRefused(f"the identity lacks {', '.join(lacking)}")
    return "may be read and changed"


async def _value(reader: MetricReader, source: MetricSource) -> str:
    read = await reader.read(source)
    return f"reads {read.value:g}"


async def _tried(
    timeout_seconds: float, resource: Resource, what: str, check: Awaitable[str]
) -> dict[str, Any]:
    try:
        async with asyncio.timeout(timeout_seconds):
            text, ok = await check, True
    except TimeoutError:
        text, ok = f"no answer within {timeout_seconds:g} s", False
    except Exception as error:  # each thing is reported, whatever is wrong with it
        text, ok = f"{type(error).__name__}: {error}", False
    return {"resource": resource.name, "what": what, "ok": ok, "told": text}
