"""Batches that take long: calls are counted as they end, the breaker can stop them, and sweeps
notice them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import pytest

from shared.ingestion.breaker.failure_window import Tally, TripRule
from shared.ingestion.breaker.state import Breaker, BreakerMode, BreakerTimes, Probe, keep_probe
from shared.ingestion.errors import BreakerOpen, DependencyDown, OutOfTime, StoreUnavailable
from shared.ingestion.events import ingest
from shared.ingestion.events.ingest import BEAT_SECONDS
from shared.ingestion.model import Effect, Event
from shared.values.concurrency import Heartbeat, heartbeat_every
from tests.builders import NOW
from tests.ingestion.test_ingest import STREAM, Rig
from tests.ingestion.test_process_batch import events

T = TypeVar("T")


class SlowRig(Rig):
    """Time passes while a handler works: ``seconds_of`` an event, in steps that allow
    heartbeats."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker.rule = TripRule(failures_max=5)
        self.seconds_of: Callable[[int], float] = lambda _: 0.0
        self.blocking = False
        self.beat: Heartbeat | None = None
        self.beats = 0

    def new_line(self, partition_id: str = "0") -> ingest.PartitionPipeline:
        line = super().new_line(partition_id)
        consumer = replace(line.consumer, handle=self._handle_now)
        return replace(line, consumer=consumer, elapsed=self.passed, with_heartbeat=self.beside)

    async def _handle_now(self, event: Event) -> Effect:
        return await self.handle(event)

    async def beside(self, work: Awaitable[T], beat: Heartbeat) -> T:
        before, self.beat = self.beat, beat
        try:
            return await work
        finally:
            self.beat = before

    async def handle(self, event: Event) -> Effect:
        left = self.seconds_of(event.sequence)
        while left > 0:
            step = min(left, left if self.blocking else BEAT_SECONDS)
            self.wait(step)
            left -= step
            if self.beat is not None and not self.blocking and step == BEAT_SECONDS:
                self.beats += 1
                await self.beat()
        return await super().handle(event)


@pytest.fixture
def rig() -> SlowRig:
    return SlowRig()


async def tallies(rig: SlowRig) -> list[tuple[int, int, int]]:
    """All tallies: seconds since the start, successes and failures."""
    rows = sorted(await rig.breakers.tallies(NOW), key=lambda tally: tally.bucket_start)
    return [
        (int((each.bucket_start - NOW).total_seconds()), each.successes, each.failures)
        for each in rows
    ]


async def test_calls_are_counted_in_the_bucket_in_which_they_end(rig: SlowRig) -> None:
    rig.seconds_of = lambda _: 4.0
    rig.bad = {3, 5}
    await rig.ingest(0, 5)  # the calls end after 4, 8, 12, 16, 20 and 24 s
    assert await tallies(rig) == [(0, 2, 0), (10, 1, 1), (20, 1, 1)]


async def test_a_batch_longer_than_the_window_opens_the_breaker_and_stops(
    rig: SlowRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.seconds_of, rig.bad = (lambda _: 6.0), set(range(100))
    with pytest.raises(BreakerOpen):
        await rig.ingest(0, 99)
    dead = len(rig.store.rows[STREAM].dead_letters)
    assert await rig.mode() is BreakerMode.CLOSED or 6 <= dead <= 8
    assert await rig.mode() is BreakerMode.OPEN
    assert rig.checkpoint == dead - 1, "the handled events are accounted for, the others are held"
    assert len(rig.handled) == dead
    assert "[batch_stopped] hub/0: the breaker is open: 6 failures" in caplog.text
    rig.wait(3600)
    rig.bad = set()
    await rig.ingest(0, 99)
    assert len(rig.store.rows[STREAM].dead_letters) == dead
    assert len(rig.handled) == 100, "each event once"


async def test_a_batch_whose_handler_never_waits_is_stopped(rig: SlowRig) -> None:
    rig.seconds_of, rig.bad, rig.blocking = (lambda _: 2.0), set(range(100)), True
    with pytest.raises(BreakerOpen):
        await rig.ingest(0, 99)
    assert len(rig.handled) < 20


async def test_a_batch_stops_when_another_instance_opens_the_breaker(rig: SlowRig) -> None:
    rig.seconds_of = lambda _: 6.0

    async def open_it() -> None:
        seen = await rig.breakers.load()
        await rig.breakers.replace(
            seen, replace(seen.breaker, mode=BreakerMode.OPEN, reason="elsewhere")
        )

    handle = rig.handle

    async def handled(event: Event) -> Effect:
        if event.sequence == 3:
            await open_it()
        return await handle(event)

    rig.handle = handled  # type: ignore[method-assign]
    with pytest.raises(BreakerOpen, match="elsewhere"):
        await rig.ingest(0, 9)
    assert rig.checkpoint == 3, "the running call was completed"


async def test_failures_are_reported_while_an_outage_is_being_retried(
    rig: SlowRig,
) -> None:
    rig.seconds_of = lambda _: 6.0
    rig.handle_error = ConnectionError("refused")
    with pytest.raises(ConnectionError):
        await rig.ingest(0, 0)
    assert [failures for _, _, failures in await tallies(rig)] == [1, 2], "three attempts"


async def test_a_healthy_long_batch_only_reads_the_breaker(rig: SlowRig) -> None:
    written: list[Tally] = []
    put = rig.breakers.put_tally

    async def counted(tally: Tally) -> None:
        written.append(tally)
        await put(tally)

    rig.breakers.put_tally = counted  # type: ignore[method-assign]
    rig.seconds_of = lambda _: 30.0
    await rig.ingest(0, 3)
    assert rig.beats == 24
    assert len(written) <= 4, "one write for each bucket in which a call ended"


async def test_a_failing_breaker_store_does_not_stop_a_running_batch(
    rig: SlowRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.seconds_of = lambda _: 6.0
    admit = rig.breakers.load

    async def fail_after_the_first() -> None:
        raise StoreUnavailable("breaker")

    async def first() -> object:
        rig.breakers.load = fail_after_the_first  # type: ignore[assignment, method-assign]
        return await admit()

    rig.breakers.load = first  # type: ignore[assignment, method-assign]
    await rig.ingest(0, 2)
    assert rig.checkpoint == 2
    assert "[breaker_not_told] hub/0: the heartbeat failed: breaker" in caplog.text


async def test_a_store_clock_slightly_behind_does_not_reset_a_tally(rig: SlowRig) -> None:
    breaker = rig.breaker
    await breaker.check("0")
    breaker.count(NOW + timedelta(seconds=9), failures=3)
    breaker.count(NOW + timedelta(seconds=10), failures=1)
    await breaker.after_batch()
    breaker.count(NOW + timedelta(seconds=9), failures=1)
    await breaker.after_batch()
    assert await tallies(rig) == [(0, 0, 4), (10, 0, 1)]


# --- probes -----------------------------------------------------------------------------------


async def test_a_slow_probe_keeps_its_time_and_closes_the_breaker(rig: SlowRig) -> None:
    rig.handle_error = DependencyDown("database")
    for _ in range(6):
        with pytest.raises(DependencyDown):
            await rig.ingest(0, 0)
    assert await rig.mode() is BreakerMode.OPEN
    rig.handle_error = None
    rig.seconds_of = lambda _: 90.0
    rig.wait(30)
    await rig.ingest(0, 2)
    assert (await rig.mode(), rig.checkpoint) == (BreakerMode.CLOSED, 2)


def test_a_probe_that_hangs_is_given_up_in_the_end() -> None:
    times = BreakerTimes(probe_seconds=60, probe_call_seconds_max=600)
    probe = Probe("i1", "0", NOW + timedelta(seconds=60), 10)
    breaker: Breaker | None = Breaker(BreakerMode.HALF_OPEN, 1, NOW, probe=probe)
    now, kept = NOW, 0
    while breaker is not None and kept < 1000:
        now, kept = now + timedelta(seconds=5), kept + 1
        breaker = keep_probe(breaker, "i1", now, times) or breaker
        if breaker.probe is not None and now >= breaker.probe.until:
            break
    assert now == NOW + timedelta(seconds=600)
    assert keep_probe(Breaker(BreakerMode.HALF_OPEN, 1, NOW, probe=probe), "i2", NOW, times) is None


# --- sweeps -----------------------------------------------------------------------------------


async def look_for(rig: SlowRig, seconds: int, elsewhere: Rig | None = None) -> None:
    """Run the tail timer of this or another instance each minute."""
    for _ in range(seconds // 60):
        rig.wait(60)
        await (elsewhere or rig).watch.check_partitions(["0"], (elsewhere or rig).line_of)


def another(rig: SlowRig) -> SlowRig:
    """Another instance over the same stores."""
    other = SlowRig()
    other.store, other.hub, other.breakers = rig.store, rig.hub, rig.breakers
    other.breaker = replace(rig.breaker, instance="i2", counted={}, unwritten={})
    return other


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_stream_with_a_running_batch_is_not_swept(rig: SlowRig, *, elsewhere: bool) -> None:
    await rig.ingest(0, 0)
    rig.hub.add(STREAM, *events(0, 3))
    who = another(rig) if elsewhere else rig
    await who.watch.check_partitions(["0"], who.line_of)
    handle, looked = rig.handle, 0

    async def handled(event: Event) -> Effect:
        nonlocal looked
        for _ in range(24):  # two minutes
            rig.wait(BEAT_SECONDS)
            assert rig.beat is not None
            await rig.beat()
            if (rig.now - NOW).seconds % 30 == 0:
                looked += 1
                await who.watch.check_partitions(["0"], who.line_of)
        return await handle(event)

    rig.handle = handled  # type: ignore[method-assign]
    await rig.ingest(1, 3)
    assert (rig.handled, who.handled if elsewhere else []) == ([0, 1, 2, 3], [])
    assert looked == 12


async def test_a_stream_with_a_handler_that_never_waits_is_not_swept_by_its_own_process(
    rig: SlowRig,
) -> None:
    await rig.ingest(0, 0)
    rig.hub.add(STREAM, *events(0, 3))
    await rig.watch.check_partitions(["0"], rig.line_of)
    handle = rig.handle

    async def handled(event: Event) -> Effect:
        rig.wait(300)  # no heartbeat was possible
        await rig.watch.check_partitions(["0"], rig.line_of)
        return await handle(event)

    rig.handle = handled  # type: ignore[method-assign]
    await rig.ingest(1, 1)
    assert rig.handled == [0, 1]


async def test_two_checks_in_quick_succession_do_not_start_a_sweep(rig: SlowRig) -> None:
    await rig.ingest(0, 0)
    rig.hub.add(STREAM, *events(0, 3))
    for _ in range(8):
        await rig.watch.check_partitions(["0"], rig.line_of)
        rig.wait(5)
    assert rig.checkpoint == 0
    rig.wait(5)
    await rig.watch.check_partitions(["0"], rig.line_of)
    assert rig.checkpoint == 3, "the first progress must be remembered"


async def test_the_batch_of_a_crashed_instance_is_swept(rig: SlowRig) -> None:
    await rig.ingest(0, 0)
    rig.hub.add(STREAM, *events(0, 3))
    await rig.store.mark_at_work(STREAM)
    other = another(rig)
    await look_for(rig, 120, other)
    assert other.handled == [1, 2, 3]


async def test_failures_in_a_sweep_open_the_breaker_and_stop_the_sweep(
    rig: SlowRig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await rig.ingest(0, 0)
    rig.hub.add(STREAM, *events(0, 99))
    rig.bad, rig.seconds_of = set(range(100)), (lambda _: 6.0)
    await rig.watch.check_partitions(["0"], rig.line_of)
    rig.wait(60)
    with pytest.raises(ExceptionGroup) as raised:
        await rig.watch.check_partitions(["0"], rig.line_of)
    assert [type(each) for each in raised.value.exceptions] == [BreakerOpen]
    assert await rig.mode() is BreakerMode.OPEN
    assert 6 <= len(rig.store.rows[STREAM].dead_letters) <= 8


async def test_a_sweep_probes_the_breaker_if_no_events_are_delivered(
    rig: SlowRig,
) -> None:
    await rig.ingest(0, 0)
    rig.hub.add(STREAM, *events(0, 9))
    rig.handle_error = DependencyDown("database")
    for _ in range(6):
        with pytest.raises(DependencyDown):
            await rig.ingest(1, 9)
    assert await rig.mode() is BreakerMode.OPEN
    rig.handle_error = None
    await look_for(rig, 600)
    assert (await rig.mode(), rig.checkpoint) == (BreakerMode.CLOSED, 9)


# --- heartbeats of the event loop -------------------------------------------------------------


async def test_heartbeats_run_during_the_work_and_end_with_it() -> None:
    beats, over = 0, asyncio.Event()

    async def beat() -> None:
        nonlocal beats
        beats += 1
        if beats == 3:
            over.set()

    async def work() -> str:
        await over.wait()
        return "done"

    assert await heartbeat_every(0.001)(work(), beat) == "done"
    made = beats
    await asyncio.sleep(0.02)
    assert (beats, len(asyncio.all_tasks())) == (made, 1)


async def test_short_work_has_no_heartbeat_and_its_error_is_raised() -> None:
    async def beat() -> None:
        raise AssertionError("too soon")

    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await heartbeat_every(0)(work(), beat)


async def test_the_work_returns_after_a_running_heartbeat_has_ended() -> None:
    begun, ended = asyncio.Event(), False

    async def beat() -> None:
        nonlocal ended
        begun.set()
        await asyncio.sleep(0.01)
        ended = True

    await heartbeat_every(0)(begun.wait(), beat)
    assert ended


async def test_a_running_batch_is_logged_each_minute(
    rig: SlowRig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rig.seconds_of = lambda _: 100.0
    await rig.ingest(0, 1)
    lines = [record.message for record in caplog.records if "[batch_at_work]" in record.message]
    assert lines == [
        "[batch_at_work] hub/0: 0 call(s) have ended so far",
        "[batch_at_work] hub/0: 1 call(s) have ended so far",
        "[batch_at_work] hub/0: 1 call(s) have ended so far",
    ]


async def test_failures_that_could_not_be_reported_are_reported_at_the_end(rig: SlowRig) -> None:
    put, rig.bad = rig.breakers.put_tally, {0}
    rig.seconds_of = lambda sequence: 4.0 if sequence == 0 else 5.0

    async def fail(tally: Tally) -> None:
        rig.breakers.put_tally = put  # type: ignore[method-assign]
        raise StoreUnavailable(f"{tally.instance}")

    rig.breakers.put_tally = fail  # type: ignore[method-assign]
    await rig.ingest(0, 1)
    assert await tallies(rig) == [(0, 1, 1)]


async def test_activity_records_from_before_the_clock_was_set_back_do_not_delay_a_sweep(
    rig: SlowRig,
) -> None:
    await rig.ingest(0, 0)
    rig.hub.add(STREAM, *events(0, 3))
    await rig.store.mark_at_work(STREAM)
    other = another(rig)
    await look_for(rig, 60, other)
    rig.wait(-600)
    await look_for(rig, 120, other)
    assert other.handled == [1, 2, 3]


async def test_a_batch_that_runs_out_of_time_is_continued_when_redelivered(
    rig: SlowRig,
) -> None:
    rig.seconds_of, rig.bad = (lambda _: 4.0), {1, 2}
    rig.lines["0"] = replace(rig.new_line(), seconds_max=240)
    with pytest.raises(OutOfTime, match=r"took longer than 240 s.*maxEventBatchSize"):
        await rig.ingest(0, 98)
    assert rig.checkpoint == 59, "the events handled in time are accounted for"
    await rig.ingest(0, 98)
    assert rig.checkpoint == 98
    assert rig.handled == list(range(99)), "each event once"
    assert await rig.mode() is BreakerMode.CLOSED
    assert sum(failures for _, _, failures in await tallies(rig)) == 2, (
        "running out of time is not a failure"
    )


async def test_a_sweep_that_runs_out_of_time_is_continued_later(rig: SlowRig) -> None:
    rig.hub.add(STREAM, *events(0, 98))
    await rig.ingest(0, 0)
    rig.seconds_of = lambda _: 4.0
    line = replace(rig.new_line(), seconds_max=240)
    with pytest.raises(OutOfTime):
        await ingest.ingest_undelivered(line, None)
    assert rig.checkpoint == 60
    await ingest.ingest_undelivered(line, None)
    assert rig.checkpoint == 98
