"""What operators see of a hub that was deleted or recreated, and of partitions nobody reads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryBreakerStore, MemoryIngestionStore
from shared.ingestion.breaker.state import BreakerTimes
from shared.ingestion.errors import HubMissing, HubUnavailable, RowUnreadable
from shared.ingestion.model import HubState, Stream
from shared.ingestion.operating import breaker_controller
from shared.ingestion.operating.breaker_controller import Backlog, BreakerController
from shared.ingestion.operating.event_news import of_hub
from shared.ingestion.store.events import StoredCheckpoint
from shared.notifications.ports import Observed
from tests.builders import NOW
from tests.ingestion.commits import commit

HOUR = timedelta(hours=1)
MADE = NOW - 9 * HOUR
OLD, JUST_NOW = NOW - HOUR, NOW - timedelta(minutes=1)
RECREATED = "the hub was deleted and created again: the hub"


class Hub(MemoryHubReader):
    """A hub with partition 0, whose state is given."""

    def __init__(self, state: HubState | Exception, missing: Exception | None = None) -> None:
        super().__init__()
        self.given, self.missing = state, missing

    async def partition_ids(self) -> tuple[str, ...]:
        if self.missing:
            raise self.missing
        return ("0",)

    async def state(self, stream: Stream) -> HubState:  # noqa: ARG002
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


class Unreadable(MemoryIngestionStore):
    async def load(self, stream: Stream) -> StoredCheckpoint:
        raise RowUnreadable(f"{stream.key}: sequence is 'x'")


def stream_of(partition_id: str) -> Stream:
    return Stream("ns", "hub", "$Default", partition_id)


async def backlogs(
    hub: Hub,
    last: int | None = None,
    store: MemoryIngestionStore | None = None,
) -> Sequence[Backlog]:
    store = store or MemoryIngestionStore(lambda: NOW)
    if last is not None:
        stream = stream_of("0")
        await store.commit(stream, await store.load(stream), commit(None, last))
    controller = BreakerController(
        "b",
        "here",
        MemoryBreakerStore(lambda: NOW),
        store,
        hub,
        stream_of,
        [],
        HOUR,
        "",
        BreakerTimes(),
    )
    return (await controller.view()).backlog


def reported(found: Sequence[Backlog]) -> Observed:
    return of_hub("hub", "$Default", found)


def at(last: int, newest_at: datetime | None = None, made: datetime = MADE) -> HubState:
    return HubState(made, last, newest_at)


@pytest.mark.parametrize(
    ("last", "hub", "remark"),
    [
        (9, Hub(at(4)), f"{RECREATED}'s last event is 4, but the checkpoint is at event 9"),
        (9, Hub(at(-1)), f"{RECREATED}'s last event is -1"),
        (9, Hub(at(20, NOW, NOW + HOUR)), f"{RECREATED} was created at"),
        (None, Hub(at(4, OLD)), "the hub has events up to number 4, the newest from"),
        (9, Hub(HubMissing("hub/0: 404")), "hub/0: 404"),
        (9, Hub(at(9), HubMissing("hub/partitions: 404")), "HubMissing: hub/partitions: 404"),
    ],
)
async def test_a_partition_that_waits_for_an_operator_is_reported(
    last: int | None, hub: Hub, remark: str
) -> None:
    (backlog,) = found = await backlogs(hub, last)
    assert (backlog.events, backlog.is_held) == (None, True)
    assert backlog.remark.startswith(remark)
    (condition,) = reported(found).conditions
    assert (condition.kind, condition.subject) == ("hub.held", "hub/$Default")
    assert remark in condition.meaning
    place = "all partitions" if hub.missing else "partition 0"
    assert condition.what == f"hub: {place} cannot be processed"


@pytest.mark.parametrize(
    ("last", "hub", "events", "was_read"),
    [
        (9, Hub(at(9, OLD)), 0, True),
        (9, Hub(at(12, OLD)), 3, True),
        (None, Hub(at(4, JUST_NOW)), None, True),
        (None, Hub(at(4)), None, True),  # all events have expired
        (9, Hub(HubUnavailable("no answer")), None, False),
        (9, Hub(at(9), HubUnavailable("no answer")), None, False),
    ],
)
async def test_a_backlog_or_an_outage_is_not_reported_as_a_changed_hub(
    last: int | None, hub: Hub, events: int | None, was_read: bool
) -> None:
    (backlog,) = found = await backlogs(hub, last)
    assert (backlog.events, backlog.is_held) == (events, False)
    observed = reported(found)
    assert observed.conditions == ()
    assert list(observed.unread) == ([] if was_read else ["hub/$Default"]), (
        "a condition that was reported does not end while the partition cannot be read"
    )


async def test_a_checkpoint_that_cannot_be_read_hides_no_other_partition() -> None:
    (backlog,) = await backlogs(Hub(at(9)), store=Unreadable(lambda: NOW))
    assert backlog == Backlog("0", None, "ns|hub|$Default|0: sequence is 'x'", is_held=True)


class Slow(Hub):
    """A hub that never answers for one partition, or says nothing at all."""

    async def partition_ids(self) -> tuple[str, ...]:
        return ("0", "1", "2") if self.given == at(9) else await self._never()

    async def state(self, stream: Stream) -> HubState:
        return await self._never() if stream.partition_id == "1" else at(9)

    async def _never(self) -> Any:
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("hub", "waiting"),
    [(Slow(at(9)), {"0": 0, "1": None, "2": None}), (Slow(at(1)), {"all": None})],
)
async def test_what_does_not_answer_in_time_hides_no_other_partition_and_is_no_held_one(
    hub: Hub, waiting: dict[str, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker_controller, "SECONDS_MAX", 0.05)
    found = await backlogs(hub, 9)
    assert {each.partition_id: each.events for each in found} == waiting
    silent = [each for each in found if each.remark == breaker_controller.LATE]
    assert [each.partition_id for each in silent] == [p for p in waiting if p in ("1", "all")]
    observed = reported(found)
    assert observed.conditions == ()
    assert list(observed.unread) == ["hub/$Default"]


async def test_one_notification_tells_of_all_partitions_of_a_hub() -> None:
    found = [Backlog(str(n), None, f"recreated {n}", is_held=n > 0) for n in range(32)]
    (condition,) = reported(found).conditions
    assert condition.what == "hub: 31 of 32 partitions cannot be processed"
    assert condition.meaning.count("recreated") == 5
