"""Turns dead letters and stream accounts into values of JSON. Times are ISO 8601 in UTC."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, NotRequired, TypedDict

from shared.ingestion.dead_letters.redrive import DeadLetterResult
from shared.ingestion.events.replay import ReplayProgress
from shared.ingestion.model import Event, FailureKind, Gap
from shared.ingestion.operating.stream_account import StreamAccount
from shared.ingestion.store.events import StoredDeadLetter
from shared.values.text import TimeText, odd_character, shown

Shown = dict[str, Any]
LAYOUT = "\n\r\t"


class DeadLetterPlace(TypedDict):
    """The partition and the number of the event that failed."""

    namespace: str
    hub: str
    consumer_group: str
    partition_id: str
    sequence: int


class DeadLetterSummary(DeadLetterPlace):
    """An event that failed. ``body_bytes`` is null if only the event hub has the body."""

    offset: str
    enqueued_at: TimeText
    failed_at: TimeText
    kind: FailureKind
    error: str
    attempts: int
    partition_key: str | None
    body_bytes: int | None


class DeadLetterPage(TypedDict):
    """Dead letters. ``more`` is true if there may be others after the last one."""

    dead_letters: list[DeadLetterSummary]
    more: bool


class DeadLetterBody(TypedDict):
    """The body of an event: as text if it is printable UTF-8, otherwise in base64."""

    text: NotRequired[str]
    base64: NotRequired[str]


class DeadLetterWithBody(DeadLetterSummary):
    """An event that failed, with its body."""

    body: DeadLetterBody


class DeadLetterFailure(DeadLetterPlace):
    """A dead letter that stays, with the reason."""

    error: str


class DeadLetterOutcome(TypedDict):
    """What was done with dead letters. ``gone`` were removed by another caller first."""

    done: list[DeadLetterPlace]
    gone: list[DeadLetterPlace]
    failed: list[DeadLetterFailure]


class PurgeOutcome(DeadLetterOutcome):
    """The deleted dead letters. If ``more`` is true, repeat the request."""

    more: bool


def letters_page(letters: Sequence[StoredDeadLetter], limit: int) -> DeadLetterPage:
    return {"dead_letters": [letter(stored) for stored in letters], "more": len(letters) == limit}


def letter(stored: StoredDeadLetter) -> DeadLetterSummary:
    found, body = stored.letter, stored.letter.body
    size = None if body is None else len(body)
    # The store's clock may show only the second.
    found = replace(found, failed_at=max(found.failed_at, found.enqueued_at))
    return shown(DeadLetterSummary, found, _stamp, **stored.stream.names, body_bytes=size)


def letter_with_body(stored: StoredDeadLetter, event: Event) -> DeadLetterWithBody:
    """A dead letter with its body, which may come from the hub."""
    text = printable(event.body)
    body: DeadLetterBody = {"base64": base64.b64encode(event.body).decode()}
    if text is not None:
        body = {"text": text}
    return {**letter(stored), "body_bytes": len(event.body), "body": body}


def result(outcome: DeadLetterResult) -> DeadLetterOutcome:
    return {
        "done": [_place(stored) for stored in outcome.done],
        "gone": [_place(stored) for stored in outcome.gone],
        "failed": [{**_place(stored), "error": error} for stored, error in outcome.failed],
    }


def accounts(streams: Sequence[StreamAccount]) -> Shown:
    return {"streams": [_account(stream) for stream in streams]}


def _account(account: StreamAccount) -> Shown:
    """``first`` and ``last`` are the range of events that have an outcome."""
    at = account.checkpoint
    return {
        **account.stream.names,
        "first": at.start if at else None,
        "last": at.sequence if at else None,
        "enqueued_at": _stamp(at.enqueued_at) if at else None,
        "epoch": at.epoch if at else None,
        "owner": at.owner if at else None,
        "set_aside": at.set_aside if at else None,
        "gone": sum(gap.count for gap in account.gaps if gap.is_loss),
        "gaps": [_gap(gap) for gap in account.gaps],
    }


def replayed(outcome: ReplayProgress) -> Shown:
    checkpoint = outcome.checkpoint
    return {
        **outcome.stream.names,
        "first": outcome.first,
        "last": checkpoint.sequence if checkpoint else None,
        "until": outcome.last,
        "effects": outcome.effects,
        "set_aside": checkpoint.set_aside if checkpoint else 0,
        "dead_letters": outcome.dead_letters,
        "gaps": [_gap(gap) for gap in outcome.gaps],
    }


def _gap(gap: Gap) -> Shown:
    return {**asdict(gap), "found_at": _stamp(gap.found_at), "lost": gap.is_loss}


def printable(body: bytes) -> str | None:
    """The body as text; None if a screen cannot show it faithfully."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if all(c in LAYOUT or not odd_character(c) for c in text) else None


def _place(stored: StoredDeadLetter) -> DeadLetterPlace:
    return shown(DeadLetterPlace, stored.letter, _stamp, **stored.stream.names)


def _stamp(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
