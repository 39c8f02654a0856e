"""The same random calls on the twin and on each store of streams: of commits, the outbox, dead
letters, gaps and retention."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from shared.adapters.ingestion_memory import MemoryIngestionStore, MemoryRetentionStore
from shared.ingestion.accounting import CommitLimits
from shared.ingestion.errors import (
    AccountingBroken,
    CommitRefused,
    Fenced,
    StoreUnavailable,
)
from shared.ingestion.model import (
    Checkpoint,
    Commit,
    DeadLetter,
    Effect,
    Gap,
    Mark,
    OutboxMessage,
    Stream,
    message_id,
)
from shared.ingestion.ports import Saved, StoredDeadLetter, StoredMessage
from tests.builders import NOW
from tests.contract.conftest import Backend
from tests.contract.ingestion import checkpoint, gap, letter
from tests.contract.stateful import (
    NO_FAULT,
    REAL_BACKENDS,
    Both,
    Call,
    Fault,
    Machine,
    Side,
    Tokens,
    Wire,
    faults,
    run_machine,
)

ALL = 20_000
"""More rows than a machine writes."""
TIME_STEP = timedelta(milliseconds=1)
"""Between two failures. Azurite keeps microseconds, but compares times by milliseconds."""
PARTITIONS = ("0", 'ü%|=7C/\\#?"🚀')
LONG = "🚀" * 16_001
"""One character more than a property of a table holds."""

partitions = st.sampled_from(PARTITIONS)
texts = st.sampled_from(["", "text", 'quote " and \\ and \n\t\x01', "ü€🚀", "x" * 16_001, LONG])
bodies = st.sampled_from([None, b"", b"{}", bytes(range(256)) * 200, b"x" * 60_001])
recent = st.integers(0, 3)
"""Which of the answers so far: 0 is the latest one."""
numbers = st.one_of(st.none(), st.integers(-1, 60), st.just(2**63 - 1))
limits = st.sampled_from([1, 2, 3, 99, 100, 101, 1000])


@st.composite
def outcomes(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """What becomes of the events of a commit, one after the other."""
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "nothing": st.none(),
        "value": texts,
        "messages": st.lists(texts, min_size=1, max_size=3),
        "letter": bodies,
        "gap": st.sampled_from([1, 2, 10**6]),
    }
    chosen = draw(st.lists(st.sampled_from(list(kinds)), max_size=5))
    return [(kind, draw(kinds[kind])) for kind in chosen]


class Streams(Machine):
    """Two streams of a hub of their own."""

    errors = (AccountingBroken, CommitRefused, Fenced, StoreUnavailable)
    unavailable = StoreUnavailable
    lost_race = (CommitRefused,)

    def __init__(self, wire: Wire, backend: Callable[[AsyncExitStack], Backend]) -> None:
        self._backend = backend
        self.hub = f"hü-{uuid.uuid4().hex[:8]}"
        self.stream(PARTITIONS[0])
        self.saved: dict[Stream, list[Both[Saved]]] = {}
        self.messages: list[Both[StoredMessage]] = []
        self.letters: list[Both[StoredDeadLetter]] = []
        self.times = 0
        self.largest_is_due = True
        super().__init__(wire)

    async def open(self, stack: AsyncExitStack) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        backend = self._backend(stack)
        store = backend.store()
        if backend.kind != "tables":
            self.wire.through(backend.sql)
        self.limits: CommitLimits = store.limits
        twin = MemoryIngestionStore(self.clock, self.limits.rows_max)
        return (
            {"streams": twin, "retention": MemoryRetentionStore(twin)},
            {"streams": store, "retention": backend.retention(store)},
        )

    def stream(self, partition: str) -> Stream:
        """One that this step is about."""
        self.at = Stream("ns", self.hub, "$Default", partition)
        return self.at

    async def look(self, side: Side) -> tuple[Any, Tokens]:
        """At the stream of this step; at the other one before its own next step ends."""
        saved = await side.streams.load(self.at)
        outbox = await side.streams.outbox(self.at, ALL)
        letters = await side.streams.dead_letters(self.at, None, ALL)
        gaps = await side.streams.gaps(self.at, None, ALL)
        marks = await side.retention.marks(self.at)
        idle = await side.streams.idle_for(self.at) is not None
        plain = [(m.message, m.sequence, m.taken) for m in outbox]
        failed = [(s.stream, s.letter) for s in letters]
        tokens = {(self.at.partition_id, s.letter.sequence): s.version for s in letters}
        remembered = (saved.checkpoint, plain, failed, list(gaps), list(marks), idle)
        return remembered, {self.at.partition_id: saved.version, **tokens}

    # --- checkpoints and commits ---

    @initialize()
    def begin(self) -> None:
        """Whoever knows that a stream is new need not load it."""
        for partition in PARTITIONS:
            self.saved[self.stream(partition)] = [Both(*[Saved(None, NOW)] * 2)]

    @rule(partition=partitions, fault=faults())
    def load(self, partition: str, fault: Fault) -> None:
        stream = self.stream(partition)
        answer = self.step(lambda s: s.streams.load(stream), lambda saved: saved.checkpoint, fault)
        self._keep(stream, answer)

    @rule(
        partition=partitions,
        back=recent,
        made=outcomes(),
        epochs=st.sampled_from([-1, 0, 0, 0, 1, 2**33]),
        doubled=st.sampled_from(["", "", "", "letter", "gap", "outbox", "the same twice"]),
        fault=faults(),
    )
    def commit(
        self,
        partition: str,
        back: int,
        made: list[tuple[str, Any]],
        epochs: int,
        doubled: str,
        fault: Fault,
    ) -> None:
        stream = self.stream(partition)
        saved = self._recent(self.saved[stream], back)
        commit = self._commit(stream, saved.twin.checkpoint, made, epochs)
        self._committing(stream, saved, self._doubled(commit, stream, doubled), fault)

    @rule(partition=partitions, first=outcomes(), second=outcomes(), epochs=st.integers(0, 1))
    def two_writers_commit_at_the_same_time(
        self,
        partition: str,
        first: list[tuple[str, Any]],
        second: list[tuple[str, Any]],
        epochs: int,
    ) -> None:
        stream = self.stream(partition)
        saved = self.saved[stream][-1]
        ours = self._commit(stream, saved.twin.checkpoint, first, 0)
        theirs = self._commit(stream, saved.twin.checkpoint, second, epochs)
        self.race(_committing(stream, saved, ours), _committing(stream, saved, theirs), _checkpoint)
        self.load(partition, NO_FAULT)

    @precondition(lambda self: self.largest_is_due)
    @rule(partition=partitions, extra=st.integers(0, 1))
    def commit_as_many_rows_as_a_transaction_takes_or_one_more(
        self, partition: str, extra: int
    ) -> None:
        stream = self.stream(partition)
        self.load(partition, NO_FAULT)
        saved = self.saved[stream][-1]
        rows = self.limits.rows_max - 1 + extra
        commit = self._commit(stream, saved.twin.checkpoint, [("value", "v")] * rows, 0)
        self._committing(stream, saved, commit, NO_FAULT)
        self.largest_is_due = bool(extra)

    @rule(partition=partitions, size=st.sampled_from(["ascii", "other"]))
    def commit_the_largest_row(self, partition: str, size: str) -> None:
        """As large as ``plan_commits`` lets it be; nothing reads it back."""
        stream = self.stream(partition)
        saved = self.saved[stream][-1]
        value = "x" * 509_000 if size == "ascii" else "🚀" * 254_000
        commit = self._commit(stream, saved.twin.checkpoint, [("value", value)], 0)
        self._committing(stream, saved, commit, NO_FAULT)

    # --- the outbox ---

    @rule(partition=partitions, limit=limits, fault=faults())
    def read_the_outbox(self, partition: str, limit: int, fault: Fault) -> None:
        stream = self.stream(partition)
        found = self.step(
            lambda s: s.streams.outbox(stream, limit),
            lambda rows: [(r.message, r.sequence, r.taken) for r in rows],
            fault,
        )
        if found is not None:
            pairs = [Both(t, r) for t, r in zip(found.twin, found.real, strict=True)]
            assert all(self.is_as_long(p.twin.waited, p.real.waited) for p in pairs)
            self.messages += pairs

    @rule(partition=partitions, which=st.lists(recent, max_size=4, unique=True), fault=faults())
    def take(self, partition: str, which: list[int], fault: Fault) -> None:
        stream, found = self.stream(partition), self._messages(partition, which)
        self.step(lambda s: s.streams.take(stream, [m.of(s) for m in found]), fault=fault)

    @rule(partition=partitions, which=st.lists(recent, min_size=1, max_size=4, unique=True))
    def two_take_the_same_messages_at_the_same_time(self, partition: str, which: list[int]) -> None:
        stream, found = self.stream(partition), self._messages(partition, which)
        if found:
            taking: Call = lambda s: s.streams.take(stream, [m.of(s) for m in found])  # noqa: E731
            self.race(taking, taking)

    @rule(partition=partitions, which=st.lists(recent, max_size=4), fault=faults())
    def sent(self, partition: str, which: list[int], fault: Fault) -> None:
        """Some twice, some of them forgotten already."""
        stream, found = self.stream(partition), self._messages(partition, which)
        self.step(
            lambda s: s.streams.sent(stream, [m.of(s) for m in found]),
            fault=fault,
            repeatable=True,
        )

    # --- who is at work ---

    @rule(partition=partitions, fault=faults())
    def mark_at_work(self, partition: str, fault: Fault) -> None:
        stream = self.stream(partition)
        self.step(lambda s: s.streams.mark_at_work(stream), fault=fault, repeatable=True)

    @rule(partition=partitions)
    def two_are_at_work_at_the_same_time(self, partition: str) -> None:
        stream = self.stream(partition)
        self.race(*[lambda s: s.streams.mark_at_work(stream)] * 2)

    @rule(partition=partitions, fault=faults())
    def idle_for(self, partition: str, fault: Fault) -> None:
        stream = self.stream(partition)
        found = self.step(
            lambda s: s.streams.idle_for(stream), lambda idle: idle is not None, fault
        )
        if found is not None and found.twin is not None:
            assert self.is_as_long(found.twin, found.real)

    # --- dead letters and gaps ---

    @rule(
        partition=partitions,
        after=numbers,
        limit=limits,
        since=st.one_of(st.none(), st.integers(0, 60)),
        fault=faults(),
    )
    def read_dead_letters_and_gaps(
        self, partition: str, after: int | None, limit: int, since: int | None, fault: Fault
    ) -> None:
        stream = self.stream(partition)
        at = None if since is None else NOW + since * TIME_STEP
        self._keep_letters(
            self.step(lambda s: s.streams.dead_letters(stream, after, limit, at), _letters, fault)
        )
        self.step(lambda s: s.streams.gaps(stream, after, limit, at), list, fault)

    @rule(partition=partitions, limit=limits, fault=faults())
    def read_the_newest_dead_letters(self, partition: str, limit: int, fault: Fault) -> None:
        stream = self.stream(partition)
        self._keep_letters(
            self.step(lambda s: s.streams.newest_dead_letters(stream, limit), _letters, fault)
        )

    @rule(partition=partitions, sequence=st.integers(0, 60), fault=faults())
    def read_a_dead_letter(self, partition: str, sequence: int, fault: Fault) -> None:
        stream = self.stream(partition)
        self.step(
            lambda s: s.streams.dead_letter(stream, sequence), lambda f: f and f.letter, fault
        )

    @rule(
        back=recent,
        off=st.sampled_from([0, 0, 0, 1]),
        value=st.one_of(st.none(), texts),
        messages=st.sampled_from([0, 1, 3, 98, 99, 100]),
        fault=faults(),
    )
    def redrive(self, back: int, off: int, value: str | None, messages: int, fault: Fault) -> None:
        if not self.letters:
            return
        found = self._recent(self.letters, back)
        stream = self.stream(found.twin.stream.partition_id)
        sequence = found.twin.letter.sequence + off
        sent = [OutboxMessage(message_id(stream, sequence, n), "late") for n in range(messages)]
        effect = Effect(sequence, value, tuple(sent))
        self.step(lambda s: s.streams.redrive(found.of(s), effect), fault=fault)

    @rule(back=recent, fault=faults())
    def remove(self, back: int, fault: Fault) -> None:
        if not self.letters:
            return
        found = self._recent(self.letters, back)
        self.stream(found.twin.stream.partition_id)
        self.step(lambda s: s.streams.remove(found.of(s)), fault=fault)

    @rule(back=recent)
    def one_redrives_what_another_removes(self, back: int) -> None:
        if not self.letters:
            return
        found = self._recent(self.letters, back)
        self.stream(found.twin.stream.partition_id)
        effect = Effect(found.twin.letter.sequence, "late")
        self.race(
            lambda s: s.streams.redrive(found.of(s), effect),
            lambda s: s.streams.remove(found.of(s)),
        )

    @rule(fault=faults())
    def streams(self, fault: Fault) -> None:
        """Of a table also those whose first commit failed."""

        def ours(streams: Sequence[Stream]) -> list[Stream]:
            begun = {s for s, kept in self.saved.items() if kept[-1].twin.checkpoint is not None}
            return [s for s in streams if s.hub == self.hub and s in begun]

        self.step(lambda s: s.streams.streams(), ours, fault)

    # --- retention ---

    @rule(
        partition=partitions,
        at=st.integers(0, 4),
        sequence=st.sampled_from([0, 7, 2**40, 2**63 - 1]),
        fault=faults(),
    )
    def put_mark(self, partition: str, at: int, sequence: int, fault: Fault) -> None:
        stream, mark = self.stream(partition), Mark(NOW + at * timedelta.resolution, sequence)
        self.step(lambda s: s.retention.put_mark(stream, mark), fault=fault, repeatable=True)

    @rule(partition=partitions, at=st.integers(0, 4))
    def two_put_the_same_mark_at_the_same_time(self, partition: str, at: int) -> None:
        stream, mark = self.stream(partition), Mark(NOW + at * timedelta.resolution, 5)
        self.race(*[lambda s: s.retention.put_mark(stream, mark)] * 2)

    @rule(partition=partitions, which=st.lists(st.integers(0, 5), max_size=6), fault=faults())
    def remove_marks(self, partition: str, which: list[int], fault: Fault) -> None:
        """Some twice, some that are not there."""
        stream, marks = (
            self.stream(partition),
            [Mark(NOW + at * timedelta.resolution, 0) for at in which],
        )
        self.step(lambda s: s.retention.remove_marks(stream, marks), fault=fault, repeatable=True)

    @rule(
        partition=partitions,
        up_to=st.one_of(st.integers(-1, 60), st.just(2**63 - 1)),
        limit=st.sampled_from([1, 3, 100, ALL]),
    )
    def purge_effects(self, partition: str, up_to: int, limit: int) -> None:
        """No port shows effects, but each says how many it removed."""
        stream = self.stream(partition)
        self.step(lambda s: s.retention.purge_effects(stream, up_to, limit))

    # --- what the rules are made of ---

    def _recent(self, answers: Sequence[Any], back: int) -> Any:
        return answers[-1 - min(back, len(answers) - 1)]

    def _keep(self, stream: Stream, answer: Both[Saved] | None) -> None:
        if answer is not None:
            assert self.is_now(answer.real.read_at)
            self.saved[stream].append(answer)

    def _keep_letters(self, found: Both[Any] | None) -> None:
        if found is not None:
            pairs = zip(found.twin, found.real, strict=True)
            self.letters += [Both(twin, real) for twin, real in pairs]

    def _messages(self, partition: str, which: list[int]) -> list[Both[StoredMessage]]:
        stream = self.stream(partition)
        prefix = f"{stream.hub}:{stream.partition_id}:"
        found = [m for m in self.messages if m.twin.message.message_id.startswith(prefix)]
        by_key = {m.twin.key: m for m in found}
        latest = list(by_key.values())[::-1]
        return [latest[n] for n in which if n < len(latest)]

    def _committing(self, stream: Stream, saved: Both[Saved], commit: Commit, fault: Fault) -> None:
        self._keep(stream, self.step(_committing(stream, saved, commit), _checkpoint, fault))

    def _commit(
        self,
        stream: Stream,
        previous: Checkpoint | None,
        made: list[tuple[str, Any]],
        epochs: int,
    ) -> Commit:
        number = 0 if previous is None else previous.sequence + 1
        start, epoch = (0, 1) if previous is None else (previous.start, previous.epoch)
        effects: list[Effect] = []
        letters: list[DeadLetter] = []
        gaps: list[Gap] = []
        for kind, what in made:
            if kind == "letter":
                letters.append(replace(letter(number, b""), body=what, failed_at=self._time()))
            elif kind == "gap":
                gaps.append(replace(gap(number, number + what - 1), found_at=self._time()))
                number += what - 1
            else:
                effects.append(self._effect(stream, number, kind, what))
            number += 1
        after = replace(checkpoint(number - 1), start=start, epoch=max(epoch + epochs, 0))
        return Commit(previous, after, tuple(effects), tuple(letters), tuple(gaps))

    def _effect(self, stream: Stream, number: int, kind: str, what: Any) -> Effect:
        if kind != "messages":
            return Effect(number, what)
        sent = [OutboxMessage(message_id(stream, number, n), body) for n, body in enumerate(what)]
        return Effect(number, None, tuple(sent))

    def _doubled(self, commit: Commit, stream: Stream, what: str) -> Commit:
        """The commit, and a row that is there already or twice in the commit itself."""
        rows = self.twin.streams.rows[stream]
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
        """Another one each time, so that no dead letter is like one that is gone."""
        self.times += 1
        return NOW + self.times * TIME_STEP


def _checkpoint(saved: Saved) -> Checkpoint | None:
    return saved.checkpoint


def _letters(found: Sequence[StoredDeadLetter]) -> list[DeadLetter]:
    return [stored.letter for stored in found]


def _committing(stream: Stream, saved: Both[Saved], commit: Commit) -> Call:
    return lambda side: side.streams.commit(stream, saved.of(side), commit)


@pytest.mark.timeout(600)  # for a failure, which is made small before it is shown
@pytest.mark.filterwarnings("ignore:Sending a large body")
@pytest.mark.parametrize("kind", REAL_BACKENDS)
def test_a_store_of_streams_answers_as_its_twin_whatever_happens_to_its_calls(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Wire()
    wire.through_tables(monkeypatch)
    run_machine(lambda: Streams(wire, lambda stack: Backend(kind, request, stack)), examples=8)
