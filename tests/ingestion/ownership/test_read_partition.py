"""A partition that cannot be read is retried or given up, and the failure is logged."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryIngestionStore
from shared.ingestion.errors import Fenced, HubSilent, StreamRecreated
from shared.ingestion.model import Checkpoint, Ownership, Stream
from shared.ingestion.ownership.processor import BackgroundTask
from shared.ingestion.ownership.read_partition import (
    REPEAT_SECONDS,
    PartitionReader,
    RepeatedFailures,
)
from tests.builders import NOW

STREAM = Stream("ns", "hub", "$Default", "0")
LEASE = Ownership("0", "me", 1)
CHECKPOINT = Checkpoint(0, 7, "@7", NOW, 1, "me", "tx")
ATTEMPTS_MAX = 5


class Attempts(Exception):
    """Ends the test after enough attempts."""


class Reading:
    """A reader of one partition whose hub was recreated after the checkpoint, and delivers nothing.
    It is stopped after a number of attempts, or ends with the error of the receiver."""

    def __init__(self, error: Exception, *, deletes_rows: bool = False) -> None:
        self.store, self.hub = MemoryIngestionStore(lambda: NOW), MemoryHubReader()
        self.store.rows[STREAM].checkpoint = CHECKPOINT
        self.hub.recreate(STREAM, NOW + timedelta(hours=1))
        self.error, self.deletes_rows = error, deletes_rows
        self.reported: list[str] = []
        self.pauses = 0

    async def run(self) -> None:
        reader = PartitionReader(
            self.stream_of, self.store, self, self.hub, self.process, self.pause, self.tell
        )
        await reader.read(LEASE)

    def stream_of(self, _partition_id: str) -> Stream:
        return STREAM

    async def receive(self, *_arguments: object) -> None:
        raise self.error

    async def process(self, *_arguments: object) -> None:
        raise AssertionError("nothing comes")

    async def pause(self, failures: int) -> None:
        self.pauses = failures
        if failures == ATTEMPTS_MAX:
            raise Attempts

    def tell(self, _lease: Ownership, error: Exception) -> None:
        self.reported.append(type(error).__name__)
        if self.deletes_rows:
            self.store.rows.clear()


async def test_a_recreated_hub_is_reported_and_retried_like_any_failure() -> None:
    reading = Reading(HubSilent("nothing came"))
    with pytest.raises(Attempts):
        await reading.run()
    assert reading.reported == [StreamRecreated.__name__] * ATTEMPTS_MAX
    assert reading.pauses == ATTEMPTS_MAX


@pytest.mark.parametrize("error", [Fenced("taken"), HubSilent("nothing came")])
async def test_reading_continues_once_an_operator_has_deleted_the_rows_of_a_recreated_hub(
    error: Exception,
) -> None:
    """It ends if another reader has the partition, or if the hub is silent, so that the partition
    can be released."""
    reading = Reading(error, deletes_rows=True)
    with pytest.raises(type(error)):
        await reading.run()
    assert reading.reported == [StreamRecreated.__name__]


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
