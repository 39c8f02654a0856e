"""The ends of partitions: events that were not delivered are swept, but not beside a batch that is
at work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from shared.ingestion.breaker.state import BreakerMode
from shared.ingestion.errors import (
    BreakerOpen,
    DependencyDown,
    HubUnavailable,
    OutOfTime,
    StreamRecreated,
)
from shared.ingestion.events import ingest
from shared.ingestion.events.ingest import BEAT_SECONDS
from shared.ingestion.model import Effect, Event, HubState, Stream
from tests.builders import NOW
from tests.ingestion.flows import STREAM, BreakerRig, events


@pytest.fixture
async def rig() -> BreakerRig:
    """Event 0 is accounted for. The hub has events up to 3 that are not delivered."""
    made = BreakerRig()
    await made.ingest(0, 0)
    made.hub.add(STREAM, *events(0, 3))
    return made


async def check(rig: BreakerRig, minutes: int) -> None:
    for _ in range(minutes):
        rig.wait(60)
        await rig.check_tail()


async def test_the_tail_is_not_swept_while_the_breaker_is_isolated(rig: BreakerRig) -> None:
    await rig.isolate()
    await check(rig, 3)
    assert rig.checkpoint == 0


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (HubUnavailable("no answer"), HubUnavailable),
        (HubState(NOW, -1), StreamRecreated),
        (HubState(NOW + timedelta(hours=1), 9), StreamRecreated),
    ],
)
async def test_a_failure_of_one_partition_does_not_stop_the_others(
    rig: BreakerRig,
    monkeypatch: pytest.MonkeyPatch,
    state: HubState | Exception,
    error: type[Exception],
) -> None:
    other = replace(STREAM, partition_id="1")
    await rig.ingest(0, 3, "1")
    rig.hub.add(other, *events(0, 6))
    ask: Callable[[Stream], Awaitable[HubState]] = rig.hub.state

    async def asked(stream: Stream) -> HubState:
        if stream != STREAM:
            return await ask(stream)
        if isinstance(state, Exception):
            raise state
        return state

    monkeypatch.setattr(rig.hub, "state", asked)
    for _ in range(2):
        rig.wait(60)
        with pytest.raises(ExceptionGroup) as raised:
            await rig.check_tail("0", "1")
        assert [type(e) for e in raised.value.exceptions] == [error]
    checkpoint = rig.store.rows[other].checkpoint
    assert (checkpoint.sequence if checkpoint else None) == 6


async def test_the_tail_watch_tells_of_events_in_a_partition_without_a_checkpoint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is delivered there if the state was lost after all events had been read."""
    rig = BreakerRig()
    rig.hub.add(STREAM, *events(0, 3))
    await rig.check_tail()
    assert "[tail_unread]" not in caplog.text
    await check(rig, 10)
    assert "[tail_unread] hub/0: the hub has events up to number 3" in caplog.text
    assert rig.handled == []


# --- batches that are at work -----------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_stream_with_a_running_batch_is_not_swept(
    rig: BreakerRig, monkeypatch: pytest.MonkeyPatch, *, elsewhere: bool
) -> None:
    who = rig.another() if elsewhere else rig
    await who.check_tail()
    handle, checks = rig.handle, 0

    async def handled(event: Event) -> Effect:
        nonlocal checks
        for _ in range(24):  # two minutes
            rig.wait(BEAT_SECONDS)
            assert rig.beat is not None
            await rig.beat()
            if (rig.now - NOW).seconds % 30 == 0:
                checks += 1
                await who.check_tail()
        return await handle(event)

    monkeypatch.setattr(rig, "handle", handled)
    await rig.ingest(1, 3)
    assert (rig.handled, who.handled if elsewhere else []) == ([0, 1, 2, 3], [])
    assert checks == 12


async def test_a_stream_with_a_handler_that_never_waits_is_not_swept_by_its_own_process(
    rig: BreakerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.check_tail()
    handle = rig.handle

    async def handled(event: Event) -> Effect:
        rig.wait(300)  # no heartbeat was possible
        await rig.check_tail()
        return await handle(event)

    monkeypatch.setattr(rig, "handle", handled)
    await rig.ingest(1, 1)
    assert rig.handled == [0, 1]


async def test_failures_in_a_sweep_open_the_breaker_and_stop_the_sweep(rig: BreakerRig) -> None:
    rig.hub.add(STREAM, *events(4, 99))
    rig.bad, rig.seconds_of = set(range(100)), (lambda _: 6.0)
    await rig.check_tail()
    rig.wait(60)
    with pytest.raises(ExceptionGroup) as raised:
        await rig.check_tail()
    assert [type(each) for each in raised.value.exceptions] == [BreakerOpen]
    assert await rig.mode() is BreakerMode.OPEN
    assert 6 <= len(rig.dead) <= 8


async def test_a_sweep_probes_the_breaker_if_no_events_are_delivered(rig: BreakerRig) -> None:
    rig.handle_error = DependencyDown("database")
    for _ in range(6):
        with pytest.raises(DependencyDown):
            await rig.ingest(1, 3)
    assert await rig.mode() is BreakerMode.OPEN
    rig.handle_error = None
    await check(rig, 10)
    assert (await rig.mode(), rig.checkpoint) == (BreakerMode.CLOSED, 3)


async def test_a_sweep_that_runs_out_of_time_is_continued_later(rig: BreakerRig) -> None:
    rig.hub.add(STREAM, *events(4, 98))
    rig.seconds_of = lambda _: 4.0
    line = rig.new_line(seconds_max=240)
    with pytest.raises(OutOfTime):
        await ingest.ingest_undelivered(line, None)
    assert rig.checkpoint == 60
    await ingest.ingest_undelivered(line, None)
    assert rig.checkpoint == 98
