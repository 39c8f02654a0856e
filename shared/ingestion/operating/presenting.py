"""Dead letters and accounts as plain values for JSON, for people and pages. Pure.

Times are ISO 8601 text in UTC. A body is text where it is printable UTF-8, else base64.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from shared.ingestion.dead_letters.ports import StoredDeadLetter
from shared.ingestion.dead_letters.redrive import DeadLetterResult
from shared.ingestion.events.replay import Replayed
from shared.ingestion.model import Event, Gap
from shared.ingestion.operating.stream_account import StreamAccount

Shown = dict[str, Any]
LAYOUT = "\n\r\t"


def letters_page(letters: Sequence[StoredDeadLetter], limit: int) -> Shown:
    """``more`` says that there may be others behind the last one."""
    return {"dead_letters": [letter(stored) for stored in letters], "more": len(letters) == limit}


def letter(stored: StoredDeadLetter) -> Shown:
    found = stored.letter
    return {
        **_place(stored),
        "offset": found.offset,
        "enqueued_at": _stamp(found.enqueued_at),
        "failed_at": _stamp(found.failed_at),
        "kind": str(found.kind),
        "error": found.error,
        "attempts": found.attempts,
        "partition_key": found.partition_key,
        "body_bytes": None if found.body is None else len(found.body),
    }


def letter_with_body(stored: StoredDeadLetter, event: Event) -> Shown:
    """With its body, of which the hub may have had what the store has not."""
    text = printable(event.body)
    body = {"text": text} if text is not None else {"base64": base64.b64encode(event.body).decode()}
    return {**letter(stored), "body_bytes": len(event.body), "body": body}


def result(outcome: DeadLetterResult) -> Shown:
    return {
        "done": [_place(stored) for stored in outcome.done],
        "gone": [_place(stored) for stored in outcome.gone],
        "failed": [{**_place(stored), "error": why} for stored, why in outcome.failed],
    }


def accounts(found: Sequence[StreamAccount]) -> Shown:
    return {"streams": [_account(each) for each in found]}


def _account(found: StreamAccount) -> Shown:
    """``first`` and ``last``: numbers that have an outcome; None where none has."""
    at = found.checkpoint
    return {
        **found.stream.names,
        "first": at.start if at else None,
        "last": at.sequence if at else None,
        "enqueued_at": _stamp(at.enqueued_at) if at else None,
        "epoch": at.epoch if at else None,
        "owner": at.owner if at else None,
        "gone": sum(gap.count for gap in found.gaps),
        "gaps": [_gap(gap) for gap in found.gaps],
    }


def replayed(outcome: Replayed) -> Shown:
    checkpoint = outcome.checkpoint
    return {
        **outcome.stream.names,
        "first": outcome.first,
        "last": checkpoint.sequence if checkpoint else None,
        "until": outcome.last,
        "effects": outcome.effects,
        "dead_letters": outcome.dead_letters,
        "gaps": [_gap(gap) for gap in outcome.gaps],
    }


def _gap(gap: Gap) -> Shown:
    found_at = _stamp(gap.found_at)
    return {"first": gap.first, "last": gap.last, "found_at": found_at, "reason": gap.reason}


def printable(body: bytes) -> str | None:
    """The body as text; None where a screen would not show it as it is."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if all(c.isprintable() or c in LAYOUT for c in text) else None


def _place(stored: StoredDeadLetter) -> Shown:
    return {**stored.stream.names, "sequence": stored.letter.sequence}


def _stamp(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
