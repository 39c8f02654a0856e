"""The operations on dead letters. Requests and replies are JSON and bounded in size."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta

from pydantic import ConfigDict, Field

from shared.ingestion.dead_letters.find import DeadLetterQuery, find, older_than, read
from shared.ingestion.dead_letters.redrive import DeadLetterResult, Redriver, purge
from shared.ingestion.errors import NO_LETTER, NotFound
from shared.ingestion.model import FailureKind
from shared.ingestion.operating import presenting as view
from shared.web.given import Given, Line
from shared.web.http import Request, author
from shared.web.operation import operation

log = logging.getLogger(__name__)

LETTERS_PER_REQUEST_MAX = 100
"""The most dead letters of one request, so that it ends before the host's time limit."""
SEQUENCE_MAX = 10**18 - 1
BY = "who does it, for the log, unless a person is signed in"
OF_GROUP = "only this consumer group; `GROUP~NAME` for the dead letters of a replay"


class OfOne(Given):
    hub: Line | None = Field(None, description="only this hub")
    group: Line | None = Field(None, description=OF_GROUP)
    kind: FailureKind | None = Field(None, strict=False, description="only this kind of failure")

    @property
    def wanted(self) -> DeadLetterQuery:
        return DeadLetterQuery(self.hub, self.group, kind=self.kind)


class OfMany(OfOne):
    partition: Line | None = Field(None, description="only this partition")

    @property
    def wanted(self) -> DeadLetterQuery:
        return replace(super().wanted, partition_id=self.partition)


class OfPage(OfMany):
    limit: int = Field(100, ge=1, le=200, description="the most dead letters")
    after: int | None = Field(
        None, ge=0, le=SEQUENCE_MAX, description="only sequence numbers above this one"
    )


class ByPerson(OfOne):
    by: Line | None = Field(None, description=BY)


class Place(Given):
    partition: Line = Field(description="the partition")
    sequence: int = Field(ge=0, le=SEQUENCE_MAX, description="the sequence number of the event")

    def among(self, query: OfOne) -> DeadLetterQuery:
        return replace(
            query.wanted,
            partition_id=self.partition,
            sequence=self.sequence,
            without_replays=True,
        )


class Older(Given):
    model_config = ConfigDict(json_schema_extra={"example": {"older_than_days": 30}})

    older_than_days: float = Field(ge=0, le=36_500, description="only dead letters older than this")
    limit: int = Field(
        LETTERS_PER_REQUEST_MAX, ge=1, le=LETTERS_PER_REQUEST_MAX, description="the most"
    )
    by: Line | None = Field(None, description=BY)


@operation("GET", "dead-letters", 500)
async def dead_letters(redriver: Redriver, query: OfPage) -> view.DeadLetterPage:
    """The dead letters, for a caller who has a key of the app."""
    letters = await find(redriver.store, query.wanted, query.limit, query.after)
    return view.letters_page(letters, query.limit)


@operation("GET", "dead-letters/{partition}/{sequence}", 404, 500)
async def dead_letter(redriver: Redriver, path: Place, query: OfOne) -> view.DeadLetterWithBody:
    """One dead letter, with its error and body."""
    return view.letter_with_body(*await read(redriver.store, redriver.hub, path.among(query)))


@operation(
    "POST",
    "dead-letters/{partition}/{sequence}/redrive",
    404,
    500,
    change="the event was processed; look whether the dead letter is still there",
)
async def dead_letter_redrive(
    redriver: Redriver, path: Place, query: ByPerson, request: Request
) -> view.DeadLetterOutcome:
    """Process one dead letter again. Of concurrent requests, only one records its outcome."""
    letters = await find(redriver.store, path.among(query), LETTERS_PER_REQUEST_MAX)
    if not letters:
        raise NotFound(NO_LETTER)
    outcome = await redriver.redrive(letters)
    _log("redriven", f"event {path.sequence} of {path.partition}", outcome, request, query.by)
    return view.result(outcome)


@operation(
    "POST", "dead-letters/purge", 500, change="dead letters were deleted; repeat the request"
)
async def dead_letters_purge(
    redriver: Redriver, query: OfMany, body: Older, request: Request
) -> view.PurgeOutcome:
    """Delete up to ``limit`` dead letters that are older than a given age. If ``more`` is true in
    the reply, repeat the request.
    """
    before = await older_than(redriver.store, timedelta(days=body.older_than_days))
    wanted = replace(query.wanted, failed_before=before)
    letters = await find(redriver.store, wanted, body.limit)
    outcome = await purge(redriver.store, letters) if letters else DeadLetterResult()
    _log("purged", f"older than {body.older_than_days:g} days", outcome, request, body.by)
    return {**view.result(outcome), "more": len(letters) == body.limit}


def _log(
    what: str, which: str, outcome: DeadLetterResult, request: Request, by: str | None
) -> None:
    text = "[dead_letters_%s] %s done, %s failed, %s, by %s"
    counts = (len(outcome.done), len(outcome.failed))
    log.warning(text, what, *counts, which, author(request, by) or "a caller without a name")


OPERATIONS = (dead_letters, dead_letter, dead_letter_redrive, dead_letters_purge)
