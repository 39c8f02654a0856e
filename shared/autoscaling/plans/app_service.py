"""Reads and sets the capacity of App Service plans through Azure Resource Manager (ARM)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from azure.core.exceptions import AzureError, HttpResponseError
from azure.core.rest import HttpRequest
from azure.mgmt.core.polling.arm_polling import BodyContentPolling
from azure.mgmt.core.polling.async_arm_polling import AsyncARMPolling
from azure.mgmt.web.aio import WebSiteManagementClient
from azure.mgmt.web.models import AppServicePlan as ArmPlan

from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import (
    AutoscalingError,
    CapacityDelayed,
    CapacityPostponed,
    CapacityRefused,
)
from shared.autoscaling.plan_facts import PlanFacts, PlanReading
from shared.autoscaling.plans.answers import autoscale_of, facts_of, refusal
from shared.autoscaling.plans.lists import THROTTLED, Pages, PlanLists
from shared.azure.budget import ArmBudget, BudgetSpent
from shared.azure.credentials import credential_for
from shared.azure.refusals import Access
from shared.azure.transport import retry_after_seconds, server_time, transport_for
from shared.settings import Settings
from shared.values.measurements import MetricValue
from shared.values.redaction import redacting
from shared.values.text import one_line, quoted

FORBIDDEN = 403
LIST_SECONDS_MAX = 2
LISTED_AGAIN_SECONDS, UNLISTED_AGAIN_SECONDS = 3600, 300
NOT_EXECUTED = (409, 429)
"""HTTP statuses of temporary failures after which the capacity is certainly unchanged. After any
other temporary failure, the outcome is unknown.
"""


@redacting
class AppServiceControl:
    """Reads and sets ``sku.capacity`` of plans, which are looked up by their exact names.

    ARM has no conditional write for a plan. Therefore a change sets an absolute capacity, which the
    scaler reads back afterwards. There is one client for each Azure subscription. The clients do
    not retry, because the reconciler repeats failed actions. Without a ``budget``, their requests
    are not limited.
    """

    def __init__(self, settings: Settings, budget: ArmBudget | None = None) -> None:
        self._settings, self._budget = settings, budget
        self._lists = PlanLists(self._pages)
        self._credential = credential_for(settings.arm_endpoint)
        self._clients: dict[str, WebSiteManagementClient] = {}
        self._listing: dict[str, tuple[float, asyncio.Task[None]]] = {}
        self._listed: dict[str, Any] = {}

    async def read(self, target: AppServicePlan) -> MetricValue:
        async with self._answering(target):
            plan, _ = await self._get(target)
            return MetricValue(server_time(), float(_instances(plan)))

    async def describe(self, target: AppServicePlan) -> PlanReading:
        async with self._answering(target):
            if listed := await self._lists.find(target):
                plan, read_at = listed
                facts = facts_of(plan.as_dict())
            else:
                plan, facts = await self._get(target)
                read_at = server_time()
            reading = PlanReading(read_at, float(_instances(plan)))
        names, unlisted = await self._autoscale(target)
        return replace(reading, facts=replace(facts, autoscale=names, unlisted=unlisted))

    async def change(self, target: AppServicePlan, capacity: int) -> None:
        async with self._answering(target, changing=True):
            plan, facts = await self._get(target)
            if facts.unscalable:
                raise CapacityRefused(f"plan {target.name}: {facts.unscalable}")
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
                polling=_PollingOfThePlan(self._settings.arm_polling_seconds),
            )
            try:
                await poller.result()
            except AzureError as error:  # ARM accepted the change: never final
                message = (
                    f"plan {target.name}: Azure accepted the change, but it did not complete: "
                    f"{_detail(error)}"
                )
                raise CapacityDelayed(message, _wait_after(error), maybe_done=True) from error
            except (AttributeError, TypeError, ValueError) as error:  # such as a proxy's answer
                message = _not_a_plan(target, type(error).__name__)
                raise CapacityDelayed(message, maybe_done=True) from error

    async def close(self) -> None:
        for _, listing in self._listing.values():
            listing.cancel()
        for client in self._clients.values():
            await client.close()

    async def _get(self, target: AppServicePlan) -> tuple[ArmPlan, PlanFacts]:
        plans = self._client(target).app_service_plans
        try:
            plan = await plans.get(target.resource_group, target.name)
            capacity: object = plan.sku.capacity  # type: ignore[union-attr]  # a plan has a SKU
            _may_fill_in_pieces(plan)  # raises if the properties are no object
            facts = facts_of(plan.as_dict())
        except (AttributeError, TypeError, ValueError) as error:  # a proxy may have answered
            raise CapacityDelayed(_not_a_plan(target, type(error).__name__)) from error
        if not capacity:
            reason = facts.unscalable or "check its pricing tier"
            raise CapacityRefused(f"plan {target.name} has no capacity that can be set: {reason}")
        if type(capacity) is not int:
            raise CapacityDelayed(_not_a_plan(target, f"its capacity is {quoted(capacity)}"))
        return plan, facts

    def _pages(self, target: AppServicePlan) -> Pages:
        plans = self._client(target).app_service_plans
        return plans.list_by_resource_group(target.resource_group).by_page()

    async def _autoscale(self, target: AppServicePlan) -> tuple[str, str]:
        """The autoscale settings that scale the plan too, or why they are not known.

        The settings of a resource group are listed once in ``LISTED_AGAIN_SECONDS``. Listing them
        needs a permission that scaling does not need, and never delays a capacity for long.
        """
        group = plan_id(target).partition("/providers/")[0]
        until, listing = self._listing.get(group, (0.0, None))
        if listing is None or time.monotonic() >= until:
            listing = asyncio.create_task(self._list(target, group))
            self._listing[group] = time.monotonic() + UNLISTED_AGAIN_SECONDS, listing
        await asyncio.shield(listing)  # all plans of the group wait for the same one
        listed = self._listed.get(group, "no answer")
        if isinstance(listed, str):
            return "", listed
        return autoscale_of(listed, plan_id(target)), ""

    async def _list(self, target: AppServicePlan, group: str) -> None:
        with suppress(AzureError, TimeoutError, ValueError):
            async with asyncio.timeout(LIST_SECONDS_MAX):
                self._listed[group] = await self._settings_in(target, group)
            if not isinstance(self._listed[group], str):
                again = time.monotonic() + LISTED_AGAIN_SECONDS
                self._listing[group] = again, self._listing[group][1]

    async def _settings_in(self, target: AppServicePlan, group: str) -> Any:
        """The list of a resource group, or a text that says why the identity may not list them."""
        url = f"{group}/providers/Microsoft.Insights/autoscalesettings?api-version=2022-10-01"
        response = await self._client(target).send_request(HttpRequest("GET", url))
        if response.status_code == FORBIDDEN:
            return f"403: it needs Microsoft.Insights/autoscalesettings/read on {group}"
        response.raise_for_status()
        return response.json()

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


def _instances(plan: ArmPlan) -> int:
    """While a plan fills, ``sku.capacity`` may be what was ordered, and not what is there."""
    assert plan.sku is not None
    assert plan.sku.capacity is not None
    there: object = plan.properties.number_of_workers if plan.properties else None
    fills = _may_fill_in_pieces(plan) and type(there) is int and there > 0
    return there if fills else plan.sku.capacity  # type: ignore[return-value]


def _may_fill_in_pieces(plan: ArmPlan) -> bool:
    """True during an operation, and for asynchronous scaling, which App Service Environments always
    use. https://learn.microsoft.com/azure/app-service/app-service-plan-manage
    """
    found = plan.properties
    if found is None:
        return False
    asynchronous = found.async_scaling_enabled or found.hosting_environment_profile is not None
    return bool(asynchronous) or found.provisioning_state == "InProgress"


def plan_id(plan: AppServicePlan) -> str:
    group = f"/subscriptions/{plan.subscription_id}/resourceGroups/{plan.resource_group}"
    return f"{group}/providers/Microsoft.Web/serverfarms/{plan.name}"


def plan_access(plan: AppServicePlan) -> Access:
    return Access(f"plan {plan.name}", "with Microsoft.Web/serverfarms/read and write")


class _PollingOfThePlan(AsyncARMPolling):
    """Reads the plan until its ``provisioningState`` is final, instead of the operation.

    Operations belong to the subscription: a role on the plan can start one, but not read it.
    https://learn.microsoft.com/azure/azure-resource-manager/management/async-operations
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds, lro_algorithms=[BodyContentPolling()])

    def _extract_delay(self) -> float:
        return retry_after_seconds(self._pipeline_response.http_response) or self._timeout


def _not_a_plan(target: AppServicePlan, reason: str) -> str:
    return (
        f"plan {target.name}: the answer does not describe a plan ({reason}); "
        "a proxy may have answered in place of Azure Resource Manager"
    )


def _translated(error: AzureError, target: AppServicePlan, *, changing: bool) -> AutoscalingError:
    """Translate the error to an exception of the flows, with advice where an operator must act."""
    if isinstance(error, BudgetSpent):
        return CapacityPostponed(f"plan {target.name}: {error.message}")
    status = error.status_code if isinstance(error, HttpResponseError) else None
    no_token = plan_access(target).refusal(error) if status is None else None
    message = no_token or f"plan {target.name}: {status or type(error).__name__}: {_detail(error)}"
    meaning = refusal(status, _text(error), target.resource_group)
    message = f"{message} ({meaning.advice})" if meaning.advice else message
    if meaning.final:
        return CapacityRefused(message)
    maybe_done = changing and status not in NOT_EXECUTED and not meaning.wait_seconds
    wait = _wait_after(error, meaning.wait_seconds)
    if status == THROTTLED and not changing:
        return CapacityPostponed(message, wait)
    available = None if maybe_done else meaning.available
    return CapacityDelayed(message, wait, maybe_done=maybe_done, available=available)


def _detail(error: AzureError) -> str:
    """What the service says, in one line: its error, and the ``provisioningState`` that the plan
    shows after a change that failed."""
    try:
        body = _object(json.loads(_text(error)))
    except (ValueError, RecursionError):
        body = {}
    properties = _object(body.get("properties"))
    state = properties.get("provisioningState")
    told = _object(body.get("error") or properties.get("error"))
    said = (
        state and f"provisioningState {state}",
        told.get("code"),
        told.get("message") or body.get("Message"),
    )
    return one_line(": ".join(map(str, filter(None, said))) or error.message)


def _text(error: AzureError) -> str:
    response = getattr(error, "response", None)
    try:
        return str(response.text()) if response is not None else ""
    except (AzureError, ValueError, LookupError, AttributeError, TypeError):  # it was not read
        return ""


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _wait_after(error: AzureError, unstated: float | None = None) -> float | None:
    stated = retry_after_seconds(getattr(error, "response", None))
    return unstated if stated is None else stated
