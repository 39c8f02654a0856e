"""How events are handled: what a user declares, and how events become outcomes.

The setting ``IngestionHandler`` names a user's own handler as ``module:name``. That handler is used
by the trigger, for redriving dead letters, and by ``python -m shared run``, where ``--handler``
overrides the setting.

An event that fails does not stop the others. Events with the same partition key are handled in
order; events with different keys may be handled concurrently.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any

from shared.ingestion.concurrency import Retrying, TaskRunner
from shared.ingestion.events.accounting import dead_letter
from shared.ingestion.events.failure_cause import FailureCause, Outages, classify
from shared.ingestion.events.ports import Handler
from shared.ingestion.model import Effect, Event, FailureKind, Outcome, Stream

HandlerOf = Callable[[Stream], Handler]
"""Creates the handler for the events of one partition."""


@dataclass(frozen=True, slots=True)
class Handling:
    """How events are handled, and which tables of the user's own are written with each commit.

    ``write_in_transaction`` is called with an SQLAlchemy connection, the stream, and the effects of
    a commit. It writes to tables of the same database, so that its rows and the checkpoint are
    committed together or not at all. It must neither commit nor roll back. If it raises an
    exception, the transaction is rolled back and the partition is held. ``tables`` is an SQLAlchemy
    ``MetaData`` with the tables to create if they are missing.
    """

    handler_of: HandlerOf
    write_in_transaction: Callable[[Any, Stream, Sequence[Effect]], None] | None = None
    tables: Any = None

    @property
    def needs_database(self) -> bool:
        return self.write_in_transaction is not None or self.tables is not None


def handling_of(named: object) -> Handling:
    """Turn what a name refers to into a Handling: it must be a Handling or a ``HandlerOf``
    function. Raises TypeError."""
    if isinstance(named, Handling):
        _check_callable("handler_of", named.handler_of)
        if named.write_in_transaction is not None:
            _check_callable("write_in_transaction", named.write_in_transaction)
        if named.tables is not None and not hasattr(named.tables, "create_all"):
            kind = type(named.tables).__name__
            raise TypeError(f"tables is a {kind}; it must be a MetaData of SQLAlchemy")
        return named
    if callable(named):
        return Handling(named)
    kind = type(named).__name__
    raise TypeError(f"it is a {kind}; it must be a Handling, or a function that takes a Stream")


def _check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a function")


@dataclass(slots=True)
class BatchOutcomes:
    """The outcomes of the events handled so far, by sequence number, and the failures that hold the
    partition.
    """

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    held: dict[int, Exception] = field(default_factory=dict)
    begun: Event | None = None
    """The event that was passed to the handler last."""


async def handle_events(
    events: Sequence[Event],
    handle: Handler,
    retry: Retrying,
    run_tasks: TaskRunner,
    now: datetime,
    settled: BatchOutcomes,
    outages: Outages = (),
) -> None:
    """Add the outcome of each event that has none yet to ``settled``.

    Events are handled one after the other until a handler waits for something. Only then are the
    remaining events grouped by partition key, into lanes that run concurrently; events without a
    key share one lane. Once a failure holds the partition, no lane starts another event, because
    later events cannot be committed yet. ``classify`` explains ``outages``.
    """
    outcomes = settled.outcomes
    rest = iter([e for e in events if e.sequence not in outcomes] if outcomes else events)
    handling = _EventHandling(handle, retry, now, settled, outages)

    def pieces() -> Iterator[Callable[[], Awaitable[None]]]:
        same_key: list[Event] = []  # later events with the key of the event in progress
        yield partial(handling.lane, chain(rest, same_key))
        lanes: dict[str | None, list[Event]] = defaultdict(list)
        if settled.begun is not None:
            lanes[settled.begun.partition_key] = same_key
        for event in rest:
            lanes[event.partition_key].append(event)
        yield from [partial(handling.lane, e) for e in lanes.values() if e is not same_key]

    await run_tasks(pieces())


@dataclass(frozen=True, slots=True)
class _EventHandling:
    """Handles the events of one batch and records their outcomes."""

    handle: Handler
    retry: Retrying
    now: datetime
    settled: BatchOutcomes
    outages: Outages

    async def lane(self, events: Iterable[Event]) -> None:
        """Handle events one after the other, until a failure holds the partition."""
        handle, outcomes, held = self.handle, self.settled.outcomes, self.settled.held
        for event in events:
            if held:
                return
            self.settled.begun = event
            if event.unreadable:
                kind = FailureKind.NOT_BYTES
                outcomes[event.sequence] = dead_letter(event, kind, event.unreadable, self.now)
                continue
            try:
                effect = await handle(event)
                if getattr(effect, "sequence", None) != event.sequence:
                    raise _wrong_result(event, effect)
                outcomes[event.sequence] = effect
                continue
            except Exception as error:
                first = error
            # The retries run outside the except block. Otherwise the first error would be the
            # context of each error that they raise. If the first error was an outage, the later
            # errors would then count as outages, too.
            try:
                outcomes[event.sequence] = await self._retried(first, event)
            except Exception as error:
                held[event.sequence] = error

    async def _retried(self, first: Exception, event: Event) -> Outcome:
        """The event's effect or dead letter after a failed first attempt.

        Events that succeed at once, which are most of them, never get here. Raises an error that
        holds the partition.
        """
        attempts = 0

        async def attempt() -> Effect:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise first
            effect = await self.handle(event)
            if getattr(effect, "sequence", None) != event.sequence:
                raise _wrong_result(event, effect)
            return effect

        try:
            return await self.retry(attempt, lambda e: classify(e, self.outages).is_retryable)
        except Exception as error:
            cause = classify(error, self.outages)
            if cause.holds_partition:
                raise
            exhausted = cause is FailureCause.TRANSIENT
            kind = FailureKind.EXHAUSTED if exhausted else FailureKind.POISON
            return dead_letter(event, kind, f"{type(error).__name__}: {error}", self.now, attempts)


def _wrong_result(event: Event, result: object) -> Exception:
    if not isinstance(result, Effect):
        kind = type(result).__name__
        return TypeError(f"the handler returned a {kind}; it must return Effect(event.sequence, …)")
    return ValueError(
        f"the handler returned an Effect of event {result.sequence} for event {event.sequence}; "
        "pass event.sequence to Effect"
    )
