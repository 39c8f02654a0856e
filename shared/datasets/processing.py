"""One message per data set and period, however many observations ask for it.

Every observation schedules the same message, with the same id. The queue that takes it in detects
duplicates when they are sent, not when they fall due, so that the first one survives; it forwards
it, when due, to the working queue, whose sessions never let a data set be processed twice at once.

Observations that come after that ask for one more message, likewise one for all of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from shared.datasets.errors import UnreadableMessage
from shared.datasets.periods import DUPLICATE_WINDOW_MAX, EPOCH, TIME_MAX, Period
from shared.messaging.model import Message
from shared.values.text import shown

SCHEMA_VERSION = 1
LATE_MAX = 10**9 - 1
"""More stretches of a minute than there have been since 1970."""

DATASET_LENGTH_MAX = 80
"""Characters, so that a message id of 128 holds a data set, a period, and which one it is of
those for late data."""


@dataclass(frozen=True, slots=True)
class DatasetWork:
    """A data set to process for one period. ``label`` is the period's name, see Period.

    ``late`` is 0 for the first processing, and otherwise counts those for late data, see Turn.
    """

    dataset: str
    label: str
    start: datetime
    end: datetime
    late: int = 0

    @property
    def turn_label(self) -> str:
        """What is processed once: a period, or a period again because of late data."""
        return f"{self.label}:late-{self.late}" if self.late else self.label

    @property
    def message_id(self) -> str:
        return f"{self.dataset}:{self.turn_label}"


def schedule_processing(
    dataset: str, period: Period, now: datetime, observed_at: datetime | None = None
) -> Message:
    """The message that has the data set processed once the period of the observation is over.

    ``observed_at`` is ``now`` where it is left out. Where the processing has begun already the
    message asks for the next one, see Period. Raises ValueError for a data set's name that no id
    can hold.
    """
    if not 1 <= len(dataset) <= DATASET_LENGTH_MAX:
        raise ValueError(f"data set {dataset!r}: 1 to {DATASET_LENGTH_MAX} characters")
    start = period.start(observed_at or now)
    turn = period.turn(start, now)
    work = DatasetWork(dataset, period.label(start), start, start + period.length, turn.late)
    return processing_message(work, work.message_id, turn.due)


def processing_message(work: DatasetWork, message_id: str, due: datetime) -> Message:
    """The message that has the work done when it is due."""
    return Message(
        body=encode_work(work),
        message_id=message_id,
        session_id=work.dataset,
        content_type="application/json",
        subject="process-dataset",
        scheduled_at=due,
    )


def encode_work(work: DatasetWork) -> bytes:
    fields = {
        "schema_version": SCHEMA_VERSION,
        "dataset": work.dataset,
        "label": work.label,
        "start": _text(work.start),
        "end": _text(work.end),
        "late": work.late,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_work(body: bytes | str) -> DatasetWork:
    """Raises UnreadableMessage, which names the field and what it holds."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableMessage(f"work: not JSON ({error})") from error
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    if type(version) is not int or version != SCHEMA_VERSION:
        raise UnreadableMessage(f"work: a JSON object of schema_version {SCHEMA_VERSION} is needed")
    dataset, label = (_named(fields, name) for name in ("dataset", "label"))
    start, end = (_time(fields, name) for name in ("start", "end"))
    if start >= end:
        raise UnreadableMessage(f"work: ends at {_text(end)}, before it starts at {_text(start)}")
    if end - start > DUPLICATE_WINDOW_MAX:
        raise UnreadableMessage(
            f"work: from {_text(start)} to {_text(end)} is longer than any period"
        )
    return DatasetWork(dataset, label, start, end, _count(fields, "late"))


def _text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _named(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= DATASET_LENGTH_MAX:
        raise UnreadableMessage(
            f"work: {name} is {shown(value)}, 1 to {DATASET_LENGTH_MAX} characters are needed"
        )
    return value


def _count(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name, 0)
    if type(value) is not int or not 0 <= value <= LATE_MAX:
        raise UnreadableMessage(
            f"work: {name} is {shown(value)}, a number from 0 to {LATE_MAX} is needed"
        )
    return value


def _time(fields: dict[str, Any], name: str) -> datetime:
    try:
        time = datetime.fromisoformat(fields[name])
        if time.tzinfo is not None and EPOCH <= time <= TIME_MAX:
            return time.astimezone(UTC)
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    raise UnreadableMessage(
        f"work: {name} is {shown(fields.get(name))}, a time with a zone is needed"
    )
