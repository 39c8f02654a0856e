"""Real SDK clients that talk to the loopback stand-ins over plain HTTP."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import (
    HttpResponseError,
)
from azure.core.pipeline.transport import AioHttpTransport
from azure.mgmt.web.aio import WebSiteManagementClient as WebClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient as BusClient

from local.azure_apis.arm import ArmStandIn
from local.azure_apis.entities import EntityCounts
from local.azure_apis.plans import PlanId
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
PLAN = PlanId(SUBSCRIPTION, "rg", "plan")
OTHER = PlanId(SUBSCRIPTION, "other-rg", "plan")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class AsyncLoopback(AioHttpTransport):  # type: ignore[misc]
    """Sends over http, then restores the URL: the token policy requires https on a retry."""

    async def send(self, request: Any, **config: Any) -> Any:
        url = request.url
        request.url = over_http(url)
        try:
            return await super().send(request, **config)
        finally:
            request.url = url


def over_http(url: str) -> str:
    return url.replace("https://127.0.0.1", "http://127.0.0.1", 1)


class AsyncToken:
    async def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        return AccessToken("any", int(time.time()) + 3600)

    async def close(self) -> None: ...

    async def __aenter__(self) -> "AsyncToken":
        return self

    async def __aexit__(self, *exception: object) -> None: ...


class SteppingClock:
    """A clock that advances by `step` on each reading."""

    def __init__(self, step: timedelta = timedelta(0)) -> None:
        self.now = NOW
        self.step = step

    def __call__(self) -> datetime:
        self.now += self.step
        return self.now


@asynccontextmanager
async def arm_client(server: ArmStandIn, **options: Any) -> AsyncIterator[WebClient]:
    options = {"retry_total": 0, "polling_interval": 0} | options
    async with WebClient(
        AsyncToken(), SUBSCRIPTION, server.base_url, transport=AsyncLoopback(), **options
    ) as client:
        yield client


@asynccontextmanager
async def bus_client(server: ServiceBusAdminStandIn, **options: Any) -> AsyncIterator[BusClient]:
    options = {"retry_total": 0} | options
    async with BusClient.from_connection_string(
        server.connection_string, transport=AsyncLoopback(), **options
    ) as client:
        yield client


class SomeCounts:
    """Counts by path, which a test can change."""

    def __init__(self) -> None:
        self.by_path: dict[str, EntityCounts] = {
            "jobs": EntityCounts(active=42, dead_letter=3, scheduled=5, transfer=1),
            "news": EntityCounts(scheduled=9),
            "news/subscriptions/mail": EntityCounts(active=7, dead_letter=2),
        }

    def counts(self, entity_path: str) -> EntityCounts | None:
        return self.by_path.get(entity_path)


@contextmanager
def refused(status: int, error: type[HttpResponseError] = HttpResponseError) -> Iterator[Any]:
    with pytest.raises(error) as caught:
        yield caught
    assert caught.value.status_code == status
