"""The stand-ins for Azure, asked by the real SDK clients over HTTP."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from aiohttp import ClientSession
from azure.core.credentials import AccessToken
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceResponseTimeoutError,
)
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from azure.mgmt.web import WebSiteManagementClient as SyncWebClient
from azure.mgmt.web.aio import WebSiteManagementClient as WebClient
from azure.mgmt.web.models import AppServicePlan
from azure.servicebus.aio.management import ServiceBusAdministrationClient as BusClient
from azure.servicebus.management import ServiceBusAdministrationClient as SyncBusClient

from local.azure_apis import arm_errors
from local.azure_apis.arm import ArmStandIn
from local.azure_apis.entities import EntityCounts
from local.azure_apis.loopback_server import HANG, LOST_REPLY, LoopbackServer
from local.azure_apis.plans import P1V3, Plan, PlanId
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn, refusal

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
PLAN = PlanId(SUBSCRIPTION, "rg", "plan")
OTHER = PlanId(SUBSCRIPTION, "other-rg", "plan")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class AsyncLoopback(AioHttpTransport):  # type: ignore[misc]
    """The URL is put back: on a retry the token policy looks at it again, and insists on https."""

    async def send(self, request: Any, **config: Any) -> Any:
        url = request.url
        request.url = over_http(url)
        try:
            return await super().send(request, **config)
        finally:
            request.url = url


class SyncLoopback(RequestsTransport):  # type: ignore[misc]
    def send(self, request: Any, **config: Any) -> Any:
        url = request.url
        request.url = over_http(url)
        try:
            return super().send(request, **config)
        finally:
            request.url = url


def over_http(url: str) -> str:
    return url.replace("https://127.0.0.1", "http://127.0.0.1", 1)


class Token:
    def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        return AccessToken("any", int(time.time()) + 3600)


class AsyncToken:
    async def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        return AccessToken("any", int(time.time()) + 3600)

    async def close(self) -> None: ...

    async def __aenter__(self) -> "AsyncToken":
        return self

    async def __aexit__(self, *exception: object) -> None: ...


class SteppingClock:
    """Goes on by `step` each time somebody looks."""

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


@pytest.fixture
async def arm() -> AsyncIterator[ArmStandIn]:
    plans = [Plan(PLAN, tags={"team": "blue"}), Plan(OTHER, capacity=7, sku=P1V3)]
    async with ArmStandIn(plans, retry_after_seconds=0) as server:
        yield server


@pytest.fixture
async def bus() -> AsyncIterator[ServiceBusAdminStandIn]:
    async with ServiceBusAdminStandIn(SomeCounts()) as server:
        yield server


class SomeCounts:
    """Counts by path, to be set by a test."""

    def __init__(self) -> None:
        self.by_path: dict[str, EntityCounts] = {
            "jobs": EntityCounts(active=42, dead_letter=3, scheduled=5, transfer=1),
            "news": EntityCounts(scheduled=9),
            "news/subscriptions/mail": EntityCounts(active=7, dead_letter=2),
        }

    def counts(self, entity_path: str) -> EntityCounts | None:
        return self.by_path.get(entity_path)


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


@contextmanager
def refused(status: int, error: type[HttpResponseError] = HttpResponseError) -> Iterator[Any]:
    with pytest.raises(error) as caught:
        yield caught
    assert caught.value.status_code == status


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

    async def test_lists_by_resource_group_and_by_subscription(self, arm: ArmStandIn) -> None:
        async with arm_client(arm) as client:
            plans = client.app_service_plans
            in_group = [plan.id async for plan in plans.list_by_resource_group("other-rg")]
            in_subscription = [plan.id async for plan in plans.list()]
        assert in_group == [str(OTHER)]
        assert in_subscription == [str(PLAN), str(OTHER)]

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
        def change() -> list[int | None]:
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
                return [plan.sku.capacity for plan in client.app_service_plans.list() if plan.sku]

        assert await asyncio.to_thread(change) == [3, 7]

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


class TestEntities:
    async def test_runtime_counts_of_a_queue(self, bus: ServiceBusAdminStandIn) -> None:
        bus.declare_queue("jobs")
        async with bus_client(bus) as client:
            queue = await client.get_queue_runtime_properties("Jobs")
        assert queue.active_message_count == 42
        assert queue.dead_letter_message_count == 3
        assert queue.scheduled_message_count == 5
        assert queue.transfer_message_count == 1
        assert queue.total_message_count == 51

    async def test_runtime_counts_of_a_topic_and_its_subscription(
        self, bus: ServiceBusAdminStandIn
    ) -> None:
        bus.declare_topic("news")
        bus.declare_subscription("news", "mail")
        async with bus_client(bus) as client:
            topic = await client.get_topic_runtime_properties("news")
            mail = await client.get_subscription_runtime_properties("news", "mail")
        assert (topic.scheduled_message_count, topic.subscription_count) == (9, 1)
        assert (mail.name, mail.active_message_count) == ("mail", 7)
        assert (mail.dead_letter_message_count, mail.total_message_count) == (2, 9)

    async def test_an_entity_that_is_not_there_is_not_found(
        self, bus: ServiceBusAdminStandIn
    ) -> None:
        bus.declare_topic("news")
        async with bus_client(bus) as client:
            for asked in (
                client.get_queue_runtime_properties("none"),
                client.get_queue("none"),
                client.get_topic_runtime_properties("none"),
                client.get_subscription_runtime_properties("news", "none"),
                client.get_subscription_runtime_properties("none", "none"),
            ):
                with pytest.raises(ResourceNotFoundError):
                    await asked

    async def test_an_entity_nobody_counts_is_empty(self, bus: ServiceBusAdminStandIn) -> None:
        bus.declare_queue("quiet")
        async with bus_client(bus) as client:
            queue = await client.get_queue_runtime_properties("quiet")
        assert queue.total_message_count == 0

    async def test_properties_are_kept_as_they_were_put(self, bus: ServiceBusAdminStandIn) -> None:
        async with bus_client(bus) as client:
            await client.create_queue("target")
            await client.create_queue(
                "jobs",
                requires_duplicate_detection=True,
                duplicate_detection_history_time_window="P2D",
                requires_session=True,
                lock_duration=timedelta(minutes=5),
                max_delivery_count=4,
                default_message_time_to_live=timedelta(days=3),
                forward_to="target",
                user_metadata="a < b & c",
            )
            queue = await client.get_queue("jobs")
        assert queue.requires_duplicate_detection is True
        assert queue.duplicate_detection_history_time_window == timedelta(days=2)
        assert queue.requires_session is True
        assert queue.lock_duration == timedelta(minutes=5)
        assert queue.max_delivery_count == 4
        assert queue.default_message_time_to_live == timedelta(days=3)
        assert queue.forward_to == f"sb://127.0.0.1:{bus.port}/target"
        assert queue.user_metadata == "a < b & c"

    async def test_properties_left_out_get_the_services_defaults(
        self, bus: ServiceBusAdminStandIn
    ) -> None:
        bus.declare_queue("jobs", MaxDeliveryCount="3")
        async with bus_client(bus) as client:
            queue = await client.get_queue("jobs")
        assert (queue.max_delivery_count, queue.requires_session) == (3, False)
        assert queue.lock_duration == timedelta(minutes=1)
        assert queue.duplicate_detection_history_time_window == timedelta(minutes=10)

    async def test_an_update_replaces_properties(self, bus: ServiceBusAdminStandIn) -> None:
        async with bus_client(bus) as client:
            topic = await client.create_topic("news")
            await client.create_subscription("news", "mail", requires_session=True)
            mail = await client.get_subscription("news", "mail")
            mail.max_delivery_count = 7
            await client.update_subscription("news", mail)
            await client.update_topic(topic, user_metadata="new")
            mail = await client.get_subscription("news", "mail")
            runtime = await client.get_subscription_runtime_properties("news", "mail")
            topic = await client.get_topic("news")
        assert (mail.max_delivery_count, mail.requires_session) == (7, True)
        assert (runtime.active_message_count, topic.user_metadata) == (7, "new")

    async def test_lists_have_what_was_created_until_it_is_deleted(
        self, bus: ServiceBusAdminStandIn
    ) -> None:
        async with bus_client(bus) as client:
            assert [queue async for queue in client.list_queues()] == []
            for name in ("one", "two/deep"):
                await client.create_queue(name)
            await client.create_topic("news")
            await client.create_subscription("news", "mail")
            assert [queue.name async for queue in client.list_queues()] == ["one", "two/deep"]
            assert [topic.name async for topic in client.list_topics()] == ["news"]
            subscriptions = client.list_subscriptions_runtime_properties("news")
            assert [entry.active_message_count async for entry in subscriptions] == [7]
            await client.delete_queue("two/deep")
            await client.delete_topic("news")
            assert [queue.name async for queue in client.list_queues()] == ["one"]
            with pytest.raises(ResourceNotFoundError):
                await client.get_subscription("news", "mail")

    async def test_long_lists_come_in_pages(self, bus: ServiceBusAdminStandIn) -> None:
        for number in range(230):
            bus.declare_queue(f"queue-{number}")
        async with bus_client(bus) as client:
            names = [queue.name async for queue in client.list_queues_runtime_properties()]
        assert names == [f"queue-{number}" for number in range(230)]
        assert len(bus.requests) == 3

    async def test_what_cannot_be_done_is_refused(self, bus: ServiceBusAdminStandIn) -> None:
        async with bus_client(bus) as client:
            queue = await client.create_queue("jobs")
            with refused(409):
                await client.create_queue("JOBS")
            with refused(404, ResourceNotFoundError):
                await client.create_subscription("nowhere", "mail")
            with refused(404, ResourceNotFoundError):
                await client.delete_queue("none")
            await client.delete_queue("jobs")
            with refused(404, ResourceNotFoundError):
                await client.update_queue(queue)

    async def test_the_sync_client_works_as_well(self, bus: ServiceBusAdminStandIn) -> None:
        def ask() -> tuple[int | None, list[str]]:
            with SyncBusClient.from_connection_string(
                bus.connection_string, transport=SyncLoopback()
            ) as client:
                client.create_queue("jobs")
                queue = client.get_queue_runtime_properties("jobs")
                return queue.active_message_count, [each.name for each in client.list_queues()]

        assert await asyncio.to_thread(ask) == (42, ["jobs"])

    async def test_a_credential_serves_as_well_as_a_connection_string(
        self, bus: ServiceBusAdminStandIn
    ) -> None:
        bus.declare_queue("jobs")
        async with BusClient(
            f"127.0.0.1:{bus.port}", AsyncToken(), transport=AsyncLoopback()
        ) as client:
            queue = await client.get_queue_runtime_properties("jobs")
        assert queue.active_message_count == 42


class TestFaultsOfTheBus:
    async def test_statuses_and_retry_after(self, bus: ServiceBusAdminStandIn) -> None:
        bus.declare_queue("jobs")
        async with bus_client(bus) as client:
            bus.fail_next(refusal(401, "no"))
            with refused(401, ClientAuthenticationError):
                await client.get_queue_runtime_properties("jobs")
            bus.fail_next(refusal(429, "slow down", retry_after_seconds=9))
            with refused(429) as caught:
                await client.get_queue_runtime_properties("jobs")
            bus.fail_next(refusal(500, "broken"))
            with refused(500, HttpResponseError) as broken:
                await client.get_queue_runtime_properties("jobs")
            queue = await client.get_queue_runtime_properties("jobs")
        assert caught.value.response.headers["Retry-After"] == "9"
        assert broken.value.message == "broken"
        assert queue.active_message_count == 42

    async def test_the_clients_own_retries_outlast_a_short_fault(
        self, bus: ServiceBusAdminStandIn
    ) -> None:
        bus.declare_queue("jobs")
        bus.fail_next(refusal(500), times=2)
        async with bus_client(bus, retry_total=2, retry_backoff_factor=0) as client:
            queue = await client.get_queue_runtime_properties("jobs")
        assert queue.active_message_count == 42
        assert len(bus.requests) == 3

    async def test_a_request_that_hangs_runs_into_the_clients_timeout(
        self, bus: ServiceBusAdminStandIn
    ) -> None:
        bus.declare_queue("jobs")
        bus.fail_next(HANG)
        async with bus_client(bus) as client:
            with pytest.raises(ServiceResponseTimeoutError):
                await client.get_queue_runtime_properties("jobs", read_timeout=0.2)
            queue = await client.get_queue_runtime_properties("jobs")
        assert queue.active_message_count == 42


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
