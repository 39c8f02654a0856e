"""How events are handled: what a user declares, and how events become outcomes. Events with the
same partition key are handled in order; an event that fails does not stop the others."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any, cast

from shared.ingestion.errors import HandlerTimedOut, MessageTooLarge
from shared.ingestion.events.accounting import dead_letter
from shared.ingestion.failure_cause import FailureCause, classify, is_worth_retrying
from shared.ingestion.model import LONG_AGO, DeadLetter, Effect, Event, FailureKind, Outcome, Stream
from shared.ingestion.ports import Handler
from shared.values.concurrency import Retrying, TaskRunner
from shared.values.text import told

HANGING_MAX = 3
"""After so many calls of a batch have taken too long, no further event of it is started."""

PROBES_MAX = 3
"""After an event in doubt has failed so many probes, it is at fault if no other event fails."""

HandlerOf = Callable[[Stream], Handler]
"""Creates the handler for the events of one partition."""


@dataclass(frozen=True, slots=True)
class Handling:
    """How events are handled. ``write_in_transaction`` gets an SQLAlchemy connection, the stream,
    and the effects of a commit, whose transaction its rows join; it must neither commit nor roll
    back. If it raises, the commit is divided until the effect at fault is found. ``tables`` is a
    ``MetaData`` with the tables to create if they are missing."""

    handler_of: HandlerOf
    write_in_transaction: Callable[[Any, Stream, Sequence[Effect]], None] | None = None
    tables: Any = None

    @property
    def needs_database(self) -> bool:
        return self.write_in_transaction is not None or self.tables is not None


def handling_of(named: object) -> Handling:
    """The Handling that a setting names, itself or by its ``handler_of``. Raises TypeError."""
    if isinstance(named, Handling):
        _check_callable("handler_of", named.handler_of)
        if named.write_in_transaction is not None:
            _check_callable("write_in_transaction", named.write_in_transaction)
        if named.tables is not None and not hasattr(named.tables, "create_all"):
            kind = type(named.tables).__name__
            raise TypeError(f"tables is a {kind}; it must be a MetaData of SQLAlchemy")
        return named
    if callable(named):
        return Handling(cast(HandlerOf, named))
    kind = type(named).__name__
    raise TypeError(f"it is a {kind}; it must be a Handling, or a function that takes a Stream")


def _check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a function")


def limited(handle: Handler, seconds: float) -> Handler:
    """The handler, with a time limit for calls. One that blocks the event loop goes on."""

    async def handle_in_time(event: Event) -> Effect:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await handle(event)
        except Exception as error:
            if not limit.expired():
                raise
            raise HandlerTimedOut(f"the call took longer than {seconds:g} s") from error

    return handle_in_time


# --- events in doubt --------------------------------------------------------------------------
#
# An event that failed for an unknown reason may be at fault, or a dependency may be down. It is at
# fault if it fails, another call succeeds, and it fails again. Until then it holds its partition.


@dataclass(frozen=True, slots=True)
class Doubt:
    """An event, the store's time of its first failure, and how many probes it has failed."""

    sequence: int
    since: datetime
    probes: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What shows that an event is at fault if it fails again: ``succeeded`` counts this process's
    successful calls, some call succeeded after ``at_fault`` failed, and ``last_probe`` is at fault
    unless others fail too and none succeeds."""

    succeeded: Callable[[], int]
    at_fault: int | None = None
    last_probe: int | None = None


def doubted(doubt: Doubt | None, sequence: int, since: datetime, *, probing: bool) -> Doubt:
    """The doubt after another failure of the event that holds the partition."""
    if doubt is None or doubt.sequence != sequence:
        doubt = Doubt(sequence, since)
    return Doubt(sequence, doubt.since, doubt.probes + probing)


def evidence(
    doubt: Doubt | None, succeeded: Callable[[], int], *, others_succeeded: bool, probing: bool
) -> Evidence:
    """What is known before an event in doubt is tried again."""
    if doubt is None:
        return Evidence(succeeded)
    is_last = probing and doubt.probes + 1 >= PROBES_MAX
    return Evidence(
        succeeded,
        doubt.sequence if others_succeeded else None,
        doubt.sequence if is_last else None,
    )


# --- a batch ----------------------------------------------------------------------------------


@dataclass(slots=True)
class BatchHandling:
    """Handles the events of one batch, and remembers their outcomes by number. Without
    ``evidence`` no event is in doubt."""

    call: Handler
    retry: Retrying
    run_tasks: TaskRunner
    evidence: Evidence | None = None
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    held: dict[int, Exception] = field(default_factory=dict)
    doubtful: dict[int, Exception] = field(default_factory=dict)
    """The events in doubt, with their last errors."""
    attempts: Counter[int] = field(default_factory=Counter)
    first_failed: dict[int, int] = field(default_factory=dict)
    """For each event that failed, how many calls had succeeded by then."""
    begun: Event | None = None
    now: datetime = LONG_AGO

    async def handle(self, events: Sequence[Event], now: datetime) -> None:
        """Handle the events that have no outcome yet: one after the other until a handler waits,
        then in a lane for each partition key. Once a failure holds the partition, no event is
        started. Events in doubt are tried again if others succeed; if none is left, one that
        succeeded earlier is called again."""
        self.now = now
        self.held.clear()
        while True:
            self.doubtful.clear()
            await self.run_tasks(self.lanes(events))
            if self.held or not self.doubtful:
                break
            judged = any(map(self.is_at_fault, self.doubtful))
            if not judged and not await self.one_succeeds_again(events):
                break
        if self.evidence and [*self.doubtful, *self.held] == [self.evidence.last_probe]:
            self.doubtful.clear()  # no other event failed
        for sequence, error in self.doubtful.items():
            self.outcomes.pop(sequence, None)
            self.held[sequence] = error

    def lanes(self, events: Sequence[Event]) -> Iterator[Callable[[], Awaitable[None]]]:
        outcomes = self.outcomes
        rest = iter([e for e in events if e.sequence not in outcomes] if outcomes else events)
        same_key: list[Event] = []  # later events with the key of the event in progress
        yield partial(self.lane, chain(rest, same_key))
        lanes: dict[str | None, list[Event]] = defaultdict(list)
        if self.begun is not None:
            lanes[self.begun.partition_key] = same_key
        for event in rest:
            lanes[event.partition_key].append(event)
        yield from [partial(self.lane, e) for e in lanes.values() if e is not same_key]

    async def lane(self, events: Iterable[Event]) -> None:
        """Handle events one after the other, until a failure holds the partition."""
        outcomes = self.outcomes
        for event in events:
            if self.held or (self.doubtful and self.too_many_hang()):
                return
            self.begun = event
            if event.unreadable:
                kind = FailureKind.NOT_BYTES
                outcomes[event.sequence] = dead_letter(event, kind, event.unreadable, self.now)
                continue
            try:
                outcomes[event.sequence] = await self._effect(event)
                continue
            except Exception as error:
                first = error
            # The retries run outside the except block. Otherwise the first error would be the
            # context of each error that they raise. If the first error was an outage, the later
            # errors would then count as outages, too.
            try:
                outcome = await self._retried(first, event)
            except Exception as error:
                self.held[event.sequence] = error
                return
            if outcome is not None:
                outcomes[event.sequence] = outcome
            elif event.partition_key is not None:
                return

    async def _effect(self, event: Event) -> Effect:
        effect = await self.call(event)
        if getattr(effect, "sequence", None) != event.sequence:
            raise _wrong_result(event, effect)
        return effect

    async def _retried(self, first: Exception, event: Event) -> Outcome | None:
        """The outcome after a failed attempt; None: in doubt. Raises to hold the partition."""
        sequence = event.sequence
        self.first_failed.setdefault(sequence, self._succeeded)
        was_at_fault = is_at_fault = self.is_at_fault(sequence)
        unraised: Exception | None = first

        async def attempt() -> Effect:
            nonlocal is_at_fault, unraised
            self.attempts[sequence] += 1
            if unraised is not None:
                error, unraised = unraised, None
                raise error
            is_at_fault = self.is_at_fault(sequence)
            return await self._effect(event)

        def is_worth_it(error: Exception) -> bool:
            holds = classify(error).holds_partition
            return is_worth_retrying(error) and (holds or not was_at_fault)

        try:
            return await self.retry(attempt, is_worth_it)
        except Exception as error:
            if classify(error).holds_partition:
                raise
            return self._judged(event, error, is_at_fault=is_at_fault)

    def _judged(self, event: Event, error: Exception, *, is_at_fault: bool) -> DeadLetter | None:
        """The dead letter of an event whose attempts failed; None if the event is in doubt."""
        attempts, text = self.attempts[event.sequence], told(error)
        if classify(error) is FailureCause.EVENT:
            is_large = isinstance(error, MessageTooLarge)
            kind = FailureKind.TOO_LARGE if is_large else FailureKind.POISON
            return dead_letter(event, kind, text, self.now, attempts)
        letter = dead_letter(event, FailureKind.EXHAUSTED, text, self.now, attempts)
        if is_at_fault or self.evidence is None:
            return letter
        self.doubtful[event.sequence] = error
        return letter if self.evidence.last_probe in self.doubtful else None

    async def one_succeeds_again(self, events: Sequence[Event]) -> bool:
        """Whether the call for an event of another key that succeeded earlier succeeds again."""
        keys = {e.partition_key for e in events if e.sequence in self.doubtful} - {None}
        for event in reversed(events):
            is_effect = isinstance(self.outcomes.get(event.sequence), Effect)
            if is_effect and event.partition_key not in keys:
                with suppress(Exception):
                    await self.call(event)
                    return True
                return False
        return False

    def too_many_hang(self) -> bool:
        """Whether so many calls took too long that more of them would only cost time."""
        errors = self.doubtful.values()
        return len([each for each in errors if isinstance(each, HandlerTimedOut)]) >= HANGING_MAX

    @property
    def _succeeded(self) -> int:
        return self.evidence.succeeded() if self.evidence else 0

    def is_at_fault(self, sequence: int) -> bool:
        """Whether another call has succeeded since the event failed first."""
        at_fault = self.evidence is not None and self.evidence.at_fault == sequence
        return at_fault or self._succeeded > self.first_failed[sequence]


def _wrong_result(event: Event, result: object) -> Exception:
    if not isinstance(result, Effect):
        kind = type(result).__name__
        return TypeError(f"the handler returned a {kind}; it must return Effect(event.sequence, …)")
    return ValueError(
        f"the handler returned an Effect of event {result.sequence} for event {event.sequence}; "
        "pass event.sequence to Effect"
    )
