"""Dead letters over HTTP, for who has a key of the app: JSON only, and bounded."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol

from shared.ingestion.dead_letters.find import DeadLetterQuery, find, older_than, read
from shared.ingestion.dead_letters.ports import DeadLetterStore, StoredDeadLetter
from shared.ingestion.dead_letters.redrive import DeadLetterResult, Redriver, purge
from shared.ingestion.errors import (
    DependencyDown,
    HubUnavailable,
    IngestionError,
    NotFound,
    StoreUnavailable,
)
from shared.ingestion.events.ports import CheckpointReader, HubReader
from shared.ingestion.model import FailureKind
from shared.ingestion.operating import presenting as view
from shared.web.http import Refused, Reply, Request, refused, shown

LIST_MAX = 200
TAKEN_UP_MAX = 100
"""In one request, which has to end before the host's patience does."""
NUMBER = re.compile(r"\d{1,18}")
DAYS_MAX = 36_500


class Store(CheckpointReader, DeadLetterStore, Protocol):
    """One class serves both ports."""


@dataclass(frozen=True, slots=True)
class DeadLetterService:
    """Serves people at the dead letters. ``sent`` sends what redriving left in an outbox."""

    store: Store
    hub: HubReader
    redriver: Redriver
    sent: Callable[[Sequence[StoredDeadLetter]], Awaitable[None]]


Action = Callable[[Request, DeadLetterService], Awaitable[Any]]


def _answering(action: Action) -> Callable[[Request, DeadLetterService], Awaitable[Reply]]:
    """What the action gives, as a reply; so is what it raises."""

    async def reply(request: Request, service: DeadLetterService) -> Reply:
        try:
            return shown(await action(request, service))
        except Refused as error:
            return refused(error)
        except NotFound as error:
            return shown({"error": str(error)}, 404)
        except (StoreUnavailable, HubUnavailable, DependencyDown) as error:
            return shown({"error": f"{type(error).__name__}: {error}"}, 503)
        except IngestionError as error:
            return shown({"error": f"{type(error).__name__}: {error}"}, 500)

    return reply


@_answering
async def list_letters(request: Request, service: DeadLetterService) -> Any:
    """So many of them; ``?partition=&kind=&limit=&after=``."""
    limit = _number(request.query.get("limit", "100"), "limit", LIST_MAX)
    after = request.query.get("after")
    start = _number(after, "after") if after else None
    return view.letters_page(await find(service.store, _wanted(request), limit, start), limit)


@_answering
async def show(request: Request, service: DeadLetterService) -> Any:
    """One, with its error and body."""
    return view.letter_with_body(*await read(service.store, service.hub, _one(request)))


@_answering
async def redrive(request: Request, service: DeadLetterService) -> Any:
    """One into the pipeline again, exactly once."""
    letters = await find(service.store, _one(request), TAKEN_UP_MAX)
    if not letters:
        raise NotFound("no dead letter of this number")
    outcome = await service.redriver.run(letters)
    await service.sent(outcome.done)
    return view.result(outcome)


@_answering
async def purge_older(request: Request, service: DeadLetterService) -> Any:
    """Give up what failed so many days ago: ``{"older_than_days": 30}``, a hundred at a time."""
    days = _days(request)
    letters = await _older(service.store, _wanted(request), timedelta(days=days))
    outcome = await purge(service.store, letters) if letters else DeadLetterResult()
    return {**view.result(outcome), "more": len(letters) == TAKEN_UP_MAX}


async def _older(
    store: Store, wanted: DeadLetterQuery, age: timedelta
) -> Sequence[StoredDeadLetter]:
    streams = await store.streams()
    if not streams:
        return ()
    before = await older_than(store, streams[0], age)
    return await find(store, replace(wanted, failed_before=before), TAKEN_UP_MAX)


def _wanted(request: Request) -> DeadLetterQuery:
    kind = request.query.get("kind")
    if kind and kind not in set(FailureKind):
        raise Refused(400, f"kind: one of {', '.join(FailureKind)} is needed")
    query = request.query
    return DeadLetterQuery(
        hub=query.get("hub"),
        consumer_group=query.get("group"),
        partition_id=query.get("partition"),
        kind=FailureKind(kind) if kind else None,
    )


def _one(request: Request) -> DeadLetterQuery:
    number = _number(request.route.get("sequence", ""), "sequence")
    return replace(_wanted(request), partition_id=request.route.get("partition"), sequence=number)


def _number(text: str, name: str, most: int | None = None) -> int:
    if not NUMBER.fullmatch(text) or (most is not None and not 0 < int(text) <= most):
        bounds = f"from 1 to {most}" if most else "from 0"
        raise Refused(400, f"{name}: a whole number {bounds} is needed")
    return int(text)


def _days(request: Request) -> float:
    days = request.fields().get("older_than_days")
    if isinstance(days, bool) or not isinstance(days, int | float) or not 0 <= days <= DAYS_MAX:
        raise Refused(400, f'{{"older_than_days": 30}} is needed, from 0 to {DAYS_MAX}')
    return float(days)
