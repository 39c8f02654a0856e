"""Reads and sets the capacity of App Service plans through Azure Resource Manager (ARM)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from azure.core.exceptions import AzureError, HttpResponseError
from azure.mgmt.core.polling.arm_polling import BodyContentPolling
from azure.mgmt.core.polling.async_arm_polling import AsyncARMPolling
from azure.mgmt.web.aio import WebSiteManagementClient
from azure.mgmt.web.models import AppServicePlan as ArmPlan

from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import AutoscalingError, CapacityDelayed, CapacityRefused
from shared.azure.credentials import credential_for
from shared.azure.refusals import Access
from shared.azure.transport import retry_after_seconds, server_time, transport_for
from shared.settings import Settings
from shared.values.measurements import MetricValue
from shared.values.redaction import redacting
from shared.values.text import one_line, quoted

REFUSED = (400, 401, 403, 404)
"""HTTP statuses after which a retry is useless. 409 is not one of them, because it means that
another operation is running, or that no instance is available at the moment.
"""
ADVICE = {
    401: "the token was not accepted: check that the app's identity belongs to the plan's tenant",
    403: "grant the app's identity Microsoft.Web/serverfarms/write on the plan; a new role takes "
    "effect within about ten minutes",
    404: "check that resource group {group} contains a plan of exactly this name",
}
NOT_EXECUTED = (409, 429)
"""HTTP statuses of temporary failures after which the capacity is certainly unchanged. After any
other temporary failure, the outcome is unknown.
"""


@redacting
class AppServiceControl:
    """Reads and sets ``sku.capacity`` of plans, which are looked up by their exact names.

    ARM has no conditional write for a plan. Therefore a change sets an absolute capacity, which the
    scaler reads back afterwards. There is one client for each Azure subscription. The clients do
    not retry, because the reconciler repeats failed actions.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._credential = credential_for(settings.arm_endpoint)
        self._clients: dict[str, WebSiteManagementClient] = {}

    async def read(self, target: AppServicePlan) -> MetricValue:
        async with self._answering(target):
            plan = await self._get(target)
            return MetricValue(server_time(), float(_instances(plan)))

    async def change(self, target: AppServicePlan, capacity: int) -> None:
        async with self._answering(target, changing=True):
            plan = await self._get(target)
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
        for client in self._clients.values():
            await client.close()

    async def _get(self, target: AppServicePlan) -> ArmPlan:
        plans = self._client(target).app_service_plans
        try:
            plan = await plans.get(target.resource_group, target.name)
            capacity: object = plan.sku.capacity  # type: ignore[union-attr]  # a plan has a SKU
            _may_fill_in_pieces(plan)  # raises if the properties are no object
        except (AttributeError, TypeError, ValueError) as error:  # a proxy may have answered
            raise CapacityDelayed(_not_a_plan(target, type(error).__name__)) from error
        if not capacity:
            raise CapacityRefused(
                f"plan {target.name} has no capacity that can be set: check its pricing tier"
            )
        if type(capacity) is not int:
            raise CapacityDelayed(_not_a_plan(target, f"its capacity is {quoted(capacity)}"))
        return plan

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
    status = error.status_code if isinstance(error, HttpResponseError) else None
    refusal = plan_access(target).refusal(error) if status is None else None  # without a token
    message = refusal or f"plan {target.name}: {status or type(error).__name__}: {_detail(error)}"
    if status in REFUSED:
        advice = ADVICE.get(status, "").format(group=target.resource_group)
        return CapacityRefused(f"{message} ({advice})" if advice else message)
    maybe_done = changing and status not in NOT_EXECUTED
    available = None if maybe_done else available_instances(_detail(error))
    return CapacityDelayed(message, _wait_after(error), maybe_done=maybe_done, available=available)


SCARCE = re.compile(r"not enough |no available instances", re.I)
NUMBER = r"(?<![-.0-9])([0-9]{1,5})(?!\.?[0-9])"
FREE = (
    re.compile(rf"\badd (?:an? |up to )?(?:extra |additional |more )?{NUMBER}", re.I),
    re.compile(rf"{NUMBER} (?:[a-z]+ ){{0,4}}available\b", re.I),
    re.compile(rf"\bavailable(?: [a-z]+){{0,2}} ?(?:is|are|:|=) ?{NUMBER}", re.I),
)
"""How App Service says how many instances are free, the number of further ones first."""


def available_instances(said: str) -> int | None:
    """The number of further instances that can be had, by the text of a refusal; None if it does
    not say that there are too few, or not how many there are."""
    if not SCARCE.search(said):
        return None
    found = next((match for form in FREE if (match := form.search(said))), None)
    return int(found[1]) if found else None


def _detail(error: AzureError) -> str:
    """What the service says, in one line: its error, and the final state of a change that failed.

    Resource Manager answers ``{"error": {"code", "message"}}``, App Service ``{"Code", "Message",
    "Details"}``, and a plan whose change failed shows its ``provisioningState``.
    """
    body = _body(error)
    properties = _object(body.get("properties"))
    state = properties.get("provisioningState")
    refusal = _object(body.get("error") or properties.get("error"))
    said = (
        state and f"provisioningState {state}",
        refusal.get("code"),
        refusal.get("message") or body.get("Message"),
    )
    return one_line(": ".join(map(str, filter(None, said))) or error.message)


def _body(error: AzureError) -> dict[str, Any]:
    response = getattr(error, "response", None)
    try:
        return _object(json.loads(response.text())) if response is not None else {}
    except (ValueError, AttributeError, TypeError):
        return {}


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _wait_after(error: AzureError) -> float | None:
    return retry_after_seconds(getattr(error, "response", None))
