"""A partition that cannot be read is retried or given up, and the failure is logged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import pytest

from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryIngestionStore
from shared.ingestion.errors import Fenced, HubSilent, StreamRecreated
from shared.ingestion.model import Checkpoint, Event, Ownership, Stream
from shared.ingestion.ownership.processor import BackgroundTask
from shared.ingestion.ownership.read_partition import (
    REPEAT_SECONDS,
    PartitionReader,
    RepeatedFailures,
)
from tests.builders import NOW

STREAM = Stream("ns", "hub", "$Default", "0")
LEASE = Ownership("0", "me", 1, NOW)
CHECKPOINT = Checkpoint(0, 7, "@7", NOW, 1, "me", "tx")
ATTEMPTS_MAX = 5


class Attempts(Exception):
    """Ends the test after enough attempts."""


class Reading:
    """A reader of one partition whose hub delivers nothing. It is stopped after a number of
    attempts."""

    def __init__(self, *errors: Exception) -> None:
        self.store = MemoryIngestionStore(lambda: NOW)
        self.hub = MemoryHubReader()
        self.errors = list(errors)
        self.reported: list[str] = []
        self.pauses = 0

    async def run(self) -> None:
        async def stream_of(_partition_id: str) -> Stream:
            return STREAM

        reader = PartitionReader(
            stream_of, self.store, self, self.hub, self.process, self.pause, self.tell
        )
        await reader.read(LEASE)

    async def receive(
        self,
        _partition_id: str,
        _after: int | None,
        _epoch: int,
        _deliver: Callable[[Sequence[Event]], Awaitable[None]],
    ) -> None:
        raise self.errors.pop(0) if self.errors else Attempts

    async def process(self, _events: Sequence[Event], _lease: Ownership) -> None:
        raise AssertionError("nothing comes")

    async def pause(self, failures: int) -> None:
        self.pauses = failures
        if failures == ATTEMPTS_MAX:
            raise Attempts

    def tell(self, _lease: Ownership, error: Exception) -> None:
        self.reported.append(type(error).__name__)


async def test_a_recreated_hub_is_reported_and_retried_like_any_failure() -> None:
    reading = Reading()
    reading.store.rows[STREAM].checkpoint = CHECKPOINT
    reading.hub.recreate(STREAM, NOW + timedelta(hours=1))
    with pytest.raises(Attempts):
        await reading.run()
    assert reading.reported == [StreamRecreated.__name__] * ATTEMPTS_MAX
    assert reading.pauses == ATTEMPTS_MAX


class RowsAreDeleted(Reading):
    """An operator deletes the rows of the stream as soon as the failure is reported."""

    def tell(self, _lease: Ownership, _error: Exception) -> None:
        self.store.rows.clear()


async def test_reading_continues_by_itself_once_the_rows_of_a_recreated_hub_are_deleted() -> None:
    reading = RowsAreDeleted(Fenced("the receiver was reached"))
    reading.store.rows[STREAM].checkpoint = CHECKPOINT
    reading.hub.recreate(STREAM, NOW + timedelta(hours=1))
    with pytest.raises(Fenced, match="the receiver was reached"):
        await reading.run()


async def test_a_silent_hub_ends_the_reading_so_that_the_partition_can_be_released() -> None:
    reading = Reading(HubSilent("nothing came"))
    with pytest.raises(HubSilent):
        await reading.run()


async def test_a_background_task_has_an_error_once_it_has_returned_or_cancelled_itself() -> None:
    async def returns() -> None:
        return

    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    for work in (returns(), cancels_itself()):
        task = BackgroundTask(work)
        await task.ended()
        assert task.error is not None
    running = BackgroundTask(asyncio.Event().wait())  # type: ignore[arg-type]
    assert running.error is None
    running.cancel()
    await running.ended()


def test_a_repeated_failure_of_a_partition_is_logged_at_once_and_then_only_now_and_then() -> None:
    failures = RepeatedFailures()
    for partition_id, name, seconds, logged in [
        ("0", "StreamRecreated", 0, True),
        ("0", "StreamRecreated", REPEAT_SECONDS - 1, False),
        ("0", "StreamRecreated", REPEAT_SECONDS, True),
        ("0", "StreamRecreated", REPEAT_SECONDS + 1, False),
        ("1", "StreamRecreated", REPEAT_SECONDS + 1, True),
        ("0", "BreakerOpen", REPEAT_SECONDS + 1, True),
    ]:
        assert failures.should_log(partition_id, name, 100.0 + seconds) is logged
