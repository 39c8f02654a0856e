"""A partition's pipeline behind the breaker: admitting, holding, counting, sending, and batches
that take long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import pytest

from shared.ingestion.breaker.failure_window import Tally, TripRule
from shared.ingestion.breaker.state import BreakerMode
from shared.ingestion.errors import (
    BadEvent,
    BreakerOpen,
    DependencyDown,
    Fenced,
    OutOfTime,
    StoreUnavailable,
    StreamRecreated,
)
from shared.ingestion.events import ingest
from shared.ingestion.model import Effect, Event
from shared.notifications.ports import NotSent
from shared.values.concurrency import heartbeat_every
from tests.builders import NOW
from tests.ingestion.flows import STREAM, BreakerRig, events

T = TypeVar("T")
OPEN, CLOSED = BreakerMode.OPEN, BreakerMode.CLOSED


@pytest.fixture
def rig() -> BreakerRig:
    return BreakerRig()


async def fail(rig: BreakerRig, first: int, last: int, times: int = 6) -> None:
    rig.handle_error = DependencyDown("database")
    for _ in range(times):
        with pytest.raises(DependencyDown):
            await rig.ingest(first, last)


@pytest.fixture
async def tripped(rig: BreakerRig) -> BreakerRig:
    """The events up to 9 are accounted for, and the breaker is open because of event 10."""
    await rig.ingest(0, 9)
    rig.wait(60)
    await fail(rig, 10, 11)
    assert await rig.mode() is OPEN
    rig.handled.clear()
    rig.handle_error = None
    return rig


async def test_a_healthy_batch_makes_only_the_necessary_store_calls(rig: BreakerRig) -> None:
    """The batch waits for the round trip of each call."""
    asked: list[str] = []

    def counted(name: str, call: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        async def wrapped(*arguments: object) -> T:
            asked.append(name)
            return await call(*arguments)

        return wrapped

    for store in (rig.store, rig.breakers):
        for name in ("load", "commit", "outbox", "sent", "replace", "put_tally", "tallies"):
            if hasattr(store, name):
                setattr(store, name, counted(name, getattr(store, name)))
    await rig.ingest(0, 9)
    assert asked == ["load", "commit", "load", "commit", "outbox", "sent"], "the beginning first"
    asked.clear()
    rig.quiet = True
    await rig.ingest(10, 19)
    assert asked == ["load", "commit"], "nothing to send"
    asked.clear()
    rig.wait(10)
    await rig.ingest(20, 29)
    assert asked == ["load", "commit", "put_tally", "put_tally", "load", "tallies"]


async def test_a_dependency_that_is_down_holds_the_partition_until_it_recovers(
    rig: BreakerRig,
) -> None:
    await fail(rig, 0, 9, times=5)
    assert await rig.mode() is CLOSED
    await fail(rig, 0, 9, times=1)
    assert (await rig.mode(), rig.announced, rig.checkpoint) == (OPEN, [1], -1)
    calls = len(rig.handled)
    with pytest.raises(BreakerOpen, match="hub/0 is held: the breaker is open: 6 failures"):
        await rig.ingest(0, 9)
    assert len(rig.handled) == calls, "no event is handled while the breaker is open"
    rig.handle_error = None
    rig.wait(30)
    await rig.ingest(0, 9)
    assert (await rig.mode(), rig.checkpoint, rig.sent[-1]) == (CLOSED, 9, "hub:0:9")
    assert rig.handled[calls:] == list(range(10)), "a probe with a few events, then the others"


@pytest.mark.parametrize(
    ("bad", "mode", "dead"), [({10, 11, 12}, OPEN, [10, 11]), ({10}, CLOSED, [10])]
)
async def test_a_probe_handles_a_few_events_and_fails_only_if_none_of_them_succeeds(
    tripped: BreakerRig, bad: set[int], mode: BreakerMode, dead: list[int]
) -> None:
    tripped.wait(30)
    tripped.bad = bad
    if mode is OPEN:
        with pytest.raises(BreakerOpen):
            await tripped.ingest(10, 19)
    else:
        await tripped.ingest(10, 19)
    assert (await tripped.mode(), tripped.dead) == (mode, dead)
    assert tripped.checkpoint == (11 if mode is OPEN else 19)


async def test_redelivered_events_are_neither_held_nor_used_as_a_probe(
    tripped: BreakerRig,
) -> None:
    await tripped.ingest(0, 9)
    with pytest.raises(BreakerOpen):
        await tripped.ingest(0, 10)
    tripped.wait(60)
    await tripped.ingest(0, 9)
    assert (await tripped.mode(), tripped.handled) == (OPEN, [])
    for last, mode in ((10, BreakerMode.HALF_OPEN), (10, BreakerMode.HALF_OPEN), (14, CLOSED)):
        await tripped.ingest(0, last)
        assert (await tripped.mode(), tripped.checkpoint) == (mode, last)
    assert tripped.handled == [10, 11, 12, 13, 14]


async def test_a_partition_without_new_events_leaves_the_probe_to_others(
    tripped: BreakerRig,
) -> None:
    tripped.wait(60)
    await tripped.ingest(10, 10)
    for _ in range(6):
        await tripped.ingest(0, 10)
        tripped.wait(10)
    await tripped.ingest(0, 0, "1")
    assert await tripped.mode() is CLOSED


async def test_a_recreated_hub_is_reported_although_the_breaker_is_open(
    tripped: BreakerRig,
) -> None:
    reborn = [replace(each, enqueued_at=NOW + timedelta(hours=9)) for each in events(0, 3)]
    with pytest.raises(StreamRecreated):
        await ingest.ingest_batch(reborn, tripped.line())


async def test_bad_events_can_be_excluded_from_the_failures(rig: BreakerRig) -> None:
    rig.breaker.rule = TripRule(failures_max=5, counts_bad_events=False)
    rig.bad = set(range(30))
    await rig.ingest(0, 39)
    rig.wait(20)
    await rig.ingest(40, 49)
    assert (await rig.mode(), rig.dead) == (CLOSED, list(range(30)))
    rig.handle_error = ValueError("unknown failure")
    with pytest.raises(ValueError, match="unknown failure"):
        await rig.ingest(50, 56)
    assert await rig.mode() is OPEN, "errors other than BadEvent count"


async def test_events_that_are_set_aside_neither_open_the_breaker_nor_keep_it_closed(
    rig: BreakerRig,
) -> None:
    rig.breaker.rule = TripRule(failures_max=None, throughput_min=2)
    rig.foreign = set(range(30))
    await rig.ingest(0, 25)
    stored = rig.store.rows[STREAM]
    assert (stored.checkpoint.set_aside if stored.checkpoint else None) == 26
    assert (stored.dead_letters, stored.outbox, await rig.mode()) == ({}, {}, CLOSED)
    rig.bad = {30, 31, 32}
    await rig.ingest(26, 32)
    assert await rig.mode() is OPEN, "all events that were tried have failed"


async def test_the_tallies_of_batches_that_end_together_are_all_written(rig: BreakerRig) -> None:
    """If an older tally were written last, newer failures would be lost."""
    put, first = rig.breakers.put_tally, asyncio.Event()

    async def slow(tally: Tally) -> None:
        if not first.is_set():
            first.set()
            for _ in range(100):
                await asyncio.sleep(0)
        await put(tally)

    rig.breakers.put_tally = slow  # type: ignore[method-assign]
    rig.handle_error = BadEvent("nonsense")
    await asyncio.gather(rig.ingest(0, 1, "0"), rig.ingest(0, 1, "1"))
    assert (await rig.tallies(), rig.breaker.unwritten) == ([(0, 0, 4)], {})


async def test_too_many_slow_calls_open_the_breaker(rig: BreakerRig) -> None:
    rig.breaker.rule = TripRule(slow_ratio_max=0.5, slow_seconds=2, throughput_min=4)
    rig.seconds_of = lambda _: 3
    await rig.ingest(0, 3)
    breaker = (await rig.breakers.load()).breaker
    assert breaker.reason == "4 of 4 calls were slow in 30 s, more than 50%"


async def test_failures_of_a_quiet_hub_add_up_until_they_are_enough_calls(rig: BreakerRig) -> None:
    """The calls of 30 s would never be enough."""
    rig.breaker.rule, rig.bad = TripRule(failures_max=None, throughput_min=4), set(range(9))
    modes = []
    for sequence in range(4):
        await rig.ingest(sequence, sequence)
        modes.append(await rig.mode())
        rig.wait(120)
    assert modes == [CLOSED] * 3 + [OPEN]


async def test_an_unreachable_queue_holds_the_partition_and_loses_no_message(
    rig: BreakerRig,
) -> None:
    rig.send_error = DependencyDown("queue metrics")
    for _ in range(6):
        with pytest.raises(DependencyDown):
            await rig.ingest(0, 3)
    assert (rig.checkpoint, await rig.mode()) == (3, OPEN)
    assert rig.handled == [0, 1, 2, 3], "committed events are not handled again"
    (tally,) = await rig.breakers.tallies(NOW)
    assert tally.last_error == "DependencyDown: queue metrics"
    rig.send_error = None
    rig.hub.add(STREAM, *events(0, 3))
    await rig.check_tail()
    assert rig.sent == [f"hub:0:{n}" for n in range(4)], "even while the breaker is open"


@pytest.mark.parametrize(
    ("error", "failures"), [(Fenced("another"), 0), (StoreUnavailable("gone"), 1)]
)
async def test_a_take_over_does_not_count_as_a_failure(
    rig: BreakerRig, monkeypatch: pytest.MonkeyPatch, error: Exception, failures: int
) -> None:
    async def refuse(*_arguments: object) -> None:
        raise error

    await rig.ingest(0, 3)
    monkeypatch.setattr(rig.store, "commit", refuse)
    with pytest.raises(type(error)):
        await rig.ingest(4, 7)
    assert sum(failed for _, _, failed in await rig.tallies()) == failures


async def test_the_error_of_a_failing_store_is_raised_unchanged(
    rig: BreakerRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(_tally: Tally) -> None:
        raise StoreUnavailable("tally")

    rig.handle_error = DependencyDown("the first cause")
    monkeypatch.setattr(rig.breakers, "put_tally", refuse)
    with pytest.raises(DependencyDown, match="the first cause"):
        await rig.ingest(0, 3)
    assert "[breaker_not_told] hub/0: the results were not reported: tally" in caplog.text


async def test_a_failed_announcement_does_not_stop_batches_and_is_repeated(
    rig: BreakerRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.announce_error, rig.handle_error = NotSent("503"), BadEvent("nonsense")
    await rig.ingest(0, 9)
    assert (await rig.mode(), rig.announced, rig.checkpoint) == (OPEN, [], 9)
    assert "[breaker_not_announced] incident 1: 503" in caplog.text
    rig.announce_error = rig.handle_error = None
    rig.wait(61)
    await rig.ingest(10, 19)
    assert (await rig.mode(), rig.announced) == (CLOSED, [1])


async def test_an_isolated_breaker_admits_nothing_and_starts_no_probe(rig: BreakerRig) -> None:
    await rig.isolate()
    rig.wait(3600)
    with pytest.raises(BreakerOpen, match="isolated: deploying"):
        await rig.ingest(0, 3)
    assert (rig.handled, rig.announced) == ([], [1])


async def test_a_gap_is_logged_as_an_error(
    rig: BreakerRig, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.ingest(0, 1)
    await rig.ingest(4, 5)
    assert "[gap] hub/0: 2 event(s) from 2 to 3: skipped by the host" in caplog.text
    assert [r.levelno for r in caplog.records if "[gap]" in r.message] == [logging.ERROR]


# --- batches that take long -------------------------------------------------------------------


async def test_calls_are_counted_in_the_bucket_in_which_they_end(rig: BreakerRig) -> None:
    rig.seconds_of = lambda _: 4.0
    rig.bad = {3, 5}
    await rig.ingest(0, 5)  # the calls end after 4, 8, 12, 16, 20 and 24 s
    assert await rig.tallies() == [(0, 2, 0), (10, 1, 1), (20, 1, 1)]


async def test_a_batch_longer_than_the_window_opens_the_breaker_and_stops(
    rig: BreakerRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.seconds_of, rig.bad = (lambda _: 6.0), set(range(100))
    with pytest.raises(BreakerOpen):
        await rig.ingest(0, 99)
    dead = len(rig.dead)
    assert (await rig.mode(), 6 <= dead <= 8) == (OPEN, True)
    assert rig.checkpoint == dead - 1, "the handled events are accounted for, the others are held"
    assert len(rig.handled) == dead
    assert "[batch_stopped] hub/0: the breaker is open: 6 failures" in caplog.text
    rig.wait(3600)
    rig.bad = set()
    await rig.ingest(0, 99)
    assert (len(rig.dead), len(rig.handled)) == (dead, 100), "each event once"


async def test_a_batch_whose_handler_never_waits_is_stopped(rig: BreakerRig) -> None:
    rig.seconds_of, rig.bad, rig.blocking = (lambda _: 2.0), set(range(100)), True
    with pytest.raises(BreakerOpen):
        await rig.ingest(0, 99)
    assert len(rig.handled) < 20


async def test_a_batch_stops_when_another_instance_opens_the_breaker(
    rig: BreakerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.seconds_of, handle = (lambda _: 6.0), rig.handle

    async def handled(event: Event) -> Effect:
        if event.sequence == 3:
            seen = await rig.breakers.load()
            opened = replace(seen.breaker, mode=OPEN, reason="elsewhere")
            await rig.breakers.replace(seen, opened)
        return await handle(event)

    monkeypatch.setattr(rig, "handle", handled)
    with pytest.raises(BreakerOpen, match="elsewhere"):
        await rig.ingest(0, 9)
    assert rig.checkpoint == 3, "the running call was completed"


async def test_failures_are_reported_while_an_outage_is_being_retried(rig: BreakerRig) -> None:
    rig.seconds_of = lambda _: 6.0
    rig.handle_error = ConnectionError("refused")
    with pytest.raises(ConnectionError):
        await rig.ingest(0, 0)
    assert [failures for _, _, failures in await rig.tallies()] == [1, 2], "three attempts"


async def test_a_healthy_long_batch_only_reads_the_breaker_and_is_logged_each_minute(
    rig: BreakerRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    written: list[Tally] = []
    put = rig.breakers.put_tally

    async def counted(tally: Tally) -> None:
        written.append(tally)
        await put(tally)

    monkeypatch.setattr(rig.breakers, "put_tally", counted)
    rig.seconds_of = lambda _: 100.0
    await rig.ingest(0, 1)
    assert rig.beats == 40
    assert len(written) <= 2, "one write for each bucket in which a call ended"
    lines = [record.message for record in caplog.records if "[batch_at_work]" in record.message]
    told = "[batch_at_work] hub/0: {} call(s) have ended so far"
    assert lines == [told.format(0), told.format(1), told.format(1)]


async def test_a_failing_breaker_store_does_not_stop_a_running_batch(
    rig: BreakerRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig.seconds_of, load, calls = (lambda _: 6.0), rig.breakers.load, 0

    async def fail_after_the_first() -> object:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise StoreUnavailable("breaker")
        return await load()

    monkeypatch.setattr(rig.breakers, "load", fail_after_the_first)
    await rig.ingest(0, 2)
    assert rig.checkpoint == 2
    assert "[breaker_not_told] hub/0: the heartbeat failed: breaker" in caplog.text


async def test_a_store_clock_slightly_behind_does_not_reset_a_tally(rig: BreakerRig) -> None:
    breaker = rig.breaker
    await breaker.check("0")
    breaker.count(NOW + timedelta(seconds=9), failures=3)
    breaker.count(NOW + timedelta(seconds=10), failures=1)
    await breaker.after_batch()
    breaker.count(NOW + timedelta(seconds=9), failures=1)
    await breaker.after_batch()
    assert await rig.tallies() == [(0, 0, 4), (10, 0, 1)]


async def test_failures_that_could_not_be_reported_are_reported_at_the_end(
    rig: BreakerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, rig.bad = rig.breakers.put_tally, {0}
    rig.seconds_of = lambda sequence: 4.0 if sequence == 0 else 5.0

    async def fail_once(tally: Tally) -> None:
        monkeypatch.setattr(rig.breakers, "put_tally", put)
        raise StoreUnavailable(f"{tally.instance}")

    monkeypatch.setattr(rig.breakers, "put_tally", fail_once)
    await rig.ingest(0, 1)
    assert await rig.tallies() == [(0, 1, 1)]


async def test_a_slow_probe_keeps_its_time_and_closes_the_breaker(tripped: BreakerRig) -> None:
    tripped.seconds_of = lambda _: 90.0
    tripped.wait(30)
    await tripped.ingest(10, 12)
    assert (await tripped.mode(), tripped.checkpoint) == (CLOSED, 12)


async def test_a_batch_that_runs_out_of_time_is_continued_when_redelivered(
    rig: BreakerRig,
) -> None:
    rig.seconds_of, rig.bad = (lambda _: 4.0), {1, 2}
    rig.lines["0"] = rig.new_line(seconds_max=240)
    with pytest.raises(OutOfTime, match=r"took longer than 240 s.*maxEventBatchSize"):
        await rig.ingest(0, 98)
    assert rig.checkpoint == 59, "the events handled in time are accounted for"
    await rig.ingest(0, 98)
    assert (rig.checkpoint, rig.handled) == (98, list(range(99))), "each event once"
    assert await rig.mode() is CLOSED
    failed = sum(failures for _, _, failures in await rig.tallies())
    assert failed == 2, "running out of time is not a failure"


# --- heartbeats of the event loop -------------------------------------------------------------


async def test_heartbeats_run_during_the_work_and_have_ended_when_it_returns() -> None:
    beats, over, ended = 0, asyncio.Event(), True

    async def beat() -> None:
        nonlocal beats, ended
        beats, ended = beats + 1, False
        if beats == 3:
            over.set()
        await asyncio.sleep(0.001)
        ended = True

    async def work() -> str:
        await over.wait()
        return "done"

    assert await heartbeat_every(0)(work(), beat) == "done"
    assert (ended, len(asyncio.all_tasks())) == (True, 1)


async def test_short_work_has_no_heartbeat_and_its_error_is_raised() -> None:
    async def beat() -> None:
        raise AssertionError("too soon")

    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await heartbeat_every(0)(work(), beat)
