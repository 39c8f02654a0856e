"""The HTTP endpoints of the dead letters. Requests and replies are JSON and bounded in size."""

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
from shared.web.http import Refused, Reply, Request, error_reply, json_reply

LIST_MAX = 200
LETTERS_PER_REQUEST_MAX = 100
"""The most dead letters of one request, so that it ends before the host's time limit."""
NUMBER = re.compile(r"\d{1,18}")
DAYS_MAX = 36_500


class Store(CheckpointReader, DeadLetterStore, Protocol):
    """The checkpoints and the dead letters, which one adapter class implements."""


@dataclass(frozen=True, slots=True)
class DeadLetterService:
    """The parts that the endpoints need. ``send_outbox`` sends the messages that a redrive left in
    the outbox.
    """

    store: Store
    hub: HubReader
    redriver: Redriver
    send_outbox: Callable[[Sequence[StoredDeadLetter]], Awaitable[None]]


Action = Callable[[Request, DeadLetterService], Awaitable[Any]]


def _answering(action: Action) -> Callable[[Request, DeadLetterService], Awaitable[Reply]]:
    """Turn the action into an endpoint, which returns its result or error as a reply."""

    async def reply(request: Request, service: DeadLetterService) -> Reply:
        try:
            return json_reply(await action(request, service))
        except Refused as error:
            return error_reply(error)
        except NotFound as error:
            return json_reply({"error": str(error)}, 404)
        except (StoreUnavailable, HubUnavailable, DependencyDown) as error:
            return json_reply({"error": f"{type(error).__name__}: {error}"}, 503)
        except IngestionError as error:
            return json_reply({"error": f"{type(error).__name__}: {error}"}, 500)

    return reply


@_answering
async def list_letters(request: Request, service: DeadLetterService) -> Any:
    """The dead letters that match ``?partition=&kind=&limit=&after=``."""
    limit = _number(request.query.get("limit", "100"), "limit", LIST_MAX)
    after = request.query.get("after")
    start = _number(after, "after") if after else None
    return view.letters_page(await find(service.store, _query(request), limit, start), limit)


@_answering
async def show(request: Request, service: DeadLetterService) -> Any:
    """One dead letter, with its error and body."""
    return view.letter_with_body(*await read(service.store, service.hub, _one(request)))


@_answering
async def redrive(request: Request, service: DeadLetterService) -> Any:
    """Redrive one dead letter. Concurrent requests redrive it only once."""
    letters = await find(service.store, _one(request), LETTERS_PER_REQUEST_MAX)
    if not letters:
        raise NotFound("there is no dead letter with this sequence number")
    outcome = await service.redriver.run(letters)
    await service.send_outbox(outcome.done)
    return view.result(outcome)


@_answering
async def purge_older(request: Request, service: DeadLetterService) -> Any:
    """Delete dead letters older than ``{"older_than_days": 30}``, at most 100 per request."""
    days = _days(request)
    letters = await _older(service.store, _query(request), timedelta(days=days))
    outcome = await purge(service.store, letters) if letters else DeadLetterResult()
    return {**view.result(outcome), "more": len(letters) == LETTERS_PER_REQUEST_MAX}


async def _older(
    store: Store, query: DeadLetterQuery, age: timedelta
) -> Sequence[StoredDeadLetter]:
    streams = await store.streams()
    if not streams:
        return ()
    before = await older_than(store, streams[0], age)
    return await find(store, replace(query, failed_before=before), LETTERS_PER_REQUEST_MAX)


def _query(request: Request) -> DeadLetterQuery:
    kind = request.query.get("kind")
    if kind and kind not in set(FailureKind):
        raise Refused(400, f"kind: must be one of {', '.join(FailureKind)}")
    query = request.query
    return DeadLetterQuery(
        hub=query.get("hub"),
        consumer_group=query.get("group"),
        partition_id=query.get("partition"),
        kind=FailureKind(kind) if kind else None,
    )


def _one(request: Request) -> DeadLetterQuery:
    number = _number(request.route.get("sequence", ""), "sequence")
    return replace(_query(request), partition_id=request.route.get("partition"), sequence=number)


def _number(text: str, name: str, most: int | None = None) -> int:
    if not NUMBER.fullmatch(text) or (most is not None and not 0 < int(text) <= most):
        bounds = f"from 1 to {most}" if most else "from 0"
        raise Refused(400, f"{name}: must be a whole number {bounds}")
    return int(text)


def _days(request: Request) -> float:
    days = request.fields().get("older_than_days")
    if isinstance(days, bool) or not isinstance(days, int | float) or not 0 <= days <= DAYS_MAX:
        raise Refused(400, f'older_than_days: send {{"older_than_days": 30}}, 0 to {DAYS_MAX} days')
    return float(days)
