"""Converts the results of ingestion to rows of the table ``Ingestion`` and back. No I/O.

The PartitionKey is the stream, so that one transaction can hold a commit. RowKeys in their order:
``!checkpoint``, ``!working`` (the time of this row is when an instance last worked on the stream),
``dead|<number>``, ``effect|<number>``, ``gap|<first number>``, ``mark|<microseconds since 1970>``,
``outbox|<number>|<index>``. Numbers are sequence numbers of events. The partition ``!streams`` has
a row for each stream. ``store_errors`` translates the errors of the client.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from azure.core.exceptions import AzureError, HttpResponseError

from shared.adapters.azure.refusals import TEXT_LENGTH_MAX
from shared.adapters.tables.table import (
    Row,
    bytes_fields,
    bytes_of,
    joined,
    number_of,
    text_fields,
    text_of,
    time_of,
    whole,
)
from shared.ingestion.breaker.breaker import LONG_AGO
from shared.ingestion.errors import AccountingBroken, RowRefused, RowUnreadable, StoreUnavailable
from shared.ingestion.events.ports import StoredMessage
from shared.ingestion.model import (
    Checkpoint,
    Commit,
    DeadLetter,
    Effect,
    FailureKind,
    Gap,
    Mark,
    OutboxMessage,
    Stream,
)
from shared.values.text import one_line

CHECKPOINT = "!checkpoint"
WORKING = "!working"
STREAMS = "!streams"
DEAD, EFFECT, GAP, MARK, OUTBOX = "dead", "effect", "gap", "mark", "outbox"
REASON_LENGTH_MAX = 300
DIGITS = 19
"""The number of digits of the largest 64-bit number. Numbers in keys are padded to it, so that they
sort correctly.
"""
NOT_RETRYABLE = (400, 413)
"""HTTP statuses of a request that is malformed or too large. A retry would not help."""

log = logging.getLogger(__name__)


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Raises the client's errors as StoreUnavailable, or as RowRefused if a retry is useless, or as
    AccountingBroken for a row that occurs twice.

    ``what`` begins the message: the stream, table or row concerned.
    """
    try:
        yield
    except HttpResponseError as error:
        if error.status_code in NOT_RETRYABLE:
            is_twice = getattr(error, "error_code", "") == "InvalidDuplicateRow"
            refusal = AccountingBroken if is_twice else RowRefused
            raise refusal(f"{what}: {one_line(error.message)}") from error
        raise StoreUnavailable(f"{what}: {one_line(error.message, TEXT_LENGTH_MAX)}") from error
    except (AzureError, OSError) as error:
        raise StoreUnavailable(f"{what}: {one_line(error)}") from error


def partition_key(stream: Stream) -> str:
    return joined(*stream.names.values())


def numbered(kind: str, sequence: int) -> str:
    return f"{kind}|{max(sequence, 0):0{DIGITS}d}"


def end_of(kind: str) -> str:
    """A key that sorts after all keys of a kind and before those of the next one."""
    return f"{kind}}}"


def commit_rows(stream: Stream, commit: Commit) -> Iterator[Row]:
    """All rows of a commit except the checkpoint."""
    key = partition_key(stream)
    for effect in commit.effects:
        yield from effect_rows(key, effect)
    for letter in commit.dead_letters:
        yield letter_row(key, letter)
    for gap in commit.gaps:
        yield _gap_row(key, gap)


# --- streams ----------------------------------------------------------------------------------


def stream_row(stream: Stream) -> Row:
    return {"PartitionKey": STREAMS, "RowKey": partition_key(stream), **stream.names}


def stream_of(row: Mapping[str, Any]) -> Stream | None:
    """The stream of a row. None if the row cannot be read; the stream is then not listed."""
    try:
        return Stream(row["namespace"], row["hub"], row["consumer_group"], row["partition_id"])
    except (KeyError, TypeError, ValueError) as error:
        log.warning("[stream_unreadable] %s", unreadable(row, error))
        return None


# --- checkpoint -------------------------------------------------------------------------------


def checkpoint_row(stream: Stream, checkpoint: Checkpoint) -> Row:
    return {
        "PartitionKey": partition_key(stream),
        "RowKey": CHECKPOINT,
        "start": whole(checkpoint.start),
        "sequence": whole(checkpoint.sequence),
        "offset": checkpoint.offset,
        "enqueued_at": checkpoint.enqueued_at,
        "epoch": whole(checkpoint.epoch),
        "owner": checkpoint.owner,
        "txid": checkpoint.txid,
        "set_aside": whole(checkpoint.set_aside),
    }


def checkpoint_of(row: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint of a row. Raises RowUnreadable, because without a checkpoint it is unknown
    which events are accounted for."""
    try:
        return Checkpoint(
            start=number_of(row["start"]),
            sequence=number_of(row["sequence"]),
            offset=row["offset"],
            enqueued_at=time_of(row["enqueued_at"]),
            epoch=number_of(row["epoch"]),
            owner=row["owner"],
            txid=row["txid"],
            set_aside=number_of(row.get("set_aside", 0)),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        advice = "deploy the version that wrote it, or correct the row"
        raise RowUnreadable(f"{unreadable(row, error)}; {advice}") from error


# --- effects and their messages ---------------------------------------------------------------


def effect_rows(key: str, effect: Effect) -> Iterator[Row]:
    """One row for the value, if the effect has one, and one for each message."""
    if effect.value is not None:
        row_key = numbered(EFFECT, effect.sequence)
        yield {"PartitionKey": key, "RowKey": row_key, **text_fields("value", effect.value)}
    start = numbered(OUTBOX, effect.sequence)
    for index, message in enumerate(effect.messages):
        yield {
            "PartitionKey": key,
            "RowKey": f"{start}|{index:04d}",
            "message_id": message.message_id,
            **text_fields("body", message.body),
        }


def message_of(row: Any, now: datetime) -> StoredMessage | None:
    """The message of an outbox row. None if the row cannot be read, so that later messages are
    still sent.

    The message's age is the time since the row's ``Timestamp``, which the service sets on each
    write.
    """
    try:
        return StoredMessage(
            OutboxMessage(row["message_id"], text_of(row, "body") or ""),
            row["RowKey"],
            int(row["RowKey"].split("|")[1]),
            number_of(row.get("taken", 0)),
            now - time_of(row.metadata["timestamp"]),
            row.metadata["etag"],
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        advice = "deploy the version that wrote it, or correct or delete the row"
        log.error("[message_unreadable] %s; %s", unreadable(row, error), advice)
        return None


def taken_row(key: str, stored: StoredMessage) -> Row:
    """The properties of a message's row that change when an instance takes the message over."""
    return {"PartitionKey": key, "RowKey": stored.key, "taken": stored.taken + 1}


# --- dead letters -----------------------------------------------------------------------------


def letter_row(key: str, letter: DeadLetter) -> Row:
    row = {
        "PartitionKey": key,
        "RowKey": numbered(DEAD, letter.sequence),
        "sequence": whole(letter.sequence),
        "offset": letter.offset,
        "enqueued_at": letter.enqueued_at,
        "failed_at": letter.failed_at,
        "kind": str(letter.kind),
        "attempts": letter.attempts,
        **text_fields("error", letter.error),
        **bytes_fields("body", letter.body),
    }
    if letter.partition_key is not None:
        row["partition_key"] = letter.partition_key
    return row


def letter_of(row: Any) -> DeadLetter:
    """The dead letter of a row. Its kind is ``unreadable`` if the row cannot be read."""
    try:
        return DeadLetter(
            sequence=number_of(row["sequence"]),
            offset=row["offset"],
            enqueued_at=time_of(row["enqueued_at"]),
            failed_at=time_of(row["failed_at"]),
            kind=FailureKind(row["kind"]),
            error=text_of(row, "error") or "",
            attempts=row["attempts"],
            partition_key=row.get("partition_key"),
            body=bytes_of(row, "body"),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return _unreadable_letter(row, unreadable(row, error))


def _unreadable_letter(row: Any, reason: str) -> DeadLetter:
    """A dead letter with the fields that are known: its number, and when it failed or was
    written."""
    attempts = row.get("attempts")
    return DeadLetter(
        sequence=_number_in(row),
        offset=str(row.get("offset", "")),
        enqueued_at=_time_in(row, "enqueued_at"),
        failed_at=_time_in(row, "failed_at"),
        kind=FailureKind.UNREADABLE,
        error=reason,
        attempts=attempts if isinstance(attempts, int) else 1,
    )


def _time_in(row: Any, name: str) -> datetime:
    at = row.get(name)
    return time_of(at if isinstance(at, datetime) else row.metadata["timestamp"])


def _number_in(row: Mapping[str, Any]) -> int:
    digits = str(row["RowKey"]).split("|")[1]
    return int(digits) if digits.isdecimal() else 0


def unreadable(row: Mapping[str, Any], error: Exception) -> str:
    reason = f"{type(error).__name__}: {error}"[:REASON_LENGTH_MAX]
    place = f"{row['PartitionKey']}/{row['RowKey']}"
    return f"row {place!r} of table Ingestion cannot be read ({reason})"


# --- gaps -------------------------------------------------------------------------------------


def _gap_row(key: str, gap: Gap) -> Row:
    return {
        "PartitionKey": key,
        "RowKey": numbered(GAP, gap.first),
        "first": whole(gap.first),
        "last": whole(gap.last),
        "found_at": gap.found_at,
        "reason": gap.reason,
    }


def gap_of(row: Any) -> Gap:
    """The gap of a row. If the row cannot be read, the gap has only its first number, and the
    reason.
    """
    try:
        found_at = time_of(row["found_at"])
        return Gap(number_of(row["first"]), number_of(row["last"]), found_at, row["reason"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        first, written_at = _number_in(row), time_of(row.metadata["timestamp"])
        return Gap(first, first, written_at, unreadable(row, error))


# --- marks ------------------------------------------------------------------------------------


def mark_row(stream: Stream, mark: Mark) -> Row:
    microseconds = (mark.at - LONG_AGO) // timedelta(microseconds=1)
    return {
        "PartitionKey": partition_key(stream),
        "RowKey": numbered(MARK, microseconds),
        "at": mark.at,
        "sequence": whole(mark.sequence),
    }


def mark_of(row: Mapping[str, Any]) -> Mark:
    """The mark of a row. Raises RowUnreadable, because a mark that is left out could not be
    deleted, and nobody would learn of it."""
    try:
        return Mark(time_of(row["at"]), number_of(row["sequence"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        advice = "delete the row: old effects are then removed later"
        raise RowUnreadable(f"{unreadable(row, error)}; {advice}") from error
