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
from tests.ingestion.test_processor import Rig

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


@pytest.mark.parametrize("error", [HubSilent("nothing came"), StreamRecreated("made anew")])
async def test_a_partition_whose_reading_has_ended_is_reported_and_released(
    error: Exception,
) -> None:
    rig, released = Rig(), list[tuple[str, BaseException]]()
    rig.processor.on_release = lambda lease, why: released.append((lease.partition_id, why))
    await rig.processor.cycle()
    rig.started[0].error = error
    await rig.processor.cycle()
    assert rig.going_on == []
    assert released == [("0", error)]
    (row,) = (await rig.owners.owners()).rows
    assert (row.owner, row.epoch) == ("", 1)
    await rig.processor.cycle()
    assert rig.going_on == [("0", 2)], "the next claim starts a new epoch"


async def ended(reading: BackgroundTask) -> BaseException | None:
    await reading.ended()
    return reading.error


async def test_a_background_task_that_returns_or_cancels_itself_has_an_error() -> None:
    async def returns() -> None:
        return

    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    assert await ended(BackgroundTask(returns())) is not None
    assert await ended(BackgroundTask(cancels_itself())) is not None


async def test_a_running_background_task_has_no_error() -> None:
    reading = BackgroundTask(asyncio.Event().wait())  # type: ignore[arg-type]
    assert reading.error is None
    reading.cancel()
    await reading.ended()


def test_a_repeated_failure_is_logged_at_once_and_then_only_now_and_then() -> None:
    failures = RepeatedFailures()
    assert failures.should_log("0", "StreamRecreated", 100.0)
    assert not failures.should_log("0", "StreamRecreated", 100.0 + REPEAT_SECONDS - 1)
    assert failures.should_log("0", "StreamRecreated", 100.0 + REPEAT_SECONDS)
    assert not failures.should_log("0", "StreamRecreated", 101.0 + REPEAT_SECONDS)


def test_another_failure_or_another_partition_is_logged_at_once() -> None:
    failures = RepeatedFailures()
    assert failures.should_log("0", "StreamRecreated", 100.0)
    assert failures.should_log("1", "StreamRecreated", 100.0)
    assert failures.should_log("0", "BreakerOpen", 100.0)
