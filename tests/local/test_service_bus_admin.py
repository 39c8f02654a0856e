"""Administration of Service Bus, asked by the real SDK clients over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
    ServiceResponseTimeoutError,
)
from azure.servicebus.aio.management import ServiceBusAdministrationClient as BusClient
from azure.servicebus.management import ServiceBusAdministrationClient as SyncBusClient

from local.azure_apis.loopback_server import HANG
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn, refusal
from tests.local.loopback_clients import (
    AsyncLoopback,
    AsyncToken,
    SomeCounts,
    SyncLoopback,
    bus_client,
    refused,
)


@pytest.fixture
async def bus() -> AsyncIterator[ServiceBusAdminStandIn]:
    async with ServiceBusAdminStandIn(SomeCounts()) as server:
        yield server


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
