"""Service Bus administration over HTTP, with the real SDK clients."""

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
    async def test_the_message_counts_of_a_queue_are_returned(
        self, bus: ServiceBusAdminStandIn
    ) -> None:
        bus.declare_queue("jobs")
        async with bus_client(bus) as client:
            queue = await client.get_queue_runtime_properties("Jobs")
        assert queue.active_message_count == 42
        assert queue.dead_letter_message_count == 3
        assert queue.scheduled_message_count == 5
        assert queue.transfer_message_count == 1
        assert queue.total_message_count == 51

    async def test_the_message_counts_of_a_topic_and_its_subscription_are_returned(
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

    async def test_a_missing_entity_is_reported_as_not_found(
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

    async def test_an_entity_without_counts_is_empty(self, bus: ServiceBusAdminStandIn) -> None:
        bus.declare_queue("quiet")
        async with bus_client(bus) as client:
            queue = await client.get_queue_runtime_properties("quiet")
        assert queue.total_message_count == 0

    async def test_declared_properties_are_returned(self, bus: ServiceBusAdminStandIn) -> None:
        bus.declare_queue(
            "jobs",
            RequiresDuplicateDetection="true",
            DuplicateDetectionHistoryTimeWindow="P2D",
            RequiresSession="true",
            LockDuration="PT5M",
            MaxDeliveryCount="4",
            DefaultMessageTimeToLive="P3D",
            ForwardTo=f"{bus.base_url}/target",
            UserMetadata="a < b & c",
        )
        async with bus_client(bus) as client:
            queue = await client.get_queue("jobs")
        assert queue.requires_duplicate_detection is True
        assert queue.duplicate_detection_history_time_window == timedelta(days=2)
        assert queue.requires_session is True
        assert queue.lock_duration == timedelta(minutes=5)
        assert queue.max_delivery_count == 4
        assert queue.default_message_time_to_live == timedelta(days=3)
        assert queue.forward_to == f"{bus.base_url}/target"
        assert queue.user_metadata == "a < b & c"

    async def test_omitted_properties_have_the_defaults_of_the_service(
        self, bus: ServiceBusAdminStandIn
    ) -> None:
        bus.declare_queue("jobs", MaxDeliveryCount="3")
        async with bus_client(bus) as client:
            queue = await client.get_queue("jobs")
        assert (queue.max_delivery_count, queue.requires_session) == (3, False)
        assert queue.lock_duration == timedelta(minutes=1)
        assert queue.duplicate_detection_history_time_window == timedelta(minutes=10)

    async def test_the_sync_client_works(self, bus: ServiceBusAdminStandIn) -> None:
        def ask() -> int | None:
            with SyncBusClient.from_connection_string(
                bus.connection_string, transport=SyncLoopback()
            ) as client:
                return client.get_queue_runtime_properties("jobs").active_message_count

        bus.declare_queue("jobs")
        assert await asyncio.to_thread(ask) == 42

    async def test_a_client_with_a_credential_works(self, bus: ServiceBusAdminStandIn) -> None:
        bus.declare_queue("jobs")
        async with BusClient(
            f"127.0.0.1:{bus.port}", AsyncToken(), transport=AsyncLoopback()
        ) as client:
            queue = await client.get_queue_runtime_properties("jobs")
        assert queue.active_message_count == 42


class TestFaultsOfTheBus:
    async def test_faults_return_their_status_and_retry_after(
        self, bus: ServiceBusAdminStandIn
    ) -> None:
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

    async def test_the_clients_retries_survive_a_short_fault(
        self, bus: ServiceBusAdminStandIn
    ) -> None:
        bus.declare_queue("jobs")
        bus.fail_next(refusal(500), times=2)
        async with bus_client(bus, retry_total=2, retry_backoff_factor=0) as client:
            queue = await client.get_queue_runtime_properties("jobs")
        assert queue.active_message_count == 42
        assert len(bus.requests) == 3

    async def test_a_request_that_hangs_times_out_in_the_client(
        self, bus: ServiceBusAdminStandIn
    ) -> None:
        bus.declare_queue("jobs")
        bus.fail_next(HANG)
        async with bus_client(bus) as client:
            with pytest.raises(ServiceResponseTimeoutError):
                await client.get_queue_runtime_properties("jobs", read_timeout=0.2)
            queue = await client.get_queue_runtime_properties("jobs")
        assert queue.active_message_count == 42
