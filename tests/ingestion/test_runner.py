"""Processors that run without the Functions trigger, with a database and without Table Storage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import select

from shared.ingestion.breaker.state import Breaker, BreakerMode
from shared.ingestion.model import Effect, Event, Stream
from shared.ingestion.ownership.processor import run_processor
from shared.ingestion.ports import Handler
from shared.ingestion.store.sql_schema import effects
from shared.wiring.app import App
from shared.wiring.runner import Runner
from tests.emulators.rig import Hub, an_empty_hub
from tests.local.polling import POLL_SECONDS, until
from tests.settings.test_settings import SINGLE

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PARTITIONS, SECONDS_MAX = 2, 40.0
NO_STORAGE = (
    "DefaultEndpointsProtocol=http;AccountName=gone;AccountKey=a2V5;"
    "QueueEndpoint=http://127.0.0.1:1/gone;TableEndpoint=http://127.0.0.1:1/gone"
)


def handler_of(_stream: Stream) -> Handler:
    async def handle(event: Event) -> Effect:
        return Effect(event.sequence, event.body.decode())

    return handle


async def values(app: App) -> list[str]:
    query = select(effects.c.value).order_by(effects.c.partition_id, effects.c.sequence)
    return list(await app.ingestion.database.read(lambda c: c.execute(query).scalars().all()))


async def taken_in(app: App, bodies: Sequence[str]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while await values(app) != list(bodies):  # noqa: ASYNC110  a database has no events
            await asyncio.sleep(POLL_SECONDS)


@dataclass
class Fleet:
    app: App
    hub: Hub
    sent: int = 0
    running: list[tuple[Runner, asyncio.Event, asyncio.Task[None]]] = field(default_factory=list)

    def start(self) -> Runner:
        runner, stopping = Runner(self.app), asyncio.Event()
        task = asyncio.create_task(run_processor(runner.processor, stopping, 0.2))
        self.running.append((runner, stopping, task))
        return runner

    async def stop(self) -> None:
        """Stop the processor that was started first."""
        _runner, stopping, task = self.running.pop(0)
        stopping.set()
        await task

    async def send(self) -> None:
        """Send one event to each partition."""
        for partition in range(PARTITIONS):
            await self.hub.send(f"{partition}.{self.sent}", partition=str(partition))
        self.sent += 1

    async def epochs(self) -> dict[str, int]:
        """The epoch of each partition's owner."""
        return {
            row.partition_id: row.epoch for row in (await self.app.ingestion.owners.owners()).rows
        }

    async def all_accounted_for(self) -> None:
        expected = [f"{p}.{n}" for p in range(PARTITIONS) for n in range(self.sent)]
        await taken_in(self.app, expected)


def environ(hub: Hub, folder: Path) -> dict[str, str]:
    """The settings of an app that reads the hub and has a database and no storage."""
    return {
        **SINGLE,
        **hub.settings,
        "AzureWebJobsStorage": NO_STORAGE,
        "IngestionDatabaseUrl": f"sqlite:///{folder}/ingestion.db",
        "IngestionHandler": f"{__name__}:handler_of",
    }


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with an_empty_hub(PARTITIONS) as hub, App(environ(hub, tmp_path)) as app:
        fleet = Fleet(app, hub)
        yield fleet
        while fleet.running:
            await fleet.stop()


async def test_processors_share_a_hub_and_a_breaker_through_a_database_alone(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    early, late = fleet.start(), fleet.start()
    await fleet.send()
    await fleet.all_accounted_for()
    await until(lambda: len(early.processor.held) == len(late.processor.held) == 1, SECONDS_MAX)
    (changes_hands,) = early.processor.held
    before = await fleet.epochs()
    await fleet.stop()
    await until(lambda: len(late.processor.held) == PARTITIONS, SECONDS_MAX)
    after = await fleet.epochs()
    newer = {partition for partition, epoch in after.items() if epoch > before[partition]}
    assert newer == {changes_hands}, "only the partition with a new owner has a new epoch"

    breakers = fleet.app.ingestion.breaker_store
    isolated = await breakers.replace(await breakers.load(), Breaker(BreakerMode.ISOLATED, epoch=1))
    await fleet.send()
    await until(lambda: "is held: the breaker is" in caplog.text, SECONDS_MAX)
    assert len(await values(fleet.app)) == PARTITIONS
    await breakers.replace(isolated, Breaker(BreakerMode.CLOSED, epoch=1))
    await fleet.all_accounted_for()
