"""`run` says why a partition is not read, and takes in its events all the same where it can."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache, partial
from pathlib import Path

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient
from sqlalchemy import select

from local.amqp_broker import AmqpStandIn
from local.amqp_broker.model.properties import HubProperties
from shared.adapters.event_hubs.receiver import EventHubReceiver
from shared.adapters.sql.schema import effects
from shared.ingestion.concurrency import task_runner
from shared.ingestion.errors import HubUnavailable
from shared.ingestion.events import tail
from shared.ingestion.events.ingest import PartitionPipeline
from shared.ingestion.events.tail import TailWatch
from shared.ingestion.model import Event
from shared.wiring import autoscaling as wiring
from shared.wiring import checks as wiring_checks
from shared.wiring import ingestion as wiring_ingestion
from shared.wiring import ingestion_state as state
from shared.wiring import runner as wiring_runner
from shared.wiring.runner import Runner
from tests.contract import test_ingestion_runner
from tests.contract.test_ingestion_runner import NO_STORAGE
from tests.local.polling import POLL_SECONDS, until
from tests.settings.test_settings import SINGLE

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SECONDS_MAX = 40.0


@pytest.fixture
async def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AmqpStandIn]:
    """A hub of one partition, and the settings of an app that reads it."""
    async with AmqpStandIn() as stand_in:
        groups = HubProperties(partition_count=1, consumer_groups=("$Default", "readback"))
        stand_in.broker.declare_hub("metrics", groups)
        environ = {
            **SINGLE,
            "AzureWebJobsStorage": NO_STORAGE,
            "EventHubConnection": stand_in.connection_string,
            "ServiceBusConnection": stand_in.connection_string,
            "IngestionDatabaseUrl": f"sqlite:///{tmp_path}/ingestion.db",
            "IngestionHandler": f"{test_ingestion_runner.__name__}:handler_of",
            "BalancingSeconds": "0.5",
            "OwnershipRenewSeconds": "2",
            "OwnershipExpireSeconds": "6",
        }
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(tail, "IDLE", timedelta(seconds=0.5))
        wiring_checks.checked.cache_clear()
        yield stand_in
    await wiring.close()


@asynccontextmanager
async def running(tail_seconds: float = 60) -> AsyncIterator[Runner]:
    runner, stopping = Runner(tail_seconds), asyncio.Event()
    task = asyncio.create_task(runner.run(stopping))
    try:
        yield runner
    finally:
        stopping.set()
        await task


async def send(stand_in: AmqpStandIn, body: str) -> None:
    producer = EventHubProducerClient.from_connection_string(
        stand_in.connection_string, eventhub_name="metrics"
    )
    async with producer:
        await producer.send_event(EventData(body))


async def taken_in(*bodies: str) -> None:
    query = select(effects.c.value).order_by(effects.c.sequence)
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            values = await state.database().read(lambda c: c.execute(query).scalars().all())
            if list(values) == list(bodies):
                return
            await asyncio.sleep(POLL_SECONDS)


async def test_a_mistyped_consumer_group_is_logged_and_its_partitions_are_given_up(
    stand_in: AmqpStandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("EventHubConsumerGroup", "mistyped")
    impatient = partial(EventHubReceiver, silent_seconds_max=2)
    monkeypatch.setattr(wiring_runner, "EventHubReceiver", impatient)
    async with running():
        given_up = "[partition_given_up] 0 under epoch 1: HubSilent"
        await until(lambda: given_up in caplog.text, SECONDS_MAX)
        assert "consumer group 'mistyped' of hub 'metrics'" in caplog.text
        await until(lambda: "[partition_taken] 0 under epoch 2" in caplog.text, SECONDS_MAX)


class DeafReceiver:
    """Is attached and hears nothing."""

    def __init__(self, *_arguments: object) -> None:
        pass

    async def receive(
        self,
        _partition_id: str,
        _after: int | None,
        _epoch: int,
        _deliver: Callable[[Sequence[Event]], Awaitable[None]],
    ) -> None:
        await asyncio.Event().wait()


async def test_what_the_receiver_does_not_deliver_is_found_by_the_tail_watch(
    stand_in: AmqpStandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running():
        await send(stand_in, "first")
        await taken_in("first")
    monkeypatch.setattr(wiring_runner, "EventHubReceiver", DeafReceiver)
    async with running(tail_seconds=0.5):
        await send(stand_in, "second")
        await taken_in("first", "second")
    assert "[tail_found] metrics/0: nothing delivered after 0" in caplog.text


class FailsAtFirst(TailWatch):
    """A tail watch whose first look fails."""

    failed = False

    async def run(
        self, partition_ids: Sequence[str], pipeline_of: Callable[[str], PartitionPipeline]
    ) -> None:
        if not self.failed:
            self.failed = True
            raise ExceptionGroup("tails", [HubUnavailable("no answer")])
        await super().run(partition_ids, pipeline_of)


async def test_the_tail_watch_goes_on_after_a_failure(
    stand_in: AmqpStandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running():
        await send(stand_in, "first")
        await taken_in("first")
    watch = FailsAtFirst(task_runner(1))
    monkeypatch.setattr(wiring_ingestion, "tail_watch", cache(lambda: watch))
    monkeypatch.setattr(wiring_runner, "EventHubReceiver", DeafReceiver)
    async with running(tail_seconds=0.5):
        await send(stand_in, "second")
        await taken_in("first", "second")
    assert "[tails_failed] ExceptionGroup: tails (1 sub-exception)" in caplog.text
