"""Azure Resource Manager and what the stand-ins share, asked by the real SDK clients over HTTP."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from aiohttp import ClientSession
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceResponseTimeoutError,
)
from azure.mgmt.web import WebSiteManagementClient as SyncWebClient
from azure.mgmt.web.aio import WebSiteManagementClient as WebClient
from azure.mgmt.web.models import AppServicePlan

from local.azure_apis import arm_errors
from local.azure_apis.arm import ArmStandIn
from local.azure_apis.loopback_server import HANG, LOST_REPLY, LoopbackServer
from local.azure_apis.plans import P1V3, Plan, PlanId
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn
from tests.local.loopback_clients import (
    NOW,
    OTHER,
    PLAN,
    SUBSCRIPTION,
    SomeCounts,
    SteppingClock,
    SyncLoopback,
    Token,
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
    """The way to change a plan's capacity: read it, set it, put it back, wait."""
    plan = await client.app_service_plans.get(PLAN.resource_group, PLAN.name)
    assert plan.sku is not None
    plan.sku.capacity = capacity
    poller = await client.app_service_plans.begin_create_or_update(
        PLAN.resource_group, PLAN.name, plan, **options
    )
    return await poller.result()


async def capacity_of(client: WebClient, plan: PlanId = PLAN) -> int | None:
    got = await client.app_service_plans.get(plan.resource_group, plan.name)
    assert got.sku is not None
    return got.sku.capacity


class TestPlans:
    async def test_get_shows_the_whole_plan(self, arm: ArmStandIn) -> None:
        async with arm_client(arm) as client:
            plan = await client.app_service_plans.get("RG", "Plan")
        assert (plan.id, plan.name, plan.type) == (str(PLAN), "plan", "Microsoft.Web/serverfarms")
        assert (plan.kind, plan.location, plan.tags) == ("app", "West Europe", {"team": "blue"})
        assert plan.sku is not None
        assert plan.properties is not None
        assert (plan.sku.name, plan.sku.tier, plan.sku.capacity) == ("S1", "Standard", 1)
        assert (plan.properties.status, plan.properties.provisioning_state) == (
            "Ready",
            "Succeeded",
        )
        assert plan.properties.number_of_workers == 1
        assert plan.properties.maximum_number_of_workers == 10

    async def test_a_plan_that_is_not_there_is_not_found(self, arm: ArmStandIn) -> None:
        async with arm_client(arm) as client:
            with refused(404, ResourceNotFoundError):
                await client.app_service_plans.get("rg", "plan2")

    async def test_a_changed_plan_keeps_all_but_its_capacity(self, arm: ArmStandIn) -> None:
        before = arm.plan(PLAN)
        async with arm_client(arm) as client:
            changed = await scale(client, 4)
            assert await capacity_of(client) == 4
        assert changed.sku is not None
        assert changed.sku.capacity == 4
        after = arm.plan(PLAN)
        assert (after.capacity, after.tags, after.sku) == (4, before.tags, before.sku)
        assert arm.plan(OTHER).capacity == 7

    async def test_a_put_replaces_tags_that_it_leaves_out(self, arm: ArmStandIn) -> None:
        """As in Azure: who puts a bare sku loses the rest."""
        bare = {"location": "West Europe", "sku": {"name": "S1", "capacity": 2}}
        async with arm_client(arm) as client:
            poller = await client.app_service_plans.begin_create_or_update(
                "rg", "plan", AppServicePlan(bare)
            )
            await poller.result()
        assert arm.plan(PLAN).tags == {}

    async def test_the_sync_client_works_as_well(self, arm: ArmStandIn) -> None:
        def change() -> int | None:
            with SyncWebClient(
                Token(),
                SUBSCRIPTION,
                arm.base_url,
                transport=SyncLoopback(),
                polling_interval=0,
            ) as client:
                plan = client.app_service_plans.get("rg", "plan")
                assert plan.sku is not None
                plan.sku.capacity = 3
                client.app_service_plans.begin_create_or_update("rg", "plan", plan).result()
                changed = client.app_service_plans.get("rg", "plan").sku
                return None if changed is None else changed.capacity

        assert await asyncio.to_thread(change) == 3
        assert arm.plan(OTHER).capacity == 7

    async def test_any_token_will_do(self, arm: ArmStandIn) -> None:
        async with arm_client(arm) as client:
            assert await capacity_of(client) == 1
        assert arm.requests[-1].headers["authorization"] == "Bearer any"


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

    async def test_the_operation_is_polled_until_it_is_done(self) -> None:
        async with self.slow(10, SteppingClock(timedelta(seconds=1))) as (arm, client):
            plan = await scale(client, 5)
            polls = [request for request in arm.requests if "/operationresults/" in request.path]
        assert plan.sku is not None
        assert plan.sku.capacity == 5
        assert len(polls) > 1
        assert {poll.query["api-version"] for poll in polls} == {"2025-05-01"}

    async def test_until_it_is_done_the_old_capacity_shows(self) -> None:
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

    async def test_a_second_change_meanwhile_is_a_conflict(self) -> None:
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
        assert caught.value.error is None, "the SDK does not read this form of an error"
        assert [(put.capacity, put.accepted) for put in arm.puts] == [
            (5, True),
            (6, False),
            (6, True),
        ]

    async def test_every_put_is_logged_with_capacity_and_time(self) -> None:
        clock = SteppingClock()
        async with self.slow(0, clock) as (arm, client):
            await scale(client, 2, polling=False)
            clock.now += timedelta(minutes=1)
            await scale(client, 3, polling=False)
        assert [(put.plan, put.capacity, put.time) for put in arm.puts] == [
            (PLAN, 2, NOW),
            (PLAN, 3, NOW + timedelta(minutes=1)),
        ]
        assert [put.status for put in arm.puts] == [202, 202]

    async def test_capacity_changes_by_hand_at_once(self) -> None:
        ordered: list[tuple[PlanId, int]] = []
        async with (
            ArmStandIn(
                [Plan(PLAN)],
                operation_seconds=3600,
                on_capacity_ordered=lambda plan, capacity: ordered.append((plan, capacity)),
            ) as arm,
            arm_client(arm) as client,
        ):
            await scale(client, 5, polling=False)
            arm.set_capacity_by_hand(PLAN, 8)
            assert await capacity_of(client) == 8
        assert ordered == [(PLAN, 5), (PLAN, 8)]
        assert len(arm.puts) == 1

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
    async def test_a_body_that_is_no_plan_is_refused(self, arm: ArmStandIn, body: bytes) -> None:
        async with arm_client(arm) as client:
            with refused(400):
                await client.app_service_plans.begin_create_or_update("rg", "plan", body_of(body))

    async def test_conflicts_come_at_random_and_by_seed(self) -> None:
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
    async def test_strikes_the_next_requests_only(
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

    @pytest.mark.parametrize(
        ("fault", "says"),
        [
            (arm_errors.ANOTHER_OPERATION, "another operation is in progress"),
            (arm_errors.NO_INSTANCES, "No available instances"),
        ],
    )
    async def test_refusals_of_a_change_leave_reading_alone(
        self, arm: ArmStandIn, fault: Any, says: str
    ) -> None:
        arm.fail_next(fault)
        async with arm_client(arm) as client:
            with refused(409, ResourceExistsError) as caught:
                await scale(client, 3)
            assert says in json.loads(caught.value.response.text())["Message"]
            assert await capacity_of(client) == 1
            await scale(client, 3)
        assert [(put.status, put.accepted) for put in arm.puts] == [(409, False), (202, True)]

    async def test_throttling_says_when_to_come_back(self, arm: ArmStandIn) -> None:
        arm.fail_next(arm_errors.throttled(17))
        async with arm_client(arm) as client:
            with refused(429) as caught:
                await client.app_service_plans.get("rg", "plan")
        assert caught.value.response.headers["Retry-After"] == "17"

    async def test_a_request_that_hangs_runs_into_the_clients_timeout(
        self, arm: ArmStandIn
    ) -> None:
        arm.fail_next(HANG)
        async with arm_client(arm) as client:
            with pytest.raises(ServiceResponseTimeoutError):
                await client.app_service_plans.get("rg", "plan", read_timeout=0.2)
            assert await capacity_of(client) == 1

    async def test_a_lost_reply_hides_a_change_that_took_effect(self, arm: ArmStandIn) -> None:
        arm.fail_next(LOST_REPLY)
        async with arm_client(arm) as client:
            with pytest.raises(ServiceResponseTimeoutError):
                await scale(client, 4, read_timeout=0.2)
            assert await capacity_of(client) == 4
        assert [(put.accepted, put.status) for put in arm.puts] == [(True, None)]

    async def test_closing_ends_requests_that_hang(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with ArmStandIn([Plan(PLAN)]) as arm, arm_client(arm) as client:
            arm.fail_next(HANG)
            reached = asyncio.Event()
            monkeypatch.setattr(arm, "observe", lambda *_: reached.set())
            hanging = asyncio.create_task(capacity_of(client))
            await reached.wait()
            await arm.__aexit__()
            with refused(503):
                await hanging

    async def test_the_clients_own_retries_outlast_a_short_fault(self, arm: ArmStandIn) -> None:
        arm.fail_next(arm_errors.SERVER_ERROR, times=2)
        async with arm_client(arm, retry_total=2, retry_backoff_factor=0) as client:
            assert await capacity_of(client) == 1
        assert len(arm.requests) == 3

    async def test_faults_can_be_called_off(self, arm: ArmStandIn) -> None:
        arm.fail_next(arm_errors.FORBIDDEN, times=1000)
        arm.stop_failing()
        async with arm_client(arm) as client:
            assert await capacity_of(client) == 1

    async def test_a_delay_holds_back_the_answer(self, arm: ArmStandIn) -> None:
        arm.delay_seconds = 0.05
        async with arm_client(arm) as client:
            started = time.monotonic()
            await capacity_of(client)
        assert time.monotonic() - started >= 0.05


class TestTheFrontDoor:
    async def test_every_answer_carries_the_servers_date(self) -> None:
        clock = SteppingClock()
        async with (
            ArmStandIn([Plan(PLAN)], clock=clock) as arm,
            ServiceBusAdminStandIn(clock=clock) as bus,
        ):
            for server, path in ((arm, str(PLAN)), (bus, "/jobs")):
                status, headers = await raw_get(server, path, token="any")
                assert (status, parsedate_to_datetime(headers["date"])) == (200, NOW)

    async def test_without_a_token_there_is_no_way_in(
        self, arm: ArmStandIn, bus: ServiceBusAdminStandIn
    ) -> None:
        bus.declare_queue("jobs")
        for server, path in ((arm, str(PLAN)), (bus, "/jobs")):
            status, _ = await raw_get(server, path, token=None)
            assert status == 401

    async def test_a_given_port_is_used_and_can_be_used_again(self) -> None:
        async with ServiceBusAdminStandIn() as first:
            port = first.port
        async with ServiceBusAdminStandIn(port=port) as second:
            assert second.port == port
            assert second.base_url == f"https://127.0.0.1:{port}"

    @pytest.mark.parametrize(
        ("method", "path"), [("PATCH", str(PLAN)), ("DELETE", str(PLAN)), ("POST", "/jobs")]
    )
    async def test_what_it_does_not_know_it_says_so(
        self, arm: ArmStandIn, bus: ServiceBusAdminStandIn, method: str, path: str
    ) -> None:
        server = arm if path == str(PLAN) else bus
        status, _ = await raw_get(server, path, token="any", method=method)
        assert status == 405


async def raw_get(
    server: LoopbackServer, path: str, *, token: str | None, method: str = "GET"
) -> tuple[int, Mapping[str, str]]:
    """Status and headers, past the SDK."""
    headers = {} if token is None else {"Authorization": token}
    url = f"http://127.0.0.1:{server.port}{path}"
    async with ClientSession() as session, session.request(method, url, headers=headers) as reply:
        return reply.status, {name.lower(): value for name, value in reply.headers.items()}


def json_bytes(body: object) -> Any:
    return body_of(json.dumps(body).encode())


def body_of(content: bytes) -> Any:
    """Bytes pass the SDK as they are, past its own model."""
    return content
