"""Reads and sets the capacity of App Service plans through Azure Resource Manager (ARM)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from azure.core.exceptions import AzureError, HttpResponseError
from azure.core.polling import AsyncNoPolling
from azure.mgmt.web.aio import WebSiteManagementClient
from azure.mgmt.web.models import AppServicePlan as ArmPlan

from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import (
    AutoscalingError,
    CapacityDelayed,
    CapacityPostponed,
    CapacityRefused,
)
from shared.autoscaling.plan_facts import PlanReading
from shared.autoscaling.plans.answers import autoscale_of, facts_of, object_of, refusal
from shared.autoscaling.plans.lists import Pages, PlanLists
from shared.azure.arm import pages
from shared.azure.budget import ArmBudget, BudgetSpent
from shared.azure.credentials import credential_for
from shared.azure.refusals import Access
from shared.azure.transport import retry_after_seconds, server_time, transport_for
from shared.settings import Settings
from shared.values.redaction import redacting
from shared.values.text import one_line, quoted

ACCEPTED, FORBIDDEN, THROTTLED = 202, 403, 429
IN_PROGRESS, FAILED_STATES = "inprogress", ("failed", "canceled")
LIST_SECONDS_MAX = 2
LISTED_AGAIN_SECONDS, UNLISTED_AGAIN_SECONDS = 3600, 300
NOT_EXECUTED = (409, 429)
"""HTTP statuses of temporary failures after which the capacity is certainly unchanged."""


@redacting
class AppServiceControl:
    """Reads and sets ``sku.capacity`` of plans, which are looked up by their exact names.

    ARM has no conditional write for a plan, so a change sets an absolute capacity. It does not wait
    until a long-running operation has ended: later readings show its outcome. There is one client
    for each Azure subscription. It does not retry, because the reconciler repeats failed actions.
    """

    def __init__(self, settings: Settings, budget: ArmBudget | None = None) -> None:
        self._settings, self._budget = settings, budget
        self._lists = PlanLists(self._pages)
        self._credential = credential_for(settings.arm_endpoint)
        self._clients: dict[str, WebSiteManagementClient] = {}
        self._listing: dict[str, tuple[float, asyncio.Task[Any]]] = {}

    async def read(self, target: AppServicePlan) -> PlanReading:
        async with self._answering(target):
            plans = self._client(target).app_service_plans
            plan = await plans.get(target.resource_group, target.name)
            return _reading(target, plan, server_time())

    async def describe(self, target: AppServicePlan) -> PlanReading:
        async with self._answering(target):
            listed = await self._lists.find(target)
            if listed:
                reading = _reading(target, *listed)
        if not listed:
            reading = await self.read(target)
        names, unlisted = await self._autoscale(target)
        return replace(reading, facts=replace(reading.facts, autoscale=names, unlisted=unlisted))

    async def change(self, target: AppServicePlan, capacity: int, read: PlanReading) -> int | None:
        if read.facts.unscalable:
            raise CapacityRefused(f"plan {target.name}: {read.facts.unscalable}")
        plan: ArmPlan = read.plan
        async with self._answering(target, changing=True):
            assert plan.sku is not None
            plan.sku.capacity = capacity
            if plan.properties and (
                plan.properties.target_worker_count or _may_fill_in_pieces(plan)
            ):  # only another one cancels an operation, and an old one starts its operation again
                plan.properties.target_worker_count = capacity
            poller = await self._client(target).app_service_plans.begin_create_or_update(
                target.resource_group,
                target.name,
                plan,
                polling=_NoPolling(),  # type: ignore[no-untyped-call]
            )
            answer: Any = await poller.result()
            if answer.status_code == ACCEPTED:
                return None
            after = _reading(target, ArmPlan(answer.json()), server_time())
            if after.failure:
                wait = retry_after_seconds(answer)
                raise CapacityDelayed(after.failure, wait, maybe_done=True)
            return None if _state(after.plan) == IN_PROGRESS else int(after.value)

    async def close(self) -> None:
        for _, listing in self._listing.values():
            listing.cancel()
        for client in self._clients.values():
            await client.close()

    def _pages(self, target: AppServicePlan) -> Pages:
        plans = self._client(target).app_service_plans
        return plans.list_by_resource_group(target.resource_group).by_page()

    async def _autoscale(self, target: AppServicePlan) -> tuple[str, str]:
        """The autoscale settings that scale the plan too, or why they are not known.

        Those of a resource group are listed once in ``LISTED_AGAIN_SECONDS``, which needs a
        permission that scaling does not need, and never delays a capacity for long.
        """
        group = plan_id(target).partition("/providers/")[0]
        until, listing = self._listing.get(group, (0.0, None))
        if listing is None or time.monotonic() >= until:
            listing = asyncio.create_task(self._list(target, group))
            self._listing[group] = time.monotonic() + UNLISTED_AGAIN_SECONDS, listing
        listed = await asyncio.shield(listing)  # all plans of the group wait for the same one
        if isinstance(listed, str):
            return "", listed
        return autoscale_of(listed, plan_id(target)), ""

    async def _list(self, target: AppServicePlan, group: str) -> Any:
        """The pages of the list of a resource group, or a text that says why there are none."""
        path = f"{group}/providers/Microsoft.Insights/autoscalesettings?api-version=2022-10-01"
        found, client = [], self._client(target)
        with suppress(AzureError, TimeoutError, ValueError, AttributeError):
            async with asyncio.timeout(LIST_SECONDS_MAX):
                async for response in pages(client, self._settings.arm_endpoint, path):
                    if response.status_code == FORBIDDEN:
                        needed = "Microsoft.Insights/autoscalesettings/read"
                        return f"403: it needs {needed} on {group}"
                    response.raise_for_status()
                    found.append(response.json())
            again = time.monotonic() + LISTED_AGAIN_SECONDS
            self._listing[group] = again, self._listing[group][1]
            return found
        return "no answer"

    def _client(self, target: AppServicePlan) -> WebSiteManagementClient:
        if target.subscription_id not in self._clients:
            endpoint = self._settings.arm_endpoint
            self._clients[target.subscription_id] = WebSiteManagementClient(
                self._credential,
                target.subscription_id,
                base_url=endpoint,
                credential_scopes=[f"{endpoint}/.default"],
                transport=transport_for(endpoint),
                retry_total=0,
                per_retry_policies=[self._budget.policy()] if self._budget else [],
            )
        return self._clients[target.subscription_id]

    @asynccontextmanager
    async def _answering(
        self, target: AppServicePlan, *, changing: bool = False
    ) -> AsyncIterator[None]:
        seconds = self._settings.arm_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            message = f"plan {target.name}: no answer within {seconds:g} s, outcome unknown"
            raise CapacityDelayed(message, maybe_done=changing) from error
        except AzureError as error:
            raise _translated(error, target, changing=changing) from error
        except (AttributeError, TypeError, ValueError) as error:  # a proxy may have answered
            message = (
                f"plan {target.name}: the answer does not describe a plan "
                f"({type(error).__name__}: {one_line(error)}); "
                "a proxy may have answered in place of Azure Resource Manager"
            )
            raise CapacityDelayed(message, maybe_done=changing) from error


def _reading(target: AppServicePlan, plan: ArmPlan, read_at: datetime) -> PlanReading:
    fields = plan.as_dict()
    capacity: object = plan.sku.capacity  # type: ignore[union-attr]  # a plan has a SKU
    facts, failure = facts_of(fields), ""
    if not capacity:
        reason = facts.unscalable or "check its pricing tier"
        raise CapacityRefused(f"plan {target.name} has no capacity that can be set: {reason}")
    if type(capacity) is not int:
        raise TypeError(f"its capacity is {quoted(capacity)}")
    if _state(plan) in FAILED_STATES:
        told = f"Azure accepted the change, but it did not complete: {_said(fields)}"
        failure = f"plan {target.name}: {told}"
    found = float(_instances(plan, capacity))
    return PlanReading(read_at, found, facts=facts, failure=failure, plan=plan)


def _state(plan: ArmPlan) -> str:
    properties: Mapping[str, Any] = plan.properties or {}
    return str(properties.get("provisioningState")).lower()


def _instances(plan: ArmPlan, capacity: int) -> int:
    """While a plan fills, ``sku.capacity`` may be what was ordered, and not what is there."""
    there: object = plan.properties.number_of_workers if plan.properties else None
    fills = _may_fill_in_pieces(plan) and type(there) is int and there > 0
    return there if fills else capacity  # type: ignore[return-value]


def _may_fill_in_pieces(plan: ArmPlan) -> bool:
    """True during an operation, and for asynchronous scaling, which App Service Environments always
    use. https://learn.microsoft.com/azure/app-service/app-service-plan-manage
    """
    found = plan.properties
    if found is None:
        return False
    asynchronous = found.async_scaling_enabled or found.hosting_environment_profile is not None
    return bool(asynchronous) or _state(plan) == IN_PROGRESS


def plan_id(plan: AppServicePlan) -> str:
    group = f"/subscriptions/{plan.subscription_id}/resourceGroups/{plan.resource_group}"
    return f"{group}/providers/Microsoft.Web/serverfarms/{plan.name}"


def plan_access(plan: AppServicePlan) -> Access:
    return Access(f"plan {plan.name}", "with Microsoft.Web/serverfarms/read and write")


class _NoPolling(AsyncNoPolling[Any]):
    """Returns the answer to the request itself. An operation that it started is not followed: a
    role on the plan can start one, but not read it, because it belongs to the subscription.
    https://learn.microsoft.com/azure/azure-resource-manager/management/async-operations"""

    def resource(self) -> Any:
        assert self._initial_response is not None
        return self._initial_response.http_response


def _translated(error: AzureError, target: AppServicePlan, *, changing: bool) -> AutoscalingError:
    """Translate the error to an exception of the flows, with advice where an operator must act."""
    if isinstance(error, BudgetSpent):
        return CapacityPostponed(f"plan {target.name}: {error.message}", error.wait_seconds or None)
    status = error.status_code if isinstance(error, HttpResponseError) else None
    no_token = plan_access(target).refusal(error) if status is None else None
    message = no_token or f"plan {target.name}: {status or type(error).__name__}: {_detail(error)}"
    meaning = refusal(status, _text(error), target.resource_group)
    message = f"{message} ({meaning.advice})" if meaning.advice else message
    if meaning.final:
        return CapacityRefused(message)
    maybe_done = changing and status not in NOT_EXECUTED and not meaning.wait_seconds
    stated = retry_after_seconds(getattr(error, "response", None))
    wait = meaning.wait_seconds if stated is None else stated
    if status == THROTTLED and not changing:
        return CapacityPostponed(message, wait)
    available = None if maybe_done else meaning.available
    return CapacityDelayed(message, wait, maybe_done=maybe_done, available=available)


def _detail(error: AzureError) -> str:
    """What the service says, in one line."""
    try:
        body = object_of(json.loads(_text(error)))
    except (ValueError, RecursionError):
        body = {}
    return _said(body) or one_line(error.message)


def _said(body: Mapping[str, Any]) -> str:
    """The error that a body states, and the state of a plan after a change that failed."""
    properties = object_of(body.get("properties"))
    state = properties.get("provisioningState")
    told = object_of(body.get("error") or properties.get("error"))
    said = (
        state and f"provisioningState {state}",
        told.get("code"),
        told.get("message") or body.get("Message"),
    )
    return one_line(": ".join(map(str, filter(None, said))))


def _text(error: AzureError) -> str:
    response = getattr(error, "response", None)
    try:
        return str(response.text()) if response is not None else ""
    except (AzureError, ValueError, LookupError, AttributeError, TypeError):  # it was not read
        return ""
