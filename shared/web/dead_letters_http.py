"""The HTTP endpoints of the dead letters. Requests and replies are JSON and bounded in size."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
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
from shared.web.endpoint import BODY_REFUSED, Endpoint, replies
from shared.web.fields import Choice, Number, Text, Whole, in_body, in_path, in_query
from shared.web.http import Refused, Reply, Request, error_reply, in_time, json_reply

LETTERS_PER_REQUEST_MAX = 100
"""The most dead letters of one request, so that it ends before the host's time limit."""
SEQUENCE_MAX = 10**18 - 1

HUB = Text("hub", "only this hub")
GROUP = Text("group", "only this consumer group; `GROUP~NAME` for the dead letters of a replay")
KIND = Choice("kind", "only this kind of failure", tuple(FailureKind))
OF_PARTITION = Text("partition", "only this partition")
LIMIT = Whole("limit", "the most dead letters", 1, 200, default=100)
AFTER = Whole("after", "only sequence numbers above this one", 0, SEQUENCE_MAX)
OF_ONE = (HUB, GROUP, KIND)
OF_MANY = (OF_PARTITION, *OF_ONE)
OF_PAGE = (*OF_MANY, LIMIT, AFTER)

PARTITION = Text("partition", "the partition", required=True)
SEQUENCE = Whole("sequence", "the sequence number of the event", 0, SEQUENCE_MAX, required=True)
PLACE = (PARTITION, SEQUENCE)

OLDER = Number("older_than_days", "only dead letters older than this", 0, 36_500, required=True)


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


def _answering(
    action: Action, change: str = ""
) -> Callable[[Request, DeadLetterService], Awaitable[Reply]]:
    """Turn the action into an endpoint, which returns its result or error as a reply. ``change`` is
    what the action may have done when it ends without an answer.
    """

    async def reply(request: Request, service: DeadLetterService) -> Reply:
        try:
            return json_reply(await in_time(action(request, service), change))
        except Refused as error:
            return error_reply(error)
        except NotFound as error:
            return json_reply({"error": str(error)}, 404)
        except TimeoutError as error:
            return json_reply({"error": str(error)}, 503)
        except (StoreUnavailable, HubUnavailable, DependencyDown) as error:
            return json_reply({"error": f"{type(error).__name__}: {error}"}, 503)
        except IngestionError as error:
            return json_reply({"error": f"{type(error).__name__}: {error}"}, 500)

    return reply


@_answering
async def list_letters(request: Request, service: DeadLetterService) -> view.DeadLetterPage:
    """The dead letters that match the query."""
    given = in_query(request, OF_PAGE)
    limit, after = given[LIMIT.name], given[AFTER.name]
    return view.letters_page(await find(service.store, _query(given), limit, after), limit)


@_answering
async def show(request: Request, service: DeadLetterService) -> view.DeadLetterWithBody:
    """One dead letter, with its error and body."""
    return view.letter_with_body(*await read(service.store, service.hub, _one(request)))


@partial(_answering, change="the event was processed; look whether the dead letter is still there")
async def redrive(request: Request, service: DeadLetterService) -> view.DeadLetterOutcome:
    """Redrive one dead letter. Of concurrent requests, only one records its outcome."""
    letters = await find(service.store, _one(request), LETTERS_PER_REQUEST_MAX)
    if not letters:
        raise NotFound("there is no dead letter with this sequence number")
    outcome = await service.redriver.run(letters)
    await service.send_outbox(outcome.done)
    return view.result(outcome)


@partial(_answering, change="dead letters were deleted; repeat the request")
async def purge_older(request: Request, service: DeadLetterService) -> view.PurgeOutcome:
    """Delete dead letters older than ``{"older_than_days": 30}``, at most 100 per request."""
    days = in_body(request, (OLDER,))[OLDER.name]
    query = _query(in_query(request, OF_MANY))
    letters = await _older(service.store, query, timedelta(days=days))
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


def _query(given: Mapping[str, Any]) -> DeadLetterQuery:
    return DeadLetterQuery(
        hub=given[HUB.name],
        consumer_group=given[GROUP.name],
        partition_id=given.get(OF_PARTITION.name),
        kind=FailureKind(kind) if (kind := given[KIND.name]) else None,
    )


def _one(request: Request) -> DeadLetterQuery:
    partition, sequence = in_path(request, PARTITION), in_path(request, SEQUENCE)
    query = _query(in_query(request, OF_ONE))
    return replace(query, partition_id=partition, sequence=sequence, without_replays=True)


ENDPOINTS = (
    Endpoint(
        "dead_letters",
        replies(view.DeadLetterPage, 400, 500, 503),
        in_query=OF_PAGE,
    ),
    Endpoint(
        "dead_letter",
        replies(view.DeadLetterWithBody, 400, 404, 500, 503),
        in_path=PLACE,
        in_query=OF_ONE,
    ),
    Endpoint(
        "dead_letter_redrive",
        replies(view.DeadLetterOutcome, 400, 404, 500, 503),
        in_path=PLACE,
        in_query=OF_ONE,
    ),
    Endpoint(
        "dead_letters_purge",
        replies(view.PurgeOutcome, 400, *BODY_REFUSED, 500, 503),
        in_query=OF_MANY,
        in_body=(OLDER,),
        body_example={OLDER.name: 30},
    ),
)
