"""Random calls on the store of ingestion, in memory and in each real store, give the same answers.

They cover commits, the outbox, dead letters, gaps and retention.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from shared.ingestion.errors import (
    AccountingBroken,
    Fenced,
    RowChanged,
    RowRefused,
    StoreUnavailable,
)
from shared.ingestion.events.process_batch import process_batch
from shared.ingestion.model import (
    Checkpoint,
    Commit,
    DeadLetter,
    Effect,
    Event,
    FailureKind,
    Gap,
    Mark,
    OutboxMessage,
    StoredMessage,
    Stream,
    message_id,
)
from shared.ingestion.store.events import StoredCheckpoint, StoredDeadLetter
from shared.ingestion.store.rows import CommitLimits
from tests.builders import NOW
from tests.ingestion.commits import checkpoint, event, gap, letter
from tests.ingestion.conftest import Backend
from tests.ingestion.refusals import (
    DEAD,
    KINDS,
    REFUSED,
    REFUSED_MAX,
    RefusingStore,
    effect_of,
    own,
    own_rows,
    reader,
    write_own_rows,
)
from tests.storage.faulty_network import NO_FAULT, Fault, Network, faults
from tests.storage.stateful import (
    REAL_BACKENDS,
    Both,
    Look,
    Side,
    SideCall,
    StoreMachine,
    names,
    run_store_machine,
)

ALL = 20_000
"""More rows than a machine writes, so that a read returns all of them."""
TIME_STEP = timedelta(milliseconds=1)
"""Between two failures. Azurite stores microseconds, but compares times in milliseconds."""
PARTITIONS = ("0", 'ü%|=7C/\\#?"🚀')
TEXTS = {
    "empty": "",
    "short": "text",
    "quoted": 'quote " and \\ and \n\t',
    "unicode": "ü€🚀",
    "two properties of ASCII": "x" * 16_001,
    "two properties of Unicode": "🚀" * 16_001,
    "a control character": "a\x01b",  # this one and the next are no messages
    "largest of ASCII": "x" * 509_000,  # the largest row that ``plan_commits`` allows
    "largest of Unicode": "🚀" * 254_000,
}
BODIES = {
    "none": None,
    "empty": b"",
    "JSON": b"{}",
    "every byte": bytes(range(256)) * 200,
    "two properties": b"x" * 60_001,
}

DELIVERED = "delivered "
STORED_KINDS = [kind for kind in FailureKind if kind is not FailureKind.UNREADABLE]

partitions = st.sampled_from(PARTITIONS)
texts = st.sampled_from(list(TEXTS)[:6])
values = st.one_of(texts, texts, st.sampled_from(list(TEXTS)))
bodies = st.sampled_from(list(BODIES))
recent = st.integers(0, 3)
"""Selects one of the earlier answers; 0 is the latest."""
some = st.lists(st.integers(0, 7), max_size=6)
"""Selects rows that were ever read, the newest first. Some may be selected twice, or be deleted."""
limits = st.sampled_from([1, 2, 3, 99, 100, 101, 1000])
Results = list[tuple[str, Any]]


@st.composite
def outcomes(draw: st.DrawFn, size_min: int = 0) -> Results:
    """The outcomes of the events of a commit, in order."""
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "value": texts,
        "messages": st.lists(texts, min_size=1, max_size=3),
        "letter": bodies,
        "gap": st.sampled_from([1, 2, 10**6]),
        "nothing": st.none(),
    }
    chosen = draw(st.lists(st.sampled_from(list(kinds)), min_size=size_min, max_size=6))
    if chosen.count("value") == 1 and "messages" not in chosen:
        kinds["value"] = values  # a transaction holds one of the largest values, and little else
    return [(kind, draw(kinds[kind])) for kind in chosen]


class Streams(StoreMachine):
    """Streams of a hub that no other test uses. The names of two of them differ by case."""

    errors = (AccountingBroken, RowChanged, Fenced, RowRefused, StoreUnavailable)
    unavailable = StoreUnavailable
    conflicts = (RowChanged,)

    def __init__(self, network: Network, backend: Callable[[AsyncExitStack], Backend]) -> None:
        self._backend = backend
        self.hub = f"hü-{uuid.uuid4().hex[:8]}"
        self.stream(PARTITIONS[0])
        self.times = 0
        self.largest_is_due = True
        super().__init__(network)

    async def open(self, stack: AsyncExitStack) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        backend = self._backend(stack)
        store = backend.store(write_own_rows)
        if backend.kind != "tables":
            self.sql = backend.sql
            await self.sql.write(own.create_all)
            self.network.through(self.sql)
        self.limits: CommitLimits = store.limits
        memory = RefusingStore(self.clock, self.limits.rows_max)
        return (
            {"streams": memory},
            {"streams": store},
        )

    def stream(self, partition: str) -> Stream:
        """The stream of this step, which ``look`` then reads."""
        self.at = Stream("ns", self.hub, "$Default", partition)
        return self.at

    async def look(self, side: Side) -> Look:
        """The rows of the stream of this step. Those of the other one are read in its own steps."""
        at = self.at
        saved = await side.streams.load(at)
        outbox = await side.streams.outbox(at, ALL)
        letters = await side.streams.dead_letters(at, None, ALL)
        gaps = await side.streams.gaps(at, None, ALL)
        marks = await side.streams.marks(at)
        idle = await side.streams.idle_for(at) is not None
        stored = [(s.stream, _told(s.letter)) for s in letters]
        return Look(
            (_place(saved), _messages(outbox), stored, list(gaps), list(marks), idle),
            {at: saved.version} | {(at, s.letter.sequence): s.version for s in letters},
            {(at, "saved"): saved}
            | {(at, "message", m.message.message_id): m for m in outbox}
            | {(at, "letter", s.letter.sequence): s for s in letters},
        )

    # --- commits ---

    @initialize()
    def begin(self) -> None:
        """Start with the checkpoint of a new stream, which need not be loaded."""
        for partition in PARTITIONS:
            at = self.stream(partition)
            self.keep({(at, "saved"): Both(*[StoredCheckpoint(None, NOW)] * 2)})

    @rule(partition=partitions, results=outcomes(2), epochs=st.sampled_from([0, 0, 1, 2**33]))
    def commit(self, partition: str, results: Results, epochs: int) -> None:
        """A valid commit, whose rows the other rules use."""
        self._commit(self._saved(partition), results, epochs, NO_FAULT)

    @rule(
        partition=partitions,
        back=recent,
        results=outcomes(),
        epochs=st.sampled_from([0, -1, -1, 1]),
        fault=faults(1),
    )
    def commit_late_or_badly(
        self, partition: str, back: int, results: Results, epochs: int, fault: Fault
    ) -> None:
        """A commit based on the current checkpoint or an older one. Its epoch may be lower."""
        self._commit(self._saved(partition, back), results, epochs, fault)

    @rule(
        partition=partitions,
        results=outcomes(1),
        what=st.sampled_from(["letter", "gap", "outbox", "the same twice"]),
    )
    def commit_a_number_that_already_has_a_row(
        self, partition: str, results: Results, what: str
    ) -> None:
        saved = self._saved(partition)
        commit = self._doubled(self._planned(saved, results, 0), what)
        self.step(_committing(self.at, saved, commit), _place)

    @rule(partition=partitions, first=outcomes(), second=outcomes(), epochs=st.integers(0, 1))
    def two_writers_commit_at_the_same_time(
        self, partition: str, first: Results, second: Results, epochs: int
    ) -> None:
        saved = self._saved(partition)
        ours, theirs = self._planned(saved, first, 0), self._planned(saved, second, epochs)
        self.race(_committing(self.at, saved, ours), _committing(self.at, saved, theirs), _place)

    @precondition(lambda self: self.largest_is_due)
    @rule(partition=partitions)
    def commit_one_row_too_many_and_then_the_maximum(self, partition: str) -> None:
        for rows in (
            self.limits.rows_max,
            self.limits.rows_max - 1,
        ):  # in addition to the checkpoint
            self._commit(self._saved(partition), [("value", "short")] * rows, 0, NO_FAULT)
        self.largest_is_due = False

    # --- events, some of which the store refuses for ever ---

    @rule(
        partition=partitions,
        kinds=st.lists(st.tuples(st.sampled_from(KINDS), names), max_size=12),
        again=recent,
        readers=st.sampled_from([1, 1, 2]),
        fault=faults(1),
    )
    def deliver(
        self,
        partition: str,
        kinds: list[tuple[str, str]],
        again: int,
        readers: int,
        fault: Fault,
    ) -> None:
        """Deliver events, the first of them for the second time, to one reader or two at once.

        What is refused for ever becomes a dead letter. Each other effect is stored exactly once,
        and nothing holds the partition.
        """
        at, first = self.stream(partition), self._next_number(partition)
        kinds = [*_few_refused(kinds), ("value", ""), ("messages", "")]
        batch = [
            replace(event(n, kind.encode()), partition_key=DELIVERED + key)
            for n, (kind, key) in enumerate(kinds, first)
        ]
        for each in [e for e in batch if e.body == b"not bytes"]:
            batch[each.sequence - first] = replace(each, unreadable="a map")
        before = [event(n) for n in range(max(first - again, 0), first)]
        self.step(lambda s: s.streams.purge_effects(at, first - 1, ALL))
        reading = self._reading([*before, *batch])
        if readers == 1:
            assert self.step(reading, fault=fault, repeatable=True) is not None
        else:
            self.race(reading, reading)
        for side in (self.memory, self.real):
            self.run(partial(self._account_for, side, batch))

    def _reading(self, events: Sequence[Event]) -> SideCall:
        at, self.times = self.at, self.times + 1
        name = f"{DELIVERED}{self.times}"

        async def read(side: Side) -> None:
            await process_batch(events, reader(at, side.streams, f"{name}.{uuid.uuid4().hex[:8]}"))

        return read

    async def _account_for(self, side: Side, batch: Sequence[Event]) -> None:
        """Assert that each event of the batch has the outcome that its kind has, and no other."""
        at, first, last = self.at, batch[0].sequence, batch[-1].sequence
        kinds = {each.sequence: each.body.decode() for each in batch}
        saved = (await side.streams.load(at)).checkpoint
        assert saved is not None
        assert saved.sequence == last, "the partition is held"
        letters = await side.streams.dead_letters(at, first - 1 if first else None, ALL)
        dead = {n: DEAD[kind] for n, kind in kinds.items() if kind in DEAD}
        assert {each.letter.sequence: each.letter.kind for each in letters} == dead
        assert all(self.is_now(each.letter.failed_at) for each in letters)
        bodies = {each.letter.sequence: each.letter.body for each in letters}
        assert bodies == {n: kinds[n].encode() for n in dead}
        due = [
            message
            for n, kind in kinds.items()
            if kind == "messages"
            for message in effect_of(at, n, kind).messages
        ]
        waiting = await side.streams.outbox(at, ALL)
        assert [each.message for each in waiting if each.sequence >= first] == due
        values = [n for n, kind in kinds.items() if kind == "value"]
        if not side.is_memory and hasattr(self, "sql"):
            query = select(own_rows.c.number).where(
                own_rows.c.stream == at.key, own_rows.c.number >= first
            )
            kept = await self.sql.read(lambda c: c.execute(query).scalars().all())
            assert sorted(kept) == values
        assert await side.streams.purge_effects(at, last, ALL) == len(values)

    # --- the outbox ---

    @rule(partition=partitions, which=some, fault=faults())
    def take(self, partition: str, which: list[int], fault: Fault) -> None:
        at, messages = self.stream(partition), self._seen(partition, "message", sorted(set(which)))
        self.step(lambda s: s.streams.take(at, [m.of(s) for m in messages]), fault=fault)

    @rule(partition=partitions, which=recent, back=st.integers(0, 1))
    def two_take_a_message_at_the_same_time(self, partition: str, which: int, back: int) -> None:
        at, messages = self.stream(partition), self._seen(partition, "message", [which], back)
        if messages:
            taking = _taking(at, messages[0])
            self.race(taking, taking)

    @rule(partition=partitions, which=some, fault=faults())
    def sent(self, partition: str, which: list[int], fault: Fault) -> None:
        at, messages = self.stream(partition), self._seen(partition, "message", which)
        self.step(
            lambda s: s.streams.sent(at, [m.of(s) for m in messages]), fault=fault, repeatable=True
        )

    # --- dead letters ---

    @rule(
        partition=partitions,
        which=recent,
        off=st.sampled_from([0, 0, 0, 1]),
        value=st.one_of(st.none(), texts, st.just(REFUSED)),
        messages=st.sampled_from([0, 1, 3, 12, 98, 99, 100]),
        fault=faults(1),
    )
    def redrive(
        self, partition: str, which: int, off: int, value: str | None, messages: int, fault: Fault
    ) -> None:
        for dead_letter in self._seen(partition, "letter", [which]):
            sequence = dead_letter.memory.letter.sequence + off
            ids = [message_id(self.at, sequence, n) for n in range(messages)]
            kept = None if value is None else TEXTS.get(value, REFUSED)
            effect = Effect(sequence, kept, tuple(OutboxMessage(i, "late") for i in ids))
            if value == REFUSED:
                effect = effect_of(self.at, sequence, "refused")
            self.step(_redriving(dead_letter, effect), fault=fault)

    @rule(partition=partitions, which=recent, fault=faults(1))
    def remove(self, partition: str, which: int, fault: Fault) -> None:
        for dead_letter in self._seen(partition, "letter", [which]):
            self.step(_removing(dead_letter), fault=fault)

    @rule(partition=partitions, which=recent)
    def one_redrives_what_another_removes(self, partition: str, which: int) -> None:
        for dead_letter in self._seen(partition, "letter", [which]):
            effect = Effect(dead_letter.memory.letter.sequence, "late")
            self.race(_redriving(dead_letter, effect), _removing(dead_letter))

    # --- what is read ---

    @rule(
        partition=partitions,
        before=st.one_of(st.none(), st.integers(0, 9), st.just(-(2**63))),
        since=st.one_of(st.none(), st.integers(0, 60)),
        limit=limits,
        fault=faults(1),
    )
    def read_dead_letters_and_gaps(
        self, partition: str, before: int | None, since: int | None, limit: int, fault: Fault
    ) -> None:
        at, after = self.stream(partition), self._back_from_the_end(partition, before)
        time = None if since is None else NOW + since * TIME_STEP
        self.step(lambda s: s.streams.dead_letters(at, after, limit, time), _letters, fault)
        self.step(lambda s: s.streams.gaps(at, after, limit, time), list, fault)
        self.step(lambda s: s.streams.newest_dead_letters(at, limit), _letters, fault)
        if after is not None:
            self.step(lambda s: s.streams.dead_letter(at, after), _letter_or_none, fault)

    @rule(partition=partitions, limit=limits, fault=faults(1))
    def read_the_rest(self, partition: str, limit: int, fault: Fault) -> None:
        at = self.stream(partition)
        saved = self.step(lambda s: s.streams.load(at), _place, fault)
        assert saved is None or self.is_now(saved.real.read_at)
        outbox = self.step(lambda s: s.streams.outbox(at, limit), _messages, fault)
        if outbox is not None:
            for memory, real in zip(outbox.memory, outbox.real, strict=True):
                assert self.is_as_long(memory.waited, real.waited)
        idle = self.step(lambda s: s.streams.idle_for(at), lambda outbox: outbox is None, fault)
        if idle is not None and idle.memory is not None:
            assert self.is_as_long(idle.memory, idle.real)
        self.step(lambda s: s.streams.streams(), self._begun, fault)

    def _begun(self, streams: Sequence[Stream]) -> list[Stream]:
        """The listed streams of this machine. A stream whose first commit failed may be listed."""
        ours = [s for s in streams if s.hub == self.hub]
        return [s for s in ours if self._end(s) is not None]

    # --- notes, and retention ---

    @rule(
        partition=partitions,
        at_work=st.booleans(),
        time=st.integers(0, 4),
        sequence=st.sampled_from([0, 7, 2**40, 2**63 - 1]),
        fault=faults(1),
    )
    def put_a_note(
        self, partition: str, at_work: bool, time: int, sequence: int, fault: Fault
    ) -> None:
        noting = self._noting(partition, at_work, time, sequence)
        self.step(noting, fault=fault, repeatable=True)

    @rule(partition=partitions, at_work=st.booleans(), time=st.integers(0, 4))
    def two_put_the_same_note_at_the_same_time(
        self, partition: str, at_work: bool, time: int
    ) -> None:
        noting = self._noting(partition, at_work, time, 5)
        self.race(noting, noting)

    @rule(partition=partitions, which=st.lists(st.integers(0, 5), max_size=6), fault=faults(1))
    def remove_marks(self, partition: str, which: list[int], fault: Fault) -> None:
        """Remove marks, some of them twice, and some that do not exist."""
        at = self.stream(partition)
        marks = [Mark(NOW + n * timedelta.resolution, 0) for n in which]
        self.step(lambda s: s.streams.remove_marks(at, marks), fault=fault, repeatable=True)

    @rule(
        partition=partitions,
        before=st.one_of(st.integers(0, 9), st.just(-(2**63)), st.just(2**63)),
        limit=st.sampled_from([1, 3, 100, ALL]),
    )
    def purge_effects(self, partition: str, before: int, limit: int) -> None:
        """No port reads effects, but the call returns how many it removed."""
        at, up_to = self.stream(partition), self._back_from_the_end(partition, before) or -1
        self.step(lambda s: s.streams.purge_effects(at, up_to, limit))

    def _noting(self, partition: str, at_work: bool, time: int, sequence: int) -> SideCall:
        at, mark = self.stream(partition), Mark(NOW + time * timedelta.resolution, sequence)
        if at_work:
            return lambda s: s.streams.mark_at_work(at)
        return lambda s: s.streams.put_mark(at, mark)

    # --- helpers of the rules ---

    def _saved(self, partition: str, back: int = 0) -> Both[StoredCheckpoint]:
        checkpoints = self.handles[self.stream(partition), "saved"]
        return checkpoints[-1 - min(back, len(checkpoints) - 1)]

    def _seen(
        self, partition: str, kind: str, which: Sequence[int], back: int = 0
    ) -> list[Both[Any]]:
        """Rows that were ever read, the newest first, in their latest version or an older one."""
        at = self.stream(partition)
        rows = [versions for name, versions in self.handles.items() if name[:2] == (at, kind)][::-1]
        return [rows[n][-1 - min(back, len(rows[n]) - 1)] for n in which if n < len(rows)]

    def _end(self, stream: Stream) -> int | None:
        checkpoint = self.handles[stream, "saved"][-1].memory.checkpoint
        return None if checkpoint is None else checkpoint.sequence

    def _next_number(self, partition: str) -> int:
        end = self._end(self.stream(partition))
        return 0 if end is None else end + 1

    def _back_from_the_end(self, partition: str, numbers: int | None) -> int | None:
        end = self._end(self.stream(partition)) or 0
        return None if numbers is None else max(min(end - numbers, 2**63 - 1), -1)

    def _commit(
        self, saved: Both[StoredCheckpoint], results: Results, epochs: int, fault: Fault
    ) -> None:
        commit = self._planned(saved, results, epochs)
        answer = self.step(_committing(self.at, saved, commit), _place, fault)
        if answer is not None:
            assert self.is_now(answer.real.read_at)
            self.keep({(self.at, "saved"): answer})

    def _planned(self, saved: Both[StoredCheckpoint], results: Results, epochs: int) -> Commit:
        previous = saved.memory.checkpoint
        number = 0 if previous is None else previous.sequence + 1
        start, epoch = (0, 1) if previous is None else (previous.start, previous.epoch)
        effects: list[Effect] = []
        letters: list[DeadLetter] = []
        gaps: list[Gap] = []
        for kind, what in results:
            if kind == "letter":
                kind_of_failure = STORED_KINDS[number % len(STORED_KINDS)]
                failed = replace(letter(number, b""), kind=kind_of_failure, body=BODIES[what])
                letters.append(replace(failed, failed_at=self._time()))
            elif kind == "gap":
                gaps.append(replace(gap(number, number + what - 1), found_at=self._time()))
                number += what - 1
            else:
                effects.append(self._effect(self.at, number, kind, what))
            number += 1
        after = replace(checkpoint(number - 1), start=start, epoch=max(epoch + epochs, 0))
        after = replace(after, set_aside=2 * number)
        return Commit(previous, after, tuple(effects), tuple(letters), tuple(gaps))

    def _effect(self, stream: Stream, number: int, kind: str, what: Any) -> Effect:
        if kind != "messages":
            return Effect(number, None if what is None else TEXTS[what])
        ids = [message_id(stream, number, n) for n in range(len(what))]
        sent = [OutboxMessage(i, TEXTS[body]) for i, body in zip(ids, what, strict=True)]
        return Effect(number, None, tuple(sent))

    def _doubled(self, commit: Commit, what: str) -> Commit:
        """The commit with a further row that already exists, or occurs twice in the commit."""
        rows = self.memory.streams.rows[self.at]
        if what == "letter":
            again = list(rows.dead_letters.values())[:1]
            return replace(commit, dead_letters=(*commit.dead_letters, *again))
        if what == "gap":
            return replace(commit, gaps=(*commit.gaps, *list(rows.gaps.values())[:1]))
        if what == "outbox":
            first = [Effect(n, None, (m,)) for (n, i), m in rows.outbox.items() if i == 0][:1]
            return replace(commit, effects=(*commit.effects, *first))
        if what == "the same twice":
            valued = tuple(e for e in commit.effects if e.rows)
            letters = () if valued else commit.dead_letters
            gaps = () if valued or letters else commit.gaps
            return replace(
                commit,
                effects=(*commit.effects, *valued),
                dead_letters=(*commit.dead_letters, *letters),
                gaps=(*commit.gaps, *gaps),
            )
        return commit

    def _time(self) -> Any:
        """A new time for each call, so that no dead letter equals one that was removed."""
        self.times += 1
        return NOW + self.times * TIME_STEP


def _few_refused(kinds: list[tuple[str, str]]) -> list[tuple[str, str]]:
    refused = [place for place, (kind, _) in enumerate(kinds) if kind == "refused"]
    return [each for place, each in enumerate(kinds) if place not in refused[REFUSED_MAX:]]


def _told(letter: DeadLetter) -> DeadLetter:
    """The dead letter of a delivered event without the engine's own words and time."""
    if not (letter.partition_key or "").startswith(DELIVERED):
        return letter
    return replace(letter, failed_at=NOW, error=letter.error[: len("the effect was refused")])


def _place(saved: StoredCheckpoint) -> Checkpoint | None:
    """The checkpoint. Each reader has its own transaction ids."""
    checkpoint = saved.checkpoint
    if checkpoint is None or not checkpoint.txid.startswith(DELIVERED):
        return checkpoint
    return replace(checkpoint, txid=checkpoint.txid.partition(".")[0])


def _messages(stored: Sequence[StoredMessage]) -> list[Any]:
    return [(m.message, m.sequence, m.taken) for m in stored]


def _letter_or_none(stored: StoredDeadLetter | None) -> DeadLetter | None:
    return None if stored is None else _told(stored.letter)


def _letters(stored: Sequence[StoredDeadLetter]) -> list[DeadLetter]:
    return [_told(stored.letter) for stored in stored]


def _committing(stream: Stream, saved: Both[StoredCheckpoint], commit: Commit) -> SideCall:
    return lambda side: side.streams.commit(stream, saved.of(side), commit)


def _taking(stream: Stream, message: Both[StoredMessage]) -> SideCall:
    return lambda side: side.streams.take(stream, [message.of(side)])


def _redriving(stored: Both[StoredDeadLetter], effect: Effect) -> SideCall:
    async def redrive(side: Side) -> None:
        try:
            await side.streams.redrive(stored.of(side), effect)
        except IntegrityError as error:  # of the user's own table
            raise RowRefused(REFUSED) from error

    return redrive


def _removing(stored: Both[StoredDeadLetter]) -> SideCall:
    return lambda side: side.streams.remove(stored.of(side))


@pytest.mark.timeout(600)  # shrinking a failure takes long
@pytest.mark.filterwarnings("ignore:Sending a large body")
@pytest.mark.parametrize("kind", REAL_BACKENDS)
def test_each_ingestion_store_behaves_like_the_in_memory_adapter_under_faults(
    kind: str, request: pytest.FixtureRequest
) -> None:
    run_store_machine(Streams, kind, request, examples=10, steps=28)
