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

from shared.ingestion.errors import HubUnavailable
from shared.ingestion.events import tail
from shared.ingestion.events.ingest import PartitionPipeline
from shared.ingestion.events.tail import TailWatch
from shared.ingestion.hub.receiver import EventHubReceiver
from shared.ingestion.model import Event
from shared.values.concurrency import task_runner
from shared.wiring.app import App
from shared.wiring.runner import Runner
from tests.emulators.rig import Hub, an_empty_hub
from tests.ingestion.test_runner import SECONDS_MAX, environ, taken_in
from tests.local.polling import until

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


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
        balancing = {
            "BalancingSeconds": "0.5",
            "OwnershipRenewSeconds": "2",
            "OwnershipExpireSeconds": "6",
        }
        monkeypatch.setattr(tail, "IDLE", timedelta(seconds=0.5))
        yield World(hub, environ(hub, tmp_path) | balancing)


async def test_a_mistyped_consumer_group_is_logged_and_its_partitions_are_released(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world.environ["EventHubConsumerGroup"] = "mistyped"
    connection = App(world.environ).ingestion.connection
    impatient = EventHubReceiver(connection, "mistyped", silent_seconds_max=1)
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


class FailsAtFirst(TailWatch):
    """A tail watch whose first run fails."""

    failed = False

    async def check_partitions(
        self,
        partition_ids: Sequence[str],
        pipeline_of: Callable[[str], PartitionPipeline],
    ) -> None:
        if not self.failed:
            self.failed = True
            raise ExceptionGroup("tails", [HubUnavailable("no answer")])
        await super().check_partitions(partition_ids, pipeline_of)


async def test_the_tail_watch_reads_what_is_not_delivered_and_continues_after_a_failure(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.running() as app:
        await world.hub.send("first")
        await taken_in(app, ["first"])
    watch = FailsAtFirst(task_runner(1))
    async with world.running(0.5, tail_watch=watch, receiver=DeafReceiver()) as app:
        await world.hub.send("second")
        await taken_in(app, ["first", "second"])
    assert "[tails_failed] ExceptionGroup: tails (1 sub-exception)" in caplog.text
    found = f"[tail_found] {world.hub.connection.hub}/0: no event was delivered after event 0"
    assert found in caplog.text
