"""Messages that find a valid claim of another worker, in the functions host with a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from local.amqp_broker import VirtualClock
from local.amqp_broker.administration import ServiceBusStandIn, service_bus
from local.amqp_broker.processing_queues import declare_processing_queues
from local.azure_apis.entities import EntityCounts as Messages
from local.azurite import Azurite
from local.clock import Clock
from local.demo.hosted_app import hosted_app
from local.demo.system import APP_DIR, shrunk_host_json
from local.functions_host import FunctionsHost, InvocationCounts
from local.twins.datasets import MemoryClaims
from shared.messaging.batch_sender import BatchSender
from shared.settings.connections import ServiceBusConnection
from shared.trends.datasets.flows.process_dataset import LEASE, ClaimStore
from shared.trends.datasets.processing import DatasetWork, processing_message
from shared.values.messages import Message, MessageSender
from shared.wiring.app import App
from shared.wiring.batch_sender import batch_sender
from tests.local.polling import until
from tests.local.test_data_sets import WITHOUT_SCALING

SECONDS_MAX = 60
DAY = datetime(2026, 3, 1, tzinfo=UTC)


def work_on(dataset: str, late: int = 0) -> DatasetWork:
    return DatasetWork(dataset, "2026-03-01", DAY, DAY + timedelta(days=1), late)


@dataclass
class World:
    """The app in its host, with the queues of the processing."""

    app: App
    host: FunctionsHost
    bus: ServiceBusStandIn
    sender: BatchSender
    clock: Clock

    async def send(self, *works: DatasetWork) -> None:
        messages = [processing_message(work, work.message_id, self.clock()) for work in works]
        for message in messages:
            await self.sender.send([message])

    def messages(self, queue: str) -> Messages:
        return self.bus.amqp.namespace.counts(queue, self.clock())

    @property
    def invocations(self) -> InvocationCounts:
        return self.host.counts.get("process_dataset", InvocationCounts())

    async def nothing_is_left(self) -> None:
        """Wait until no message is active, scheduled or dead-lettered."""
        await until(lambda: self.messages("working") == Messages(), SECONDS_MAX)
        assert self.messages("processing") == Messages()


@asynccontextmanager
async def world(azurite: Azurite, clock: Clock, claims: ClaimStore) -> AsyncIterator[World]:
    async with service_bus(clock=clock) as bus:
        declare_processing_queues(bus.amqp.namespace)
        settings = {
            **WITHOUT_SCALING,
            "AzureWebJobsStorage": azurite.connection_string,
            "ServiceBusConnection": bus.connection_string,
            "ProcessingPeriodHours": "24",
            "TelemetryQueue": "waiting-messages",
        }
        sender = batch_sender(
            ServiceBusConnection("Bus", bus.connection_string), "processing", clock
        )
        try:
            host = FunctionsHost(APP_DIR, settings=settings, config=shrunk_host_json())
            async with hosted_app(host) as app:
                app.data_sets.claims = claims
                yield World(app, host, bus, sender, clock)
        finally:
            await sender.close()


async def test_a_message_that_finds_a_valid_claim_is_processed_when_the_claim_expires(
    azurite: Azurite,
) -> None:
    clock = VirtualClock()
    claims = MemoryClaims(clock)
    work, other_period = work_on("sales"), replace(work_on("sales"), label="2026-03-02")
    await claims.take(work, "a message that was dead-lettered")
    async with world(azurite, clock, claims) as there:
        await there.send(work, other_period)
        await until(lambda: there.messages("processing").scheduled == 1, SECONDS_MAX)
        await until(lambda: there.messages("working") == Messages(), SECONDS_MAX)
        assert there.invocations == InvocationCounts(invocations=2, failures=0)
        other = await claims.take(other_period, "somebody else")
        assert other.done_at is not None, "a waiting message does not block its session"

        clock.advance(LEASE - timedelta(minutes=1))
        assert there.messages("processing").scheduled == 1
        clock.advance(timedelta(minutes=1))
        await until(lambda: there.invocations.invocations == 3, SECONDS_MAX)
        await there.nothing_is_left()
        assert there.invocations.failures == 0
    claim = await claims.take(work, "somebody else")
    assert claim.done_at is not None
    assert claim.taken_at == claim.done_at == clock()


class DiesAfterSending:
    """Sends a message and then fails like a process that ends, so the message is not completed."""

    def __init__(self, sender: MessageSender, deaths: int) -> None:
        self._sender, self.deaths = sender, deaths

    async def send(self, messages: Sequence[Message], *order: Any) -> Any:
        result = await self._sender.send(messages, *order)
        self.deaths -= 1
        if self.deaths >= 0:
            raise SystemError("the process ends here")
        return result


async def test_crashes_after_sending_the_replacement_leave_only_one_replacement(
    azurite: Azurite,
) -> None:
    clock = VirtualClock()
    claims = MemoryClaims(clock)
    await claims.take(work_on("sales"), "a message that was dead-lettered")
    async with world(azurite, clock, claims) as there:
        parts = there.app.data_sets
        parts.processing_sender = DiesAfterSending(parts.processing_sender, deaths=3)
        await there.send(work_on("sales"))
        await until(lambda: there.invocations.invocations == 4, SECONDS_MAX)
        await until(lambda: there.messages("working") == Messages(), SECONDS_MAX)
        assert there.invocations.failures == 3
        assert there.messages("processing").scheduled == 1
        clock.advance(LEASE)
        await until(lambda: there.invocations.invocations == 5, SECONDS_MAX)
        await there.nothing_is_left()
        assert there.invocations.failures == 3
    assert (await claims.take(work_on("sales"), "somebody else")).done_at is not None
