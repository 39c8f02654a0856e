"""Checks that sources, state rows and plans can be read, and that plans can be changed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import CapacityRefused
from shared.autoscaling.flows.metric_collector import sources_of
from shared.autoscaling.flows.reading import SPENT, Answer, Undated, is_own, read_source
from shared.autoscaling.plan_facts import PlanFacts, PlanReading
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import Permissions, StateStore
from shared.autoscaling.sources import PlanCapacity, Services, Source
from shared.values.calls import check
from shared.values.concurrency import gathered

AT_ONCE = 20
"""More checks would wait for each other within their time limits."""
MANY, NAMES_MAX = 10, 5


async def check_all(
    resources: Sequence[Resource],
    services: Services,
    permissions: Permissions,
    store: StateStore,
    timeout_seconds: float,
) -> list[dict[str, Any]]:
    """One result for each check: ``resource, what, ok, told``. The checks change nothing."""
    checks: list[Awaitable[dict[str, Any]]] = []
    for resource in resources:
        name, plan = resource.name, resource.target
        checks.append(check(timeout_seconds, name, "state", _state(store, resource)))
        for metric, source in sources_of(resource).items():
            read = read_source(source, services, timeout_seconds)
            checks.append(_read(name, f"metric {metric}", source, read))
        told = _plan(permissions, services, resource)
        checks.append(check(timeout_seconds, name, f"plan {plan.name}", told))
    if len(resources) >= MANY:
        told = _lists(permissions, [each.target for each in resources])
        checks.append(check(timeout_seconds, "all plans", "lists", told))
    return await gathered(lambda each: each, checks, AT_ONCE)


async def _lists(permissions: Permissions, plans: Iterable[AppServicePlan]) -> str:
    """Which resource groups may not be listed, and what that would save. This is no failure."""
    groups = defaultdict[tuple[str, str], list[AppServicePlan]](list)
    for plan in plans:
        groups[plan.subscription_id.lower(), plan.resource_group.lower()].append(plan)
    shared = [each for each in groups.values() if len(each) > 1]
    allowed = await asyncio.gather(*(permissions.may_list(each[0]) for each in shared))
    denied = [each for each, may in zip(shared, allowed, strict=True) if not may]
    if not denied:
        return f"{len(shared)} resource group(s) have several plans, which are read with one list"
    names = ", ".join(each[0].resource_group for each in denied[:NAMES_MAX])
    return (
        f"the role Reader on {len(denied)} resource group(s) ({names}), or any other with "
        f"Microsoft.Web/serverfarms/read, would replace {sum(map(len, denied))} requests a minute "
        f"by {len(denied)}"
    )


async def _state(store: StateStore, resource: Resource) -> str:
    await store.load(resource.name)
    return "is readable"


async def _plan(permissions: Permissions, services: Services, resource: Resource) -> str:
    _refuse(await permissions.lacking(resource.target))
    reading = await services.capacity(resource.target)
    facts = reading.facts if isinstance(reading, PlanReading) else PlanFacts()
    if facts.environment:
        _refuse(await permissions.lacking_to_join(facts.environment), f" on {facts.environment}")
    if wrong := facts.unscalable or facts.autoscale:
        raise CapacityRefused(wrong)
    unsure = "cannot tell whether an autoscale setting scales it too"
    unknown = [f"{unsure} ({facts.unlisted})"] if facts.unlisted else []
    return "; ".join(["may be read and changed", *facts.notes(resource.limits), *unknown])


def _refuse(lacking: Sequence[str], where: str = "") -> None:
    if lacking:
        actions = ", ".join(lacking)
        raise CapacityRefused(f"the identity lacks {actions}{where}: assign it a role with them")


async def _read(subject: str, what: str, source: Source, read: Awaitable[Answer]) -> dict[str, Any]:
    answer = await read
    if not answer and isinstance(source, PlanCapacity):
        answer = SPENT
    return {
        "resource": subject,
        "what": what,
        "ok": not isinstance(answer, str),
        "told": _told(source, answer),
    }


def _told(source: Source, answer: Answer) -> str:
    if isinstance(answer, str):
        roles = ", ".join(source.roles) if is_own(source) else ""
        return f"{answer}. The app's identity needs {roles}" if roles else answer
    if not answer:
        return "is readable, and has no value of the last minutes"
    newest = answer[-1]
    if isinstance(newest, Undated):
        return f"reads {newest.value:g}, without a server's time"
    until = f", up to {newest.time:%H:%M} UTC" if source.series else ""
    return f"reads {newest.value:g}{until}"
