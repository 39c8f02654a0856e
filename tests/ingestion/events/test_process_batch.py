"""Batches from delivery to commit: handling, retries, gaps, lost races, lost replies and the first
checkpoint."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryIngestionStore, StreamRows
from shared.ingestion.errors import (
    AccountingBroken,
    BadEvent,
    BreakerOpen,
    DependencyDown,
    HubUnavailable,
    RowChanged,
    StoreUnavailable,
    StreamRecreated,
    TransientFailure,
)
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.process_batch import (
    LOST_REPLIES_MAX,
    RACES_MAX,
    LastCommit,
    process_batch,
    process_undelivered,
)
from shared.ingestion.model import (
    COMPACTED,
    LOST,
    Commit,
    Effect,
    Event,
    FailureKind,
    OutboxMessage,
    Span,
    Stream,
    message_id,
)
from shared.ingestion.ports import ReadBack
from shared.ingestion.store.events import StoredCheckpoint
from shared.values.concurrency import JitteredRetrying
from tests.builders import NOW
from tests.ingestion.flows import STREAM, BreakerRig, consumer, event, events


class Handling:
    """Creates a message for each event, and raises the errors that it was told to raise, each
    once."""

    def __init__(self) -> None:
        self.errors: dict[int, list[Exception]] = defaultdict(list)
        self.handled: list[int] = []

    def fails(self, sequence: int, *errors: Exception) -> None:
        self.errors[sequence] = list(errors)

    async def __call__(self, event: Event) -> Effect:
        self.handled.append(event.sequence)
        await asyncio.sleep(0)
        if self.errors[event.sequence]:
            raise self.errors[event.sequence].pop(0)
        message = OutboxMessage(message_id(STREAM, event.sequence), event.body.decode())
        return Effect(event.sequence, messages=(message,))


class Store(MemoryIngestionStore):
    """Runs the given actions before or after a commit, each once."""

    def __init__(self) -> None:
        super().__init__(lambda: self.now)
        self.now, self.loads = NOW, 0
        self.before: list[Callable[[], Awaitable[None]]] = []
        self.after: list[Callable[[], Awaitable[None]]] = []
        self.commits: list[Commit] = []

    async def load(self, stream: Stream) -> StoredCheckpoint:
        self.loads += 1
        return await super().load(stream)

    async def commit(
        self, stream: Stream, saved: StoredCheckpoint, commit: Commit
    ) -> StoredCheckpoint:
        if self.before:
            await self.before.pop(0)()
        answer = await super().commit(stream, saved, commit)
        self.commits.append(commit)
        if self.after:
            await self.after.pop(0)()
        return answer

    @property
    def stream(self) -> StreamRows:
        return self.rows[STREAM]


async def lose() -> None:
    raise StoreUnavailable("no answer")


class Rig:
    def __init__(self, read_max: int = 100) -> None:
        self.store, self.hub, self.handle = Store(), MemoryHubReader(read_max), Handling()
        self.consumer = consumer(self.store, self.hub, self.handle)

    async def begin(self, last: int = 0) -> None:
        """Account for the numbers from 0 to ``last``."""
        await process_batch(events(0, last), self.consumer)
        self.store.commits.clear()
        self.handle.handled.clear()

    @property
    def account(self) -> dict[str, list[int]]:
        rows = self.store.stream
        return {
            "effects": sorted(rows.effects),
            "dead": sorted(rows.dead_letters),
            "gaps": [n for g in rows.gaps.values() for n in range(g.first, g.last + 1)],
        }


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_a_batch_is_committed_as_effects_and_a_checkpoint_in_one_transaction(
    rig: Rig,
) -> None:
    report = await process_batch(events(5, 8), rig.consumer)
    assert rig.account == {"effects": [5, 6, 7, 8], "dead": [], "gaps": []}
    assert [len(commit.effects) for commit in rig.store.commits] == [0, 4], "the beginning first"
    assert report.effects == 4
    assert report.checkpoint == rig.store.stream.checkpoint
    assert report.checkpoint is not None
    assert (report.checkpoint.start, report.checkpoint.sequence) == (5, 8)
    await process_batch(events(9, 158), rig.consumer)
    assert [len(commit.effects) for commit in rig.store.commits][2:] == [99, 51]


async def test_redelivered_events_are_neither_handled_nor_written(rig: Rig) -> None:
    await rig.begin(8)
    report = await process_batch(events(3, 8), rig.consumer)
    assert (report.effects, rig.store.commits, rig.handle.handled) == (0, [], [])
    assert report.checkpoint is not None
    assert (await process_batch([], Rig().consumer)).checkpoint is None


LOST_CALL, DOWN, BAD = ConnectionError("refused"), DependencyDown("SQL is down"), BadEvent("bad")


@pytest.mark.parametrize(
    ("failures", "effects", "dead", "is_held"),
    [
        pytest.param({1: [TransientFailure("x")] * 2}, [0, 1, 2, 3], [], False, id="transient"),
        pytest.param({1: [LOST_CALL] * 2}, [0, 1, 2, 3], [], False, id="connection"),
        pytest.param({1: [TimeoutError("x")] * 2}, [0, 1, 2, 3], [], False, id="time out"),
        pytest.param({1: [TransientFailure("x")] * 3}, [0, 2, 3], [1], False, id="all attempts"),
        pytest.param({0: [BAD]}, [1, 2, 3], [0], False, id="the first is poison"),
        pytest.param({3: [BAD]}, [0, 1, 2], [3], False, id="the last is poison"),
        pytest.param({n: [BAD] for n in range(4)}, [], [0, 1, 2, 3], False, id="all are poison"),
        pytest.param({1: [LOST_CALL, BAD]}, [0, 2, 3], [1], False, id="poison after an outage"),
        pytest.param({2: [DOWN]}, [0, 1], [], True, id="an outage"),
        pytest.param({2: [LOST_CALL] * 3}, [0, 1], [], True, id="an outage in all attempts"),
        pytest.param({0: [DOWN]}, [], [], True, id="an outage at the first event"),
    ],
)
async def test_a_failure_is_retried_becomes_a_dead_letter_or_holds_the_partition(
    rig: Rig,
    failures: dict[int, list[Exception]],
    effects: list[int],
    dead: list[int],
    *,
    is_held: bool,
) -> None:
    for sequence, errors in failures.items():
        rig.handle.fails(sequence, *errors)
    if is_held:
        ((error, *_),) = failures.values()
        with pytest.raises(type(error)):
            await process_batch(events(0, 3), rig.consumer)
        assert rig.account == {"effects": effects, "dead": [], "gaps": []}
        effects = [0, 1, 2, 3]
        await process_batch(events(0, 3), rig.consumer)
    else:
        report = await process_batch(events(0, 3), rig.consumer)
        assert (report.effects, report.dead_letters) == (len(effects), len(dead))
    assert rig.account == {"effects": effects, "dead": dead, "gaps": []}


@pytest.mark.parametrize(
    ("errors", "kind", "error", "attempts"),
    [
        ([BadEvent("not JSON")], FailureKind.POISON, "not JSON", 1),
        ([TransientFailure("x")] * 3, FailureKind.EXHAUSTED, "x", 3),
    ],
)
async def test_a_dead_letter_holds_kind_error_attempts_body_and_the_time_of_failure(
    rig: Rig, errors: list[Exception], kind: FailureKind, error: str, attempts: int
) -> None:
    """Also after a long pause, in which the checkpoint was not read."""
    await rig.begin(4)
    rig.store.now = NOW + timedelta(hours=3)
    rig.handle.fails(6, *errors)
    await process_batch(events(5, 9), rig.consumer)
    letter = rig.store.stream.dead_letters[6]
    assert (letter.kind, letter.error, letter.attempts) == (kind, error, attempts)
    assert (letter.failed_at, letter.body) == (rig.store.now, b"6")
    assert sorted(set(rig.handle.handled)) == [5, 6, 7, 8, 9]
    assert len(rig.handle.handled) == 4 + attempts


async def test_the_errors_of_successive_attempts_are_not_chained(rig: Rig) -> None:
    async def at_once(_seconds: float) -> None: ...

    rig.handle.fails(1, LOST_CALL, LOST_CALL, BadEvent("not JSON"))
    await process_batch(events(0, 2), replace(rig.consumer, retry=JitteredRetrying(sleep=at_once)))
    assert rig.account == {"effects": [0, 2], "dead": [1], "gaps": []}


class GatewayGone(Exception):
    """An error of a library that a handler uses."""


async def test_an_error_that_the_handler_raises_as_an_outage_is_retried_and_holds_the_partition(
    rig: Rig,
) -> None:
    def outage() -> Exception:
        error = ConnectionError("the gateway is gone")
        error.__cause__ = GatewayGone("no route")
        return error

    rig.handle.fails(1, outage(), outage())
    await process_batch(events(0, 2), rig.consumer)
    rig.handle.fails(4, outage(), outage(), outage())
    with pytest.raises(ConnectionError):
        await process_batch(events(3, 5), rig.consumer)
    assert rig.account == {"effects": [0, 1, 2, 3], "dead": [], "gaps": []}


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        (Effect(1), "returned an Effect of event 1 for event 0; pass event.sequence to Effect"),
        (None, "the handler returned a NoneType; it must return Effect(event.sequence, …)"),
        ("done", "the handler returned a str; it must return Effect(event.sequence, …)"),
        ({"sequence": 0}, "the handler returned a dict; it must return Effect(event.sequence, …)"),
    ],
)
async def test_a_handler_that_does_not_return_the_events_effect_is_told_what_to_return(
    rig: Rig, returned: Any, error: str
) -> None:
    async def handle(_event: Event) -> Any:
        return returned

    await process_batch(events(0, 0), replace(rig.consumer, handle=handle))
    assert rig.store.stream.dead_letters[0].error.endswith(error)


# --- events that the host skipped -------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_hub", "batch", "effects", "gaps", "read_back"),
    [
        pytest.param(range(21), [5, 9, 10], range(11), [], 7, id="all are read back"),
        pytest.param([3, 4], [5, 8], [0, 3, 4, 5, 8], [(1, 2), (6, 7)], 2, id="some are gone"),
    ],
)
async def test_skipped_events_are_read_back_and_those_that_the_hub_no_longer_has_are_a_gap(
    rig: Rig,
    in_hub: Sequence[int],
    batch: list[int],
    effects: Sequence[int],
    gaps: list[tuple[int, int]],
    read_back: int,
) -> None:
    await rig.begin(0)
    rig.hub.add(STREAM, *map(event, in_hub))
    report = await process_batch([*map(event, batch)], rig.consumer)
    assert rig.account["effects"] == list(effects)
    assert [(gap.first, gap.last) for gap in report.gaps] == gaps
    assert report.read_back == read_back


@pytest.mark.parametrize(("held", "batch", "gaps"), [(1, [1, 5], []), (5, [5, 6], [1, 2, 3, 4])])
async def test_only_a_gap_before_a_held_event_is_committed(
    rig: Rig, held: int, batch: list[int], gaps: list[int]
) -> None:
    await rig.begin(0)
    rig.handle.fails(held, DependencyDown("down"))
    with pytest.raises(DependencyDown):
        await process_batch([*map(event, batch)], rig.consumer)
    assert rig.account == {"effects": [0], "dead": [], "gaps": gaps}


@pytest.mark.parametrize(
    ("kept", "gaps"),
    [
        ((), [(3, 6, LOST)]),
        ((0, 7, 8), [(3, 6, COMPACTED)]),
        ((1, 5, 7), [(3, 4, COMPACTED), (6, 6, COMPACTED)]),
        ((5, 7), [(3, 4, LOST), (6, 6, COMPACTED)]),
        ((7, 8), [(3, 6, LOST)]),
    ],
)
async def test_only_what_retention_removed_is_lost(
    rig: Rig, kept: Sequence[int], gaps: list[tuple[int, int, str]]
) -> None:
    """Retention removes the oldest events. Compaction removes events between those that stay."""
    await rig.begin(2)
    if kept:
        rig.hub.add(STREAM, *map(event, kept))
    report = await process_batch([event(7)], rig.consumer)
    assert [(gap.first, gap.last, gap.reason) for gap in report.gaps] == gaps
    assert [gap.is_loss for gap in report.gaps] == [reason == LOST for _, _, reason in gaps]


async def test_many_skipped_events_are_read_back_in_bounded_steps() -> None:
    rig = Rig(read_max=10)
    await rig.begin(0)
    rig.hub.add(STREAM, *events(30, 75))
    await process_batch([event(76)], rig.consumer)
    assert rig.account["gaps"] == list(range(1, 30))
    assert rig.account["effects"] == [0, *range(30, 77)]
    assert max(len(commit.effects) for commit in rig.store.commits) <= 10 + 1


class Unhelpful(MemoryHubReader):
    """A hub that does not answer, or that does not say what it still has."""

    def __init__(self, *, answers: bool) -> None:
        super().__init__()
        self.answers = answers

    async def read_back(self, stream: Stream, span: Span) -> ReadBack:
        if not self.answers:
            raise HubUnavailable(f"{stream.key} from {span.first}")
        return replace(await super().read_back(stream, span), complete_to=span.first - 1)


@pytest.mark.parametrize(("answers", "error"), [(False, HubUnavailable), (True, AccountingBroken)])
async def test_no_gap_is_recorded_while_the_hub_does_not_say_what_it_still_has(
    rig: Rig, error: type[Exception], *, answers: bool
) -> None:
    await rig.begin(0)
    with pytest.raises(error):
        await process_batch([event(5)], replace(rig.consumer, hub=Unhelpful(answers=answers)))
    assert rig.account == {"effects": [0], "dead": [], "gaps": []}


async def test_undelivered_events_at_the_tail_are_swept_once_the_stream_has_a_checkpoint(
    rig: Rig,
) -> None:
    rig.hub.add(STREAM, *events(0, 9))
    assert (await process_undelivered(rig.consumer)).checkpoint is None
    assert rig.store.stream.version is None
    await rig.begin(3)
    report = await process_undelivered(rig.consumer)
    assert (report.effects, rig.account["effects"]) == (6, list(range(10)))
    assert (await process_undelivered(rig.consumer)).effects == 0
    rig.hub.add(STREAM, *events(10, 12))
    rig.hub.forget(STREAM, 12)
    await process_undelivered(rig.consumer)
    assert rig.account == {"effects": [*range(10), 12], "dead": [], "gaps": [10, 11]}


# --- lost races, lost replies, fencing --------------------------------------------------------


async def test_too_many_lost_races_in_a_row_fail_the_batch(rig: Rig) -> None:
    async def refuse() -> None:
        rows = rig.store.stream
        assert rows.checkpoint is not None
        rows.checkpoint = replace(rows.checkpoint, txid=f"other{rows.version}")

    await rig.begin(0)
    rig.store.before = [refuse] * RACES_MAX
    with pytest.raises(RowChanged):
        await process_batch(events(1, 2), rig.consumer)


async def test_a_reader_that_committed_last_does_not_read_the_checkpoint_again(rig: Rig) -> None:
    await rig.begin(4)
    loads = rig.store.loads
    for first in (5, 10):
        await process_batch(events(first, first + 4), rig.consumer)
    assert rig.store.loads == loads
    assert rig.account["effects"] == list(range(15))


async def test_a_recreated_hub_with_more_events_than_the_checkpoint_is_reported(
    rig: Rig,
) -> None:
    rig.hub.add(STREAM, *events(0, 9))
    await rig.begin(4)
    rig.hub.recreate(STREAM, NOW + timedelta(hours=1))
    rig.hub.add(STREAM, *[replace(e, enqueued_at=NOW + timedelta(hours=2)) for e in events(0, 9)])
    later = replace(rig.consumer, remembered=LastCommit())
    for _ in range(2):
        with pytest.raises(StreamRecreated, match="the hub was created at"):
            await process_batch(rig.hub.events[STREAM][5:], later)
        with pytest.raises(StreamRecreated, match="the hub was created at"):
            await process_undelivered(later)
    assert rig.account["effects"] == list(range(5))


async def test_a_stream_whose_rows_are_deleted_begins_anew(rig: Rig) -> None:
    await rig.begin(4)
    rig.store.rows.clear()
    report = await process_batch(events(5, 9), rig.consumer)
    assert report.checkpoint is not None
    assert (report.checkpoint.start, report.checkpoint.sequence) == (5, 9)
    assert rig.account["effects"] == [5, 6, 7, 8, 9]


async def test_a_writer_without_an_epoch_keeps_that_of_the_checkpoint(rig: Rig) -> None:
    """From processors with leases to the trigger, and back to processors."""
    await rig.begin(0)
    writers = ((Writer("process", 4), 4), (Writer("trigger"), 4), (Writer("next", 5), 5))
    for number, (writer, epoch) in enumerate(writers, 1):
        report = await process_batch(events(number, number), replace(rig.consumer, writer=writer))
        assert report.checkpoint is not None
        assert (report.checkpoint.owner, report.checkpoint.epoch) == (writer.owner, epoch)


# --- the first checkpoint, which is written before the first event is handled -----------------


async def test_no_event_is_handled_before_the_first_checkpoint_is_written(rig: Rig) -> None:
    async def handle(event: Event) -> Effect:
        checkpoint = rig.store.stream.checkpoint
        assert checkpoint is not None
        assert (checkpoint.start, checkpoint.sequence, checkpoint.offset) == (3, 2, "")
        assert (checkpoint.epoch, checkpoint.owner) == (1, "me")
        return Effect(event.sequence)

    await process_batch(list(reversed(events(3, 5))), replace(rig.consumer, handle=handle))
    assert rig.account["effects"] == [3, 4, 5]


@pytest.mark.parametrize("error", [BreakerOpen, StoreUnavailable])
async def test_the_first_checkpoint_is_written_although_the_breaker_is_open_or_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    rig = BreakerRig()
    rig.hub.add(STREAM, *events(3, 9))

    async def fail() -> None:
        raise error("no")

    with monkeypatch.context() as during:
        if error is BreakerOpen:
            await rig.isolate()
        else:
            during.setattr(rig.breakers, "load", fail)
        with pytest.raises(error):
            await rig.ingest(3, 5)
    assert rig.handled == []
    seen = await rig.breakers.load()
    await rig.breakers.replace(seen, replace(seen.breaker, mode=seen.breaker.mode.CLOSED))
    await rig.ingest(6, 9)
    assert sorted(rig.store.rows[STREAM].effects) == [3, 4, 5, 6, 7, 8, 9]


async def test_no_event_is_handled_while_the_first_checkpoint_cannot_be_written(rig: Rig) -> None:
    rig.store.before = [lose] * LOST_REPLIES_MAX
    with pytest.raises(StoreUnavailable):
        await process_batch(events(3, 5), rig.consumer)
    assert rig.handle.handled == []
    await process_batch(events(3, 5), rig.consumer)
    assert rig.account["effects"] == [3, 4, 5]
