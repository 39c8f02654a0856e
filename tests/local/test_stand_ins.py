"""The stand-in for Azure Resource Manager with the real SDK clients."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from aiohttp import ClientSession
from azure.core.credentials import AccessToken
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ServiceResponseTimeoutError,
)
from azure.core.pipeline.transport import AioHttpTransport
from azure.mgmt.web.aio import WebSiteManagementClient as WebClient
from azure.mgmt.web.models import AppServicePlan

from local.azure_apis.arm import ArmStandIn
from local.azure_apis.loopback_server import LOST_REPLY
from local.azure_apis.plans import P1V3, Pieces, Plan, PlanId
from tests.builders import NOW

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
PLAN = PlanId(SUBSCRIPTION, "rg", "plan")
OTHER = PlanId(SUBSCRIPTION, "other-rg", "plan")
ANY = {"Authorization": "any"}
BARE = {"location": "West Europe", "sku": {"name": "S1", "capacity": 2}}


class Loopback(AioHttpTransport):  # type: ignore[misc]
    """Sends over http, then restores the URL: the token policy requires https on a retry."""

    async def send(self, request: Any, **config: Any) -> Any:
        url = request.url
        request.url = url.replace("https://", "http://", 1)
        try:
            return await super().send(request, **config)
        finally:
            request.url = url


class AnyToken:
    async def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        return AccessToken("any", int(time.time()) + 3600)

    async def close(self) -> None: ...

    async def __aenter__(self) -> "AnyToken":
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
        AnyToken(), SUBSCRIPTION, server.base_url, transport=Loopback(), **options
    ) as client:
        yield client


@contextmanager
def refused(status: int, error: type[HttpResponseError] = HttpResponseError) -> Iterator[Any]:
    with pytest.raises(error) as caught:
        yield caught
    assert caught.value.status_code == status


@pytest.fixture
async def arm() -> AsyncIterator[ArmStandIn]:
    plans = [Plan(PLAN, tags={"team": "blue"}), Plan(OTHER, capacity=7, sku=P1V3)]
    async with ArmStandIn(plans, retry_after_seconds=0) as server:
        yield server


async def scale(client: WebClient, capacity: int, **options: Any) -> AppServicePlan:
    """Change a plan's capacity: get the plan, set the capacity, put the plan, wait."""
    plan = await client.app_service_plans.get(PLAN.resource_group, PLAN.name)
    assert plan.sku is not None
    plan.sku.capacity = capacity
    poller = await client.app_service_plans.begin_create_or_update(
        PLAN.resource_group, PLAN.name, plan, **options
    )
    return await poller.result()


async def capacity_of(client: WebClient, plan: PlanId = PLAN) -> int | None:
    current = await client.app_service_plans.get(plan.resource_group, plan.name)
    assert current.sku is not None
    return current.sku.capacity


async def test_a_put_removes_tags_that_it_omits(arm: ArmStandIn) -> None:
    """As in Azure, a PUT with only a SKU removes the other properties."""
    async with arm_client(arm) as client:
        poller = await client.app_service_plans.begin_create_or_update(
            "rg", "plan", AppServicePlan(BARE)
        )
        await poller.result()
    assert arm.plan(PLAN).tags == {}


class TestChangesOfAPlan:
    @asynccontextmanager
    async def slow(
        self, seconds: float, clock: SteppingClock
    ) -> AsyncIterator[tuple[ArmStandIn, WebClient]]:
        async with (
            ArmStandIn(
                [Plan(PLAN)], clock=clock, operation_seconds=seconds, retry_after_seconds=0
            ) as arm,
            arm_client(arm) as client,
        ):
            yield arm, client

    async def test_the_old_capacity_is_returned_until_the_operation_is_done(self) -> None:
        clock = SteppingClock()
        async with self.slow(60, clock) as (_, client):
            await scale(client, 5, polling=False)
            during = await client.app_service_plans.get("rg", "plan")
            clock.now += timedelta(seconds=60)
            assert await capacity_of(client) == 5
        assert during.sku is not None
        assert during.properties is not None
        assert during.sku.capacity == 1
        assert during.properties.provisioning_state == "InProgress"
        assert during.properties.target_worker_count == 5

    async def test_a_second_change_during_an_operation_is_a_conflict(self) -> None:
        clock = SteppingClock()
        async with self.slow(60, clock) as (arm, client):
            await scale(client, 5, polling=False)
            with refused(409, ResourceExistsError) as caught:
                await scale(client, 6)
            clock.now += timedelta(seconds=61)
            assert (await scale(client, 6, polling=False)).sku is not None
        body = json.loads(caught.value.response.text())
        assert body["Code"] == "Conflict"
        assert body["Details"][2]["ErrorEntity"]["ExtendedCode"] == "59205"
        assert caught.value.error is None, "the SDK does not parse this form of error"
        assert [(put.capacity, put.accepted) for put in arm.puts] == [
            (5, True),
            (6, False),
            (6, True),
        ]

    @pytest.mark.parametrize("capacity", [0, -1, 11, None, "three", True])
    async def test_a_capacity_that_the_plan_cannot_have_is_refused(
        self, arm: ArmStandIn, capacity: Any
    ) -> None:
        body: Any = json.dumps({**BARE, "sku": {"name": "S1", "capacity": capacity}}).encode()
        async with arm_client(arm) as client:
            with refused(400):
                await client.app_service_plans.begin_create_or_update("rg", "plan", body)
        assert arm.plan(PLAN).capacity == 1

    async def test_conflicts_occur_at_random_and_are_repeatable_by_seed(self) -> None:
        async def statuses(seed: int) -> list[int | None]:
            async with (
                ArmStandIn([Plan(PLAN)], conflict_probability=0.5, seed=seed) as arm,
                arm_client(arm) as client,
            ):
                for _ in range(12):
                    try:
                        await scale(client, 2, polling=False)
                    except ResourceExistsError:
                        continue
                return [put.status for put in arm.puts]

        first = await statuses(1)
        assert set(first) == {202, 409}
        assert await statuses(1) == first
        assert await statuses(2) != first


class TestAsynchronousScaling:
    """Forms of which Azure's documentation promises some and leaves the others open."""

    @asynccontextmanager
    async def filling(
        self, **pieces: Any
    ) -> AsyncIterator[tuple[ArmStandIn, WebClient, SteppingClock]]:
        """A plan of three instances on its way to 15, in pieces of three a minute."""
        clock, plan = SteppingClock(), Plan(PLAN, 3, P1V3, properties={"asyncScalingEnabled": True})
        async with (
            ArmStandIn([plan], clock=clock, retry_after_seconds=0) as arm,
            arm_client(arm) as client,
        ):
            arm.pieces = Pieces(3, 60, **pieces)
            await scale(client, 15, polling=False)
            yield arm, client, clock

    async def shown(self, client: WebClient) -> tuple[Any, ...]:
        plan = await client.app_service_plans.get("rg", "plan")
        assert plan.sku is not None
        assert plan.properties is not None
        found = plan.properties
        return (
            plan.sku.capacity,
            found.number_of_workers,
            found.target_worker_count,
            str(
                found.provisioning_state.value  # type: ignore[union-attr]
            ),
        )

    @pytest.mark.parametrize(
        ("pieces", "during", "after"),
        [
            ({}, (9, 9, 15, "InProgress"), (15, 15, 0, "Succeeded")),
            ({"shows_ordered": True}, (15, 9, 15, "InProgress"), (15, 15, 0, "Succeeded")),
            ({"keeps_target": True}, (9, 9, 15, "InProgress"), (15, 15, 15, "Succeeded")),
            ({"most": 2}, (9, 9, 15, "InProgress"), (9, 9, 15, "InProgress")),
            ({"most": 3, "ends_short": True}, (9, 9, 15, "InProgress"), (12, 12, 0, "Succeeded")),
        ],
    )
    async def test_a_plan_fills_in_pieces_stands_still_or_ends_short(
        self, pieces: dict[str, Any], during: tuple[Any, ...], after: tuple[Any, ...]
    ) -> None:
        async with self.filling(**pieces) as (_, client, clock):
            clock.now += timedelta(seconds=125)
            assert await self.shown(client) == during
            clock.now += timedelta(seconds=600)
            assert await self.shown(client) == after

    @pytest.mark.parametrize(
        ("target", "reached"), [(5, 5), (0, 15), (15, 15), (None, 15)], ids=str
    )
    async def test_only_another_target_cancels_the_operation(
        self, target: int | None, reached: int
    ) -> None:
        async with self.filling() as (arm, client, clock):
            clock.now += timedelta(seconds=125)
            plan = arm.plan(PLAN).to_json()
            plan["sku"]["capacity"], plan["properties"]["targetWorkerCount"] = 5, target
            if target is None:
                del plan["properties"]["targetWorkerCount"]
            body: Any = json.dumps(plan).encode()
            await client.app_service_plans.begin_create_or_update("rg", "plan", body, polling=False)
            clock.now += timedelta(seconds=600)
            assert await capacity_of(client) == reached

    async def test_a_target_that_is_put_again_starts_its_operation_again(self) -> None:
        async with self.filling(most=2, ends_short=True, keeps_target=True) as (_, client, clock):
            clock.now += timedelta(seconds=125)
            assert await self.shown(client) == (9, 9, 15, "Succeeded")
            await scale(client, 5, polling=False)  # this client repeats what it was shown
            clock.now += timedelta(seconds=600)
            assert await capacity_of(client) == 15


async def test_a_region_without_enough_free_instances_names_their_number(arm: ArmStandIn) -> None:
    arm.free = 2
    async with arm_client(arm) as client:
        with refused(429) as caught:
            await scale(client, 4)
        assert "Currently 2 instances are available" in caught.value.response.text()
        assert await capacity_of(client) == 1
        await scale(client, 3)
        with refused(429) as caught:
            await scale(client, 4)
        assert "you can add extra 0 instances" in caught.value.response.text()
        await scale(client, 2)  # one instance is free again
        await scale(client, 3)


async def test_a_lost_reply_hides_a_change_that_took_effect(arm: ArmStandIn) -> None:
    arm.fail_next(LOST_REPLY)
    async with arm_client(arm) as client:
        with pytest.raises(ServiceResponseTimeoutError):
            await scale(client, 4, read_timeout=0.2)
        assert await capacity_of(client) == 4
    assert [(put.accepted, put.status) for put in arm.puts] == [(True, None)]


@pytest.mark.parametrize(
    ("method", "headers", "expected"),
    [
        ("GET", {}, 401),
        ("PATCH", {"Authorization": "any"}, 405),
        ("DELETE", {"Authorization": "any"}, 405),
    ],
    ids=["without a token", "PATCH", "DELETE"],
)
async def test_unsupported_requests_are_refused(
    arm: ArmStandIn, method: str, headers: dict[str, str], expected: int
) -> None:
    url = f"http://127.0.0.1:{arm.port}{PLAN}"
    async with ClientSession() as session, session.request(method, url, headers=headers) as reply:
        assert reply.status == expected
