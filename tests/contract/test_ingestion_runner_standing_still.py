"""`run` logs why a partition is not read, and still processes its events where it can."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from shared.ingestion.errors import HubUnavailable
from shared.ingestion.events import tail
from shared.ingestion.events.ingest import PartitionPipeline
from shared.ingestion.events.tail import TailWatch
from shared.ingestion.hub.receiver import EventHubReceiver
from shared.ingestion.model import Event
from shared.ingestion.store.sql_schema import effects
from shared.values.concurrency import task_runner
from shared.wiring.app import App
from shared.wiring.runner import Runner
from tests.contract import test_ingestion_runner
from tests.contract.test_ingestion_runner import NO_STORAGE
from tests.emulators.rig import Hub, an_empty_hub
from tests.local.polling import POLL_SECONDS, until
from tests.settings.test_settings import SINGLE

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SECONDS_MAX = 40.0


@dataclass
class World:
    """A hub of one partition, and the settings of an app that reads it."""

    hub: Hub
    environ: dict[str, str]

    @asynccontextmanager
    async def running(self, tail_seconds: float = 60, **parts: Any) -> AsyncIterator[App]:
        """Run the app's processors, with these parts instead of its own."""
        async with App(self.environ) as app:
            for name, part in parts.items():
                setattr(app.ingestion, name, part)
            stopping = asyncio.Event()
            task = asyncio.create_task(Runner(app, tail_seconds).run(stopping))
            try:
                yield app
            finally:
                stopping.set()
                await task


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with an_empty_hub() as hub:
        environ = {
            **SINGLE,
            **hub.settings,
            "AzureWebJobsStorage": NO_STORAGE,
            "IngestionDatabaseUrl": f"sqlite:///{tmp_path}/ingestion.db",
            "IngestionHandler": f"{test_ingestion_runner.__name__}:handler_of",
            "BalancingSeconds": "0.5",
            "OwnershipRenewSeconds": "2",
            "OwnershipExpireSeconds": "6",
        }
        monkeypatch.setattr(tail, "IDLE", timedelta(seconds=0.5))
        yield World(hub, environ)


async def taken_in(app: App, *bodies: str) -> None:
    query = select(effects.c.value).order_by(effects.c.sequence)
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            values = await app.ingestion.database.read(lambda c: c.execute(query).scalars().all())
            if list(values) == list(bodies):
                return
            await asyncio.sleep(POLL_SECONDS)


async def test_a_mistyped_consumer_group_is_logged_and_its_partitions_are_released(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world.environ["EventHubConsumerGroup"] = "mistyped"
    connection = App(world.environ).ingestion.connection
    impatient = EventHubReceiver(connection, "mistyped", silent_seconds_max=2)
    async with world.running(receiver=impatient):
        given_up = "[partition_given_up] 0 under epoch 1: HubSilent"
        await until(lambda: given_up in caplog.text, SECONDS_MAX)
        assert f"consumer group 'mistyped' of hub '{connection.hub}'" in caplog.text
        await until(lambda: "[partition_taken] 0 under epoch 2" in caplog.text, SECONDS_MAX)


class DeafReceiver:
    """A receiver that is attached but never delivers an event."""

    async def receive(
        self,
        _partition_id: str,
        _after: int | None,
        _epoch: int,
        _deliver: Callable[[Sequence[Event]], Awaitable[None]],
    ) -> None:
        await asyncio.Event().wait()


async def test_events_that_the_receiver_does_not_deliver_are_read_by_the_tail_watch(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.running() as app:
        await world.hub.send("first")
        await taken_in(app, "first")
    async with world.running(tail_seconds=0.5, receiver=DeafReceiver()) as app:
        await world.hub.send("second")
        await taken_in(app, "first", "second")
    assert (
        f"[tail_found] {world.hub.connection.hub}/0: no event was delivered after event 0"
        in caplog.text
    )


class FailsAtFirst(TailWatch):
    """A tail watch whose first run fails."""

    failed = False

    async def check_partitions(
        self,
        partition_ids: Sequence[str],
        pipeline_of: Callable[[str], Awaitable[PartitionPipeline]],
    ) -> None:
        if not self.failed:
            self.failed = True
            raise ExceptionGroup("tails", [HubUnavailable("no answer")])
        await super().check_partitions(partition_ids, pipeline_of)


async def test_the_tail_watch_continues_after_a_failure(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.running() as app:
        await world.hub.send("first")
        await taken_in(app, "first")
    watch = FailsAtFirst(task_runner(1))
    async with world.running(0.5, tail_watch=watch, receiver=DeafReceiver()) as app:
        await world.hub.send("second")
        await taken_in(app, "first", "second")
    assert "[tails_failed] ExceptionGroup: tails (1 sub-exception)" in caplog.text
