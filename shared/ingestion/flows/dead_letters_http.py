"""Dead letters over HTTP, for who has a key of the app: JSON only, and bounded."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Protocol

from shared.ingestion.errors import (
    DependencyDown,
    HubUnavailable,
    IngestionError,
    NotThere,
    StoreUnavailable,
)
from shared.ingestion.flows import dead_letter_view as view
from shared.ingestion.flows.dead_letters import Wanted, find, older_than, read
from shared.ingestion.flows.redrive import Done, Redriver, purge
from shared.ingestion.model import FailureKind, Stream
from shared.ingestion.ports import DeadLetterStore, HubReader, IngestionStore, StoredDeadLetter
from shared.ingestion.presenting import HEADERS

LIST_MAX = 200
TAKEN_UP_MAX = 100
"""In one request, which has to end before the host's patience does."""
BODY_BYTES_MAX = 4096
NUMBER = re.compile(r"\d{1,18}")
DAYS_MAX = 36_500


class Store(IngestionStore, DeadLetterStore, Protocol):
    """One class serves both ports."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request brings."""

    query: Mapping[str, str]
    partition_id: str = ""
    sequence: str = ""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: str
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=lambda: HEADERS)


class BadRequest(Exception):
    """What was asked makes no sense; the text says what would."""


@dataclass(frozen=True, slots=True)
class Desk:
    """Serves people at the dead letters. ``sent`` sends what redriving left in an outbox."""

    store: Store
    hub: HubReader
    redriver: Redriver
    sent: Callable[[Stream], Awaitable[None]]


async def listing(asked: Asked, desk: Desk) -> Answer:
    """So many of them; ``?partition=&kind=&limit=&after=``."""

    async def answer() -> Any:
        limit = _number(asked.query.get("limit", "100"), "limit", LIST_MAX)
        after = asked.query.get("after")
        start = _number(after, "after") if after else None
        return view.listed(await find(desk.store, _wanted(asked), limit, start), limit)

    return await _answered(answer)


async def show(asked: Asked, desk: Desk) -> Answer:
    """One, with its error and body."""

    async def answer() -> Any:
        return view.whole(*await read(desk.store, desk.hub, _one(asked)))

    return await _answered(answer)


async def redrive(asked: Asked, desk: Desk) -> Answer:
    """One into the pipeline again, exactly once."""

    async def answer() -> Any:
        letters = await find(desk.store, _one(asked), TAKEN_UP_MAX)
        if not letters:
            raise NotThere("no dead letter of this number")
        outcome = await desk.redriver.run(letters)
        for stream in {stored.stream for stored in outcome.done}:
            await desk.sent(stream)
        return view.done(outcome)

    return await _answered(answer)


async def purging(asked: Asked, desk: Desk) -> Answer:
    """Give up what failed so many days ago: ``{"older_than_days": 30}``, a hundred at a time."""

    async def answer() -> Any:
        days = _days(asked.body)
        letters = await _older(desk.store, _wanted(asked), timedelta(days=days))
        outcome = await purge(desk.store, letters) if letters else Done()
        return {**view.done(outcome), "more": len(letters) == TAKEN_UP_MAX}

    return await _answered(answer)


async def _older(store: Store, wanted: Wanted, age: timedelta) -> Sequence[StoredDeadLetter]:
    streams = await store.streams()
    if not streams:
        return ()
    before = await older_than(store, streams[0], age)
    return await find(store, replace(wanted, failed_before=before), TAKEN_UP_MAX)


async def _answered(answer: Callable[[], Awaitable[Any]]) -> Answer:
    try:
        return _json(200, await answer())
    except BadRequest as error:
        return _json(400, {"error": str(error)})
    except NotThere as error:
        return _json(404, {"error": str(error)})
    except (StoreUnavailable, HubUnavailable, DependencyDown) as error:
        return _json(503, {"error": f"{type(error).__name__}: {error}"})
    except IngestionError as error:
        return _json(500, {"error": f"{type(error).__name__}: {error}"})


def _json(status: int, value: Any) -> Answer:
    return Answer(status, json.dumps(value, indent=2))


def _wanted(asked: Asked) -> Wanted:
    kind = asked.query.get("kind")
    if kind and kind not in set(FailureKind):
        raise BadRequest(f"kind: one of {', '.join(FailureKind)} is needed")
    query = asked.query
    return Wanted(
        hub=query.get("hub"),
        consumer_group=query.get("group"),
        partition_id=query.get("partition"),
        kind=FailureKind(kind) if kind else None,
    )


def _one(asked: Asked) -> Wanted:
    number = _number(asked.sequence, "sequence")
    return replace(_wanted(asked), partition_id=asked.partition_id, sequence=number)


def _number(text: str, name: str, most: int | None = None) -> int:
    if not NUMBER.fullmatch(text) or (most is not None and not 0 < int(text) <= most):
        bounds = f"from 1 to {most}" if most else "from 0"
        raise BadRequest(f"{name}: a whole number {bounds} is needed")
    return int(text)


def _days(body: bytes) -> float:
    needed = f'{{"older_than_days": 30}} is needed, from 0 to {DAYS_MAX}'
    try:
        found = json.loads(body[: BODY_BYTES_MAX + 1])
        days = found["older_than_days"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadRequest(needed) from None
    if isinstance(days, bool) or not isinstance(days, int | float) or not 0 <= days <= DAYS_MAX:
        raise BadRequest(needed)
    return float(days)
