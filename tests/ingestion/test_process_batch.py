"""Batches from delivery to commit: handling, retries, gaps, lost races, lost replies and the
outbox."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryIngestionStore, StreamRows
from shared.ingestion.errors import (
    AccountingBroken,
    BadEvent,
    CommitRefused,
    DependencyDown,
    Fenced,
    HubUnavailable,
    StoreUnavailable,
    StreamRecreated,
    TransientFailure,
)
from shared.ingestion.events import outbox
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.process_batch import (
    LOST_REPLIES_MAX,
    RACES_MAX,
    Consumer,
    LastCommit,
    process_batch,
    process_undelivered,
)
from shared.ingestion.failure_cause import FailureCause, classify
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
from shared.ingestion.store.rows import CommitLimits
from shared.values.concurrency import task_runner
from tests.builders import NOW, thrice

STREAM = Stream("ns", "hub", "$Default", "0")


def event(sequence: int, key: str | None = None) -> Event:
    at = NOW + timedelta(seconds=sequence)
    return Event(sequence, f"@{sequence}", at, str(sequence).encode(), key)


def events(first: int, last: int) -> list[Event]:
    return [event(sequence) for sequence in range(first, last + 1)]


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
        numbers = count()
        self.consumer = Consumer(
            STREAM,
            Writer("me", 1),
            self.store,
            self.hub,
            self.handle,
            thrice,
            task_runner(4),
            lambda: f"tx{next(numbers)}",
        )

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


async def test_redelivered_events_are_neither_handled_nor_written(rig: Rig) -> None:
    await rig.begin(8)
    report = await process_batch(events(3, 8), rig.consumer)
    assert (report.effects, rig.store.commits, rig.handle.handled) == (0, [], [])
    assert report.checkpoint is not None
    assert (await process_batch([], Rig().consumer)).checkpoint is None


async def test_150_events_are_committed_in_two_transactions(rig: Rig) -> None:
    await rig.begin(0)
    await process_batch(events(1, 150), rig.consumer)
    assert [len(commit.effects) for commit in rig.store.commits] == [99, 51]


@pytest.mark.parametrize("bad", [[0], [3], [0, 1, 2, 3]])
async def test_a_poison_event_becomes_a_dead_letter_and_the_others_are_handled(
    rig: Rig, bad: list[int]
) -> None:
    for sequence in bad:
        rig.handle.fails(sequence, BadEvent("not JSON"))
    report = await process_batch(events(0, 3), rig.consumer)
    assert rig.account["dead"] == bad
    assert (report.effects, report.dead_letters) == (4 - len(bad), len(bad))
    letter = rig.store.stream.dead_letters[bad[0]]
    assert (letter.kind, letter.error) == (FailureKind.POISON, "BadEvent: not JSON")
    assert (letter.attempts, letter.failed_at, letter.body) == (1, NOW, str(bad[0]).encode())


@pytest.mark.parametrize("error", [TransientFailure, ConnectionError, TimeoutError])
async def test_a_transient_failure_is_retried(rig: Rig, error: type[Exception]) -> None:
    rig.handle.fails(1, error("x"), error("x"))
    await process_batch(events(0, 2), rig.consumer)
    assert rig.account == {"effects": [0, 1, 2], "dead": [], "gaps": []}


async def test_an_event_whose_attempts_all_fail_becomes_a_dead_letter_with_their_number(
    rig: Rig,
) -> None:
    rig.handle.fails(1, *[TransientFailure("x")] * 3)
    await process_batch(events(0, 2), rig.consumer)
    letter = rig.store.stream.dead_letters[1]
    assert (letter.kind, letter.attempts) == (FailureKind.EXHAUSTED, 3)


@pytest.mark.parametrize(
    "errors", [[DependencyDown("SQL is down")], [ConnectionError("refused")] * 3]
)
async def test_an_outage_holds_the_partition_and_dead_letters_no_event(
    rig: Rig, errors: list[Exception]
) -> None:
    rig.handle.fails(2, *errors)
    with pytest.raises(type(errors[0])):
        await process_batch(events(0, 4), rig.consumer)
    assert rig.account == {"effects": [0, 1], "dead": [], "gaps": []}
    await process_batch(events(0, 4), rig.consumer)
    assert rig.account == {"effects": [0, 1, 2, 3, 4], "dead": [], "gaps": []}


async def test_after_an_outage_no_lane_starts_another_event(rig: Rig) -> None:
    rig.handle.fails(2, DependencyDown("down"))
    with pytest.raises(DependencyDown):
        await process_batch([event(n, "ab"[n % 2]) for n in range(12)], rig.consumer)
    assert max(rig.handle.handled) <= 3


async def test_a_gap_after_a_held_event_is_not_committed_yet(rig: Rig) -> None:
    await rig.begin(0)
    rig.handle.fails(1, DependencyDown("down"))
    with pytest.raises(DependencyDown):
        await process_batch([event(1), event(5)], rig.consumer)
    assert rig.account == {"effects": [0], "dead": [], "gaps": []}


async def test_an_outage_at_the_first_event_commits_no_event(rig: Rig) -> None:
    await rig.begin(0)
    rig.handle.fails(1, DependencyDown("down"))
    with pytest.raises(DependencyDown):
        await process_batch(events(1, 2), rig.consumer)
    assert rig.store.commits == []


async def test_events_of_a_key_are_handled_in_order_while_keys_run_concurrently(rig: Rig) -> None:
    batch = [event(n, "ab"[n % 2]) for n in range(10)]
    await process_batch(batch, rig.consumer)
    assert [n for n in rig.handle.handled if n % 2 == 0] == [0, 2, 4, 6, 8]
    assert [n for n in rig.handle.handled if n % 2 == 1] == [1, 3, 5, 7, 9]
    assert 1 in rig.handle.handled[:3], "the second key must not wait for the first"


async def test_the_number_of_concurrent_lanes_is_bounded() -> None:
    running, most = 0, 0

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await task_runner(3)([work] * 10)
    assert (most, running) == (3, 0)


async def test_an_effect_of_another_event_makes_the_event_a_dead_letter(rig: Rig) -> None:
    async def confused(event: Event) -> Effect:
        return Effect(event.sequence + 1)

    await process_batch(events(0, 0), replace(rig.consumer, handle=confused))
    error = rig.store.stream.dead_letters[0].error
    assert "the handler returned an Effect of event 1 for event 0" in error


# --- events that the host skipped -------------------------------------------------------------


async def test_skipped_events_are_read_back(rig: Rig) -> None:
    await rig.begin(0)
    rig.hub.add(STREAM, *events(0, 20))
    report = await process_batch([event(5), event(9), event(10)], rig.consumer)
    assert rig.account["effects"] == list(range(11))
    assert (report.read_back, report.gaps) == (7, [])


async def test_skipped_events_that_the_hub_no_longer_has_are_a_gap(rig: Rig) -> None:
    await rig.begin(0)
    rig.hub.add(STREAM, event(3), event(4))
    report = await process_batch([event(5), event(8)], rig.consumer)
    assert rig.account == {"effects": [0, 3, 4, 5, 8], "dead": [], "gaps": [1, 2, 6, 7]}
    assert [(gap.first, gap.last) for gap in report.gaps] == [(1, 2), (6, 7)]


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


async def test_no_gap_is_recorded_while_the_hub_is_unavailable(rig: Rig) -> None:
    class Silent(MemoryHubReader):
        async def read_back(self, stream: Stream, span: Span) -> ReadBack:
            raise HubUnavailable(f"{stream.key} from {span.first}")

    await rig.begin(0)
    with pytest.raises(HubUnavailable):
        await process_batch([event(5)], replace(rig.consumer, hub=Silent()))
    assert rig.account == {"effects": [0], "dead": [], "gaps": []}


async def test_reading_back_without_progress_is_an_error(rig: Rig) -> None:
    class Stuck(MemoryHubReader):
        async def read_back(self, stream: Stream, span: Span) -> ReadBack:
            return replace(await super().read_back(stream, span), complete_to=span.first - 1)

    await rig.begin(0)
    with pytest.raises(AccountingBroken):
        await process_batch([event(5)], replace(rig.consumer, hub=Stuck()))


async def test_a_gap_before_a_held_event_is_committed(rig: Rig) -> None:
    await rig.begin(0)
    rig.handle.fails(5, DependencyDown("down"))
    with pytest.raises(DependencyDown):
        await process_batch([event(5), event(6)], rig.consumer)
    assert rig.account == {"effects": [0], "dead": [], "gaps": [1, 2, 3, 4]}


async def test_undelivered_events_at_the_tail_are_swept(rig: Rig) -> None:
    await rig.begin(3)
    rig.hub.add(STREAM, *events(0, 9))
    report = await process_undelivered(rig.consumer)
    assert (report.effects, rig.account["effects"]) == (6, list(range(10)))
    assert (await process_undelivered(rig.consumer)).effects == 0
    rig.hub.add(STREAM, *events(10, 12))
    rig.hub.forget(STREAM, 12)
    await process_undelivered(rig.consumer)
    assert rig.account == {"effects": [*range(10), 12], "dead": [], "gaps": [10, 11]}


async def test_a_stream_without_a_checkpoint_is_not_swept(rig: Rig) -> None:
    rig.hub.add(STREAM, *events(0, 9))
    assert (await process_undelivered(rig.consumer)).checkpoint is None
    assert rig.store.stream.version is None


async def test_a_recreated_hub_is_reported(rig: Rig) -> None:
    await rig.begin(9)
    rig.hub.add(STREAM, *events(0, 3))
    with pytest.raises(StreamRecreated):
        await process_undelivered(rig.consumer)
    with pytest.raises(StreamRecreated):
        await process_batch([replace(event(0), enqueued_at=NOW + timedelta(days=1))], rig.consumer)


# --- lost races, lost replies, fencing --------------------------------------------------------


@pytest.mark.parametrize("first", [1, 4])
async def test_a_commit_whose_reply_is_lost_is_written_exactly_once(rig: Rig, first: int) -> None:
    await rig.begin(first - 1)
    rig.store.after = [lose]
    await process_batch(events(first, first + 3), rig.consumer)
    rig.store.before = [lose]
    await process_batch(events(first + 4, first + 7), rig.consumer)
    assert rig.account["effects"] == list(range(first + 8))
    assert len(rig.store.commits) == 2


async def test_too_many_lost_replies_in_a_row_fail_the_batch(rig: Rig) -> None:
    rig.store.before = [lose] * LOST_REPLIES_MAX
    with pytest.raises(StoreUnavailable):
        await process_batch(events(0, 3), rig.consumer)
    await process_batch(events(0, 3), rig.consumer)
    assert rig.account["effects"] == [0, 1, 2, 3]


async def test_a_lost_call_that_arrives_late_is_recognized_by_its_txid(rig: Rig) -> None:
    """The reply of the first call is lost, and its repetition is refused because the first call was
    written after all."""
    arrived: list[Commit] = []
    plain = rig.store.commit

    async def late(stream: Stream, saved: StoredCheckpoint, commit: Commit) -> StoredCheckpoint:
        if not arrived:
            arrived.append(commit)
            raise StoreUnavailable("no answer")
        if len(arrived) == 1:
            arrived.append(commit)
            await plain(stream, saved, arrived[0])
        return await plain(stream, saved, commit)

    rig.store.commit = late  # type: ignore[method-assign]
    report = await process_batch(events(0, 3), rig.consumer)
    assert report.effects == 4
    assert (len(arrived), len(rig.store.commits)) == (2, 2), "the first checkpoint, and the batch"


async def test_the_loser_of_a_race_continues_from_the_stored_checkpoint_and_keeps_its_outcomes(
    rig: Rig,
) -> None:
    await rig.begin(0)
    other = replace(rig.consumer, handle=Handling(), new_txid=lambda: "other")

    async def overtake() -> None:
        await process_batch(events(1, 2), other)

    rig.store.before = [overtake]
    await process_batch(events(1, 4), rig.consumer)
    assert rig.account["effects"] == [0, 1, 2, 3, 4]
    assert rig.handle.handled == [1, 2, 3, 4]


async def test_too_many_lost_races_in_a_row_fail_the_batch(rig: Rig) -> None:
    async def refuse() -> None:
        rows = rig.store.stream
        assert rows.checkpoint is not None
        rows.checkpoint = replace(rows.checkpoint, txid=f"other{rows.version}")

    await rig.begin(0)
    rig.store.before = [refuse] * RACES_MAX
    with pytest.raises(CommitRefused):
        await process_batch(events(1, 2), rig.consumer)


async def test_a_reader_that_committed_last_does_not_read_the_checkpoint_again(rig: Rig) -> None:
    await rig.begin(4)
    loads = rig.store.loads
    for first in (5, 10):
        await process_batch(events(first, first + 4), rig.consumer)
    assert rig.store.loads == loads
    assert rig.account["effects"] == list(range(15))


@pytest.mark.parametrize("batch", [events(3, 9), events(7, 9), [*events(5, 9), *events(5, 5)]])
async def test_a_batch_that_does_not_follow_is_compared_with_the_stored_checkpoint(
    rig: Rig, batch: list[Event]
) -> None:
    rig.hub.add(STREAM, *events(0, 9))
    await rig.begin(4)
    loads = rig.store.loads
    await process_batch(batch, rig.consumer)
    assert rig.store.loads > loads
    assert rig.account["effects"] == list(range(10))


async def test_a_remembered_checkpoint_is_refused_after_a_takeover(rig: Rig) -> None:
    await rig.begin(4)
    other = replace(rig.consumer, writer=Writer("other", 2), remembered=LastCommit())
    await process_batch(events(5, 9), other)
    with pytest.raises(Fenced):
        await process_batch(events(5, 9), rig.consumer)
    await process_batch(events(10, 14), other)
    with pytest.raises(Fenced):
        await process_batch(events(15, 19), rig.consumer)
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


async def test_after_a_failure_the_checkpoint_is_read_again(rig: Rig) -> None:
    await rig.begin(4)
    rig.handle.fails(5, *[DependencyDown("database")] * 2)
    with pytest.raises(DependencyDown):
        await process_batch(events(5, 9), rig.consumer)
    loads = rig.store.loads
    with pytest.raises(DependencyDown):
        await process_batch(events(5, 9), rig.consumer)
    assert rig.store.loads == loads + 1


async def test_a_dead_letter_has_its_time_of_failure_even_after_a_long_pause(rig: Rig) -> None:
    await rig.begin(4)
    rig.store.now = NOW + timedelta(hours=3)
    rig.handle.fails(6, BadEvent("bad"))
    await process_batch(events(5, 9), rig.consumer)
    assert rig.store.stream.dead_letters[6].failed_at == rig.store.now
    assert rig.handle.handled == [5, 6, 7, 8, 9], "none of them twice"


async def test_an_overtaken_reader_with_a_dead_letter_continues_from_the_stored_checkpoint(
    rig: Rig,
) -> None:
    await rig.begin(4)
    other = replace(rig.consumer, remembered=LastCommit())
    await process_batch(events(5, 6), other)
    rig.handle.fails(8, BadEvent("bad"))
    await process_batch(events(5, 9), rig.consumer)
    assert rig.account == {"effects": [0, 1, 2, 3, 4, 5, 6, 7, 9], "dead": [8], "gaps": []}


async def test_a_reader_with_an_old_epoch_is_fenced_before_it_handles_an_event(rig: Rig) -> None:
    await rig.begin(0)
    with pytest.raises(Fenced):
        await process_batch(events(1, 2), replace(rig.consumer, writer=Writer("zombie", 0)))
    assert (rig.handle.handled, rig.account["effects"]) == ([], [0])


async def test_the_in_memory_adapter_has_the_limits_of_a_table(rig: Rig) -> None:
    consumer = replace(rig.consumer, limits=CommitLimits(rows_max=101))
    with pytest.raises(AccountingBroken, match="101 rows"):
        await process_batch(events(0, 150), consumer)


# --- the outbox -------------------------------------------------------------------------------


class Sender:
    def __init__(self) -> None:
        self.sent: list[str] = []

    async def send(self, messages: Sequence[OutboxMessage]) -> None:
        self.sent.extend(message.message_id for message in messages)


async def test_the_outbox_is_sent_in_order_and_emptied(rig: Rig) -> None:
    await process_batch(events(8, 12), rig.consumer)
    sender = Sender()
    leases = rig.consumer.leases
    counts = [
        await outbox.send_messages(STREAM, rig.store, sender, leases, limit=3) for _ in range(2)
    ]
    assert counts == [5, 0]
    assert leases.mine == {}
    assert sender.sent == ["hub:0:8", "hub:0:9", "hub:0:10", "hub:0:11", "hub:0:12"]


@pytest.mark.parametrize(
    ("error", "expected", "retries", "holds"),
    [
        (BadEvent(), FailureCause.EVENT, False, False),
        (ValueError(), FailureCause.TRANSIENT, True, False),
        (TransientFailure(), FailureCause.TRANSIENT, True, False),
        (TimeoutError(), FailureCause.UNREACHABLE, True, True),
        (ConnectionResetError(), FailureCause.UNREACHABLE, True, True),
        (DependencyDown(), FailureCause.DEPENDENCY, False, True),
        (StoreUnavailable(), FailureCause.DEPENDENCY, False, True),
        (HubUnavailable(), FailureCause.DEPENDENCY, False, True),
    ],
)
def test_the_cause_of_a_failure_decides_about_retries_and_holding(
    error: Exception, expected: FailureCause, *, retries: bool, holds: bool
) -> None:
    cause = classify(error)
    assert (cause, cause.is_retryable, cause.holds_partition) == (expected, retries, holds)


async def test_a_writer_without_an_epoch_keeps_that_of_the_checkpoint(rig: Rig) -> None:
    """From processors with leases to the trigger, and back to processors."""
    await rig.begin(0)
    writers = ((Writer("process", 4), 4), (Writer("trigger"), 4), (Writer("next", 5), 5))
    for number, (writer, epoch) in enumerate(writers, 1):
        report = await process_batch(events(number, number), replace(rig.consumer, writer=writer))
        assert report.checkpoint is not None
        assert (report.checkpoint.owner, report.checkpoint.epoch) == (writer.owner, epoch)


@pytest.mark.parametrize("returned", [None, "done", {"sequence": 1}])
async def test_the_error_of_a_handler_without_an_effect_says_what_to_return(
    rig: Rig, returned: Any
) -> None:
    async def handle(_event: Event) -> Any:
        return returned

    await process_batch(events(0, 0), replace(rig.consumer, handle=handle))
    (letter,) = rig.store.rows[STREAM].dead_letters.values()
    kind = type(returned).__name__
    assert letter.error == (
        f"TypeError: the handler returned a {kind}; it must return Effect(event.sequence, …)"
    )
