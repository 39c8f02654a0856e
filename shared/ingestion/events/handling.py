"""How events are handled: what a user declares, and the way from events to outcomes.

The setting ``IngestionHandler`` names a handler of your own as ``module:name``, for the trigger,
for redriving dead letters and for ``python -m shared run``, where ``--handler`` overrides it.

Each event is handled in its own try, in order per partition key, several keys at a time.
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
"""Makes what the events of one partition are handled with."""


@dataclass(frozen=True, slots=True)
class Handling:
    """How events are handled, and which tables of your own take part in their transaction.

    ``take_part`` is called with a connection of SQLAlchemy, the stream and a commit's effects. It
    writes into tables of the same database: what it writes and the checkpoint are committed
    together or not at all. It neither commits nor rolls back, and whatever it raises undoes the
    transaction and holds the partition. ``tables`` is a ``MetaData`` of SQLAlchemy with the tables
    that are to be created where they are missing.
    """

    handler_of: HandlerOf
    take_part: Callable[[Any, Stream, Sequence[Effect]], None] | None = None
    tables: Any = None

    @property
    def needs_database(self) -> bool:
        return self.take_part is not None or self.tables is not None


def handling_of(found: object) -> Handling:
    """What a name leads to: a Handling, or a plain ``HandlerOf``. Raises TypeError."""
    if isinstance(found, Handling):
        _check_callable("handler_of", found.handler_of)
        if found.take_part is not None:
            _check_callable("take_part", found.take_part)
        if found.tables is not None and not hasattr(found.tables, "create_all"):
            kind = type(found.tables).__name__
            raise TypeError(f"tables is a {kind}: a MetaData of SQLAlchemy is needed")
        return found
    if callable(found):
        return Handling(found)
    kind = type(found).__name__
    raise TypeError(f"it is a {kind}: a Handling, or a function that takes a Stream, is needed")


def _check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise TypeError(f"{name} is a {type(value).__name__}: a function is needed")


@dataclass(slots=True)
class BatchOutcomes:
    """What became of events so far, by number; and the failures that hold the partition."""

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    held: dict[int, Exception] = field(default_factory=dict)
    begun: Event | None = None
    """The event that was handed to the handler last."""


async def handle_events(
    events: Sequence[Event],
    handle: Handler,
    retry: Retrying,
    run_tasks: TaskRunner,
    now: datetime,
    settled: BatchOutcomes,
    outages: Outages = (),
) -> None:
    """Add the outcome of each event that has none to ``settled``.

    Events are taken as they come. Only once there is time for something else, because a handler
    waits, the rest is taken apart by partition key; events without a key are one lane of their
    own. Once a failure holds the partition no lane starts another event: what comes after it
    cannot be committed yet. ``outages``: see ``classify``.
    """
    known = settled.outcomes
    rest = iter([e for e in events if e.sequence not in known] if known else events)
    handling = _EventHandling(handle, retry, now, settled, outages)

    def pieces() -> Iterator[Callable[[], Awaitable[None]]]:
        same_key: list[Event] = []  # as the event that is waited for, and after it
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
    """How the events of one batch are handled, and what became of them."""

    handle: Handler
    retry: Retrying
    now: datetime
    settled: BatchOutcomes
    outages: Outages

    async def lane(self, events: Iterable[Event]) -> None:
        """One event after the other, up to a failure that holds the partition."""
        handle, outcomes, held = self.handle, self.settled.outcomes, self.settled.held
        for event in events:
            if held:
                return
            self.settled.begun = event
            try:
                effect = await handle(event)
                if getattr(effect, "sequence", None) != event.sequence:
                    raise _other(event, effect)
                outcomes[event.sequence] = effect
                continue
            except Exception as error:
                first = error
            # Not inside the handler above: whatever the next attempts raise would have this error
            # as its context, and be taken for an outage where this one was.
            try:
                outcomes[event.sequence] = await self._retried(first, event)
            except Exception as error:
                held[event.sequence] = error

    async def _retried(self, first: Exception, event: Event) -> Outcome:
        """The event's effect or dead letter after a failed attempt; what works at once, most
        events, costs nothing of this. Raises what holds the partition."""
        attempts = 0

        async def attempt() -> Effect:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise first
            effect = await self.handle(event)
            if getattr(effect, "sequence", None) != event.sequence:
                raise _other(event, effect)
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


def _other(event: Event, found: object) -> Exception:
    if not isinstance(found, Effect):
        kind = type(found).__name__
        return TypeError(f"the handler gave a {kind}: Effect(event.sequence, …) is needed")
    return ValueError(f"the handler took {event.sequence} for {found.sequence}")
