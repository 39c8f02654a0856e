"""App Service Plans through Azure Resource Manager."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from azure.core.exceptions import AzureError, HttpResponseError
from azure.mgmt.web.aio import WebSiteManagementClient
from azure.mgmt.web.models import AppServicePlan as ArmPlan

from shared.adapters.azure.credentials import credential_for
from shared.adapters.azure.transport import server_time, transport_for
from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import AutoscalingError, CapacityDelayed, CapacityRefused
from shared.autoscaling.measurements import MetricValue
from shared.settings import Settings
from shared.values.redaction import redacting
from shared.values.text import shown

DETAIL_LENGTH_MAX = 300
RETRY_AFTER_DIGITS_MAX = 4
"""A service that asks for hours of patience is asked again as after any other failure."""
REFUSED = (400, 401, 403, 404)
"""Answers that stay. 409 does not: an operation runs, or no instance is free just now."""
TURNED_AWAY = (409, 429)
"""Not now, and nothing was changed; after any other failure nobody knows."""


@redacting
class AppServiceControl:
    """Reads and sets ``sku.capacity`` of plans, each named exactly.

    ARM does not fence two writers of a plan, so the capacity is absolute and read back after.
    A client belongs to one Azure subscription; it does not retry, for the reconciler does.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._credential = credential_for(settings.arm_endpoint)
        self._clients: dict[str, WebSiteManagementClient] = {}

    async def read(self, target: AppServicePlan) -> MetricValue:
        async with self._answering(target):
            plan = await self._get(target)
            assert plan.sku is not None
            assert plan.sku.capacity is not None
            return MetricValue(server_time(), float(plan.sku.capacity))

    async def change(self, target: AppServicePlan, capacity: int) -> None:
        async with self._answering(target, changing=True):
            plan = await self._get(target)
            assert plan.sku is not None
            plan.sku.capacity = capacity
            poller = await self._client(target).app_service_plans.begin_create_or_update(
                target.resource_group,
                target.name,
                plan,
                polling_interval=self._settings.arm_polling_seconds,
            )
            try:
                await poller.result()
            except AzureError as error:  # the order was taken, so no refusal of it means "never"
                message = f"plan {target.name}: ordered, but then: {_detail(error)}"
                retry_after = _retry_after_seconds(error)
                raise CapacityDelayed(message, retry_after, maybe_done=True) from error

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def _get(self, target: AppServicePlan) -> ArmPlan:
        plans = self._client(target).app_service_plans
        try:
            plan = await plans.get(target.resource_group, target.name)
            capacity: object = plan.sku.capacity if plan.sku is not None else None
        except (AttributeError, TypeError, ValueError) as error:  # a proxy's answer, for instance
            raise CapacityDelayed(f"{_no_plan(target)} ({type(error).__name__})") from error
        if not capacity:
            raise CapacityRefused(f"plan {target.name} has no capacity to set (which tier is it?)")
        if type(capacity) is not int:
            raise CapacityDelayed(f"{_no_plan(target)} (its capacity is {shown(capacity)})")
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
            raise _named(error, target, changing=changing) from error


def _no_plan(target: AppServicePlan) -> str:
    return f"plan {target.name}: what answers for Azure Resource Manager sends no plan"


def _named(error: AzureError, target: AppServicePlan, *, changing: bool) -> AutoscalingError:
    """The error as the flows know it, in one line, with what to do where a person must act."""
    status = error.status_code if isinstance(error, HttpResponseError) else None
    message = f"plan {target.name}: {status or type(error).__name__}: {_detail(error)}"
    if status == 401:
        return CapacityRefused(f"{message} (the token was not accepted: is it the right tenant?)")
    if status == 403:
        return CapacityRefused(f"{message} (the identity needs Microsoft.Web/serverfarms/write)")
    if status == 404:
        return CapacityRefused(f"{message} (looked for in {target.resource_group}, by exact name)")
    if status in REFUSED:
        return CapacityRefused(message)
    maybe_done = changing and status not in TURNED_AWAY
    return CapacityDelayed(message, _retry_after_seconds(error), maybe_done=maybe_done)


def _detail(error: AzureError) -> str:
    """What the service said, in one line.

    App Service answers ``{"Code", "Message", "Details"}``, which the client does not read.
    """
    text = str(error.message)
    if isinstance(error, HttpResponseError) and error.error is not None:
        text = str(error.error.message)
    elif isinstance(error, HttpResponseError) and error.response is not None:
        with suppress(ValueError, KeyError, TypeError):
            text = str(json.loads(error.response.text())["Message"])
    return " ".join(text.split())[:DETAIL_LENGTH_MAX]


def _retry_after_seconds(error: AzureError) -> float | None:
    response = getattr(error, "response", None)
    text = response.headers.get("Retry-After", "") if response is not None else ""
    known = text.isdecimal() and len(text) <= RETRY_AFTER_DIGITS_MAX
    return float(text) if known else None
