"""From events to outcomes: each in its own try, in order per partition key, keys side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain

from shared.ingestion.events.accounting import dead_letter
from shared.ingestion.events.failure_cause import Blame, Outages, blame
from shared.ingestion.events.ports import Handler
from shared.ingestion.lanes import Retrying, Together
from shared.ingestion.model import Effect, Event, FailureKind, Outcome


@dataclass(slots=True)
class Settled:
    """What became of events so far, by number; and the failures that hold the partition."""

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    held: dict[int, Exception] = field(default_factory=dict)
    begun: Event | None = None
    """The event that was handed to the handler last."""


async def settle(
    events: Sequence[Event],
    handle: Handler,
    retry: Retrying,
    together: Together,
    now: datetime,
    settled: Settled,
    outages: Outages = (),
) -> None:
    """Add the outcome of each event that has none to ``settled``.

    Events are taken as they come. Only once there is time for something else, because a handler
    waits, the rest is taken apart by partition key; events without a key are one lane of their
    own. Once a failure holds the partition no lane starts another event: what comes after it
    cannot be committed yet. ``outages``: see ``blame``.
    """
    known = settled.outcomes
    rest = iter([e for e in events if e.sequence not in known] if known else events)

    def lane_work(lane: Iterable[Event]) -> Callable[[], Awaitable[None]]:
        return lambda: _settle_lane(lane, handle, retry, now, settled, outages)

    def pieces() -> Iterator[Callable[[], Awaitable[None]]]:
        same_key: list[Event] = []  # as the event that is waited for, and after it
        yield lane_work(chain(rest, same_key))
        lanes: dict[str | None, list[Event]] = defaultdict(list)
        if settled.begun is not None:
            lanes[settled.begun.partition_key] = same_key
        for event in rest:
            lanes[event.partition_key].append(event)
        yield from [lane_work(lane) for lane in lanes.values() if lane is not same_key]

    await together(pieces())


async def _settle_lane(
    lane: Iterable[Event],
    handle: Handler,
    retry: Retrying,
    now: datetime,
    settled: Settled,
    outages: Outages,
) -> None:
    outcomes, held = settled.outcomes, settled.held
    for event in lane:
        if held:
            return
        settled.begun = event
        try:
            effect = await handle(event)
            if getattr(effect, "sequence", None) != event.sequence:
                raise _other(event, effect)
            outcomes[event.sequence] = effect
            continue
        except Exception as error:
            first = error
        # Not inside the handler above: whatever the next attempts raise would have this error as
        # its context, and be taken for an outage where this one was.
        await _after(first, event, handle, retry, now, settled, outages)


def _other(event: Event, found: object) -> Exception:
    if not isinstance(found, Effect):
        kind = type(found).__name__
        return TypeError(f"the handler gave a {kind}: Effect(event.sequence, …) is needed")
    return ValueError(f"the handler took {event.sequence} for {found.sequence}")


async def _after(
    first: Exception,
    event: Event,
    handle: Handler,
    retry: Retrying,
    now: datetime,
    settled: Settled,
    outages: Outages,
) -> None:
    """Go on after a failed attempt: what works at once, most events, costs nothing of this."""
    try:
        settled.outcomes[event.sequence] = await _settle_one(
            first, event, handle, retry, now, outages
        )
    except Exception as error:
        settled.held[event.sequence] = error


async def _settle_one(
    first: Exception,
    event: Event,
    handle: Handler,
    retry: Retrying,
    now: datetime,
    outages: Outages,
) -> Outcome:
    """The event's effect or dead letter. Raises what holds the partition."""
    attempts = 0

    async def attempt() -> Effect:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise first
        effect = await handle(event)
        if getattr(effect, "sequence", None) != event.sequence:
            raise _other(event, effect)
        return effect

    try:
        return await retry(attempt, lambda error: blame(error, outages).worth_retrying)
    except Exception as error:
        cause = blame(error, outages)
        if cause.holds:
            raise
        kind = FailureKind.EXHAUSTED if cause is Blame.CHANCE else FailureKind.POISON
        return dead_letter(event, kind, f"{type(error).__name__}: {error}", now, attempts)
