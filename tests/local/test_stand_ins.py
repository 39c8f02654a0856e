"""The stand-in for Azure Resource Manager and the common server, with the real SDK clients."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import ClientSession
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceResponseTimeoutError,
)
from azure.mgmt.web.aio import WebSiteManagementClient as WebClient
from azure.mgmt.web.models import AppServicePlan

from local.azure_apis import arm_errors
from local.azure_apis.arm import ArmStandIn, OperationForm
from local.azure_apis.loopback_server import LOST_REPLY, LoopbackServer
from local.azure_apis.plans import P1V3, Plan, PlanId
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn
from tests.local.loopback_clients import (
    OTHER,
    PLAN,
    SomeCounts,
    SteppingClock,
    arm_client,
    refused,
)


@pytest.fixture
async def arm() -> AsyncIterator[ArmStandIn]:
    plans = [Plan(PLAN, tags={"team": "blue"}), Plan(OTHER, capacity=7, sku=P1V3)]
    async with ArmStandIn(plans, retry_after_seconds=0) as server:
        yield server


@pytest.fixture
async def bus() -> AsyncIterator[ServiceBusAdminStandIn]:
    async with ServiceBusAdminStandIn(SomeCounts()) as server:
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


class TestPlans:
    async def test_a_change_of_capacity_changes_nothing_else_in_the_plan(
        self, arm: ArmStandIn
    ) -> None:
        before = arm.plan(PLAN)
        async with arm_client(arm) as client:
            changed = await scale(client, 4)
            assert await capacity_of(client) == 4
        assert changed.sku is not None
        assert changed.sku.capacity == 4
        after = arm.plan(PLAN)
        assert (after.capacity, after.tags, after.sku) == (4, before.tags, before.sku)
        assert arm.plan(OTHER).capacity == 7

    async def test_a_put_removes_tags_that_it_omits(self, arm: ArmStandIn) -> None:
        """As in Azure, a PUT with only a SKU removes the other properties."""
        bare = {"location": "West Europe", "sku": {"name": "S1", "capacity": 2}}
        async with arm_client(arm) as client:
            poller = await client.app_service_plans.begin_create_or_update(
                "rg", "plan", AppServicePlan(bare)
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

    @pytest.mark.parametrize("form", OperationForm)
    async def test_the_client_polls_an_operation_of_either_form_until_it_is_done(
        self, form: OperationForm
    ) -> None:
        async with self.slow(10, SteppingClock(timedelta(seconds=1))) as (arm, client):
            arm.operation_form = form
            plan = await scale(client, 5)
            polls = [request for request in arm.requests if f"/{form.path}/" in request.path]
        assert plan.sku is not None
        assert plan.sku.capacity == 5
        assert len(polls) > 1
        assert {poll.query["api-version"] for poll in polls} == {"2025-05-01"}

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
        body = {"location": "West Europe", "sku": {"name": "S1", "capacity": capacity}}
        async with arm_client(arm) as client:
            with refused(400):
                await client.app_service_plans.begin_create_or_update(
                    "rg", "plan", json_bytes(body)
                )
        assert arm.plan(PLAN).capacity == 1

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"sku": 3}', b'{"tags": 1}', b"null"])
    async def test_a_body_that_is_not_a_plan_is_refused(self, arm: ArmStandIn, body: bytes) -> None:
        async with arm_client(arm) as client:
            with refused(400):
                await client.app_service_plans.begin_create_or_update("rg", "plan", body_of(body))

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


class TestFaultsOfArm:
    @pytest.mark.parametrize(
        ("fault", "status", "error"),
        [
            (arm_errors.FORBIDDEN, 403, HttpResponseError),
            (arm_errors.NOT_FOUND, 404, ResourceNotFoundError),
            (arm_errors.throttled(17), 429, HttpResponseError),
            (arm_errors.SERVER_ERROR, 500, HttpResponseError),
        ],
    )
    async def test_a_fault_applies_only_to_the_next_requests(
        self, arm: ArmStandIn, fault: Any, status: int, error: type[HttpResponseError]
    ) -> None:
        arm.fail_next(fault, times=2)
        async with arm_client(arm) as client:
            for _ in range(2):
                with refused(status, error) as caught:
                    await client.app_service_plans.get("rg", "plan")
                assert caught.value.error is not None
                assert caught.value.error.code
            assert await capacity_of(client) == 1

    async def test_a_lost_reply_hides_a_change_that_took_effect(self, arm: ArmStandIn) -> None:
        arm.fail_next(LOST_REPLY)
        async with arm_client(arm) as client:
            with pytest.raises(ServiceResponseTimeoutError):
                await scale(client, 4, read_timeout=0.2)
            assert await capacity_of(client) == 4
        assert [(put.accepted, put.status) for put in arm.puts] == [(True, None)]


class TestTheCommonServer:
    async def test_a_request_without_a_token_is_refused(
        self, arm: ArmStandIn, bus: ServiceBusAdminStandIn
    ) -> None:
        bus.declare_queue("jobs")
        for server, path in ((arm, str(PLAN)), (bus, "/jobs")):
            status, _ = await raw_get(server, path, token=None)
            assert status == 401

    @pytest.mark.parametrize(
        ("method", "path"), [("PATCH", str(PLAN)), ("DELETE", str(PLAN)), ("POST", "/jobs")]
    )
    async def test_unsupported_methods_are_refused(
        self, arm: ArmStandIn, bus: ServiceBusAdminStandIn, method: str, path: str
    ) -> None:
        server = arm if path == str(PLAN) else bus
        status, _ = await raw_get(server, path, token="any", method=method)
        assert status == 405


async def raw_get(
    server: LoopbackServer, path: str, *, token: str | None, method: str = "GET"
) -> tuple[int, Mapping[str, str]]:
    """Send a request without the SDK and return status and headers."""
    headers = {} if token is None else {"Authorization": token}
    url = f"http://127.0.0.1:{server.port}{path}"
    async with ClientSession() as session, session.request(method, url, headers=headers) as reply:
        return reply.status, {name.lower(): value for name, value in reply.headers.items()}


def json_bytes(body: object) -> Any:
    return body_of(json.dumps(body).encode())


def body_of(content: bytes) -> Any:
    """Bytes as a body, which the SDK sends unchanged."""
    return content
