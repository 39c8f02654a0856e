"""Schedules one message per data set and period, however many observations (such as new blobs)
there are.

Each observation sends a message with the same id, and the queue keeps the first. When it is due, it
is forwarded to the working queue, whose sessions prevent a data set from being processed twice at
once. All observations that arrive after the processing together cause one more message.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from shared.trends.datasets.errors import UnreadableMessage
from shared.trends.datasets.periods import DUPLICATE_WINDOW_MAX, EPOCH, TIME_MAX, Period
from shared.values.bounds import Bounds
from shared.values.messages import Message
from shared.values.text import zoned_time

SCHEMA_VERSION = 1
LATE_MAX = 10**9 - 1
"""The highest number of a round: more than the minutes since 1970."""

DATASET_LENGTH_MAX = 80
"""A message id of 128 characters must hold the data set's name, a period, and the round."""


@dataclass(frozen=True, slots=True)
class DatasetWork:
    """A data set to process for one period. ``label`` is the period's name, see ``Period.label``.

    ``late`` is the number of the round, see ``Period.next_round``.
    """

    dataset: str
    label: str
    start: datetime
    end: datetime
    late: int = 0

    @property
    def round_label(self) -> str:
        return f"{self.label}:late-{self.late}" if self.late else self.label

    @property
    def message_id(self) -> str:
        return f"{self.dataset}:{self.round_label}"


def schedule_processing(
    dataset: str, period: Period, now: datetime, observed_at: datetime | None = None
) -> Message:
    """The message that starts the next processing of the period of the observation, or of ``now``.
    A data set's name has up to 63 characters, like that of any container.
    """
    start = period.start(observed_at or now)
    late, due = period.next_round(start, now)
    work = DatasetWork(dataset, period.label(start), start, start + period.length, late)
    return Message(
        body=encode_work(work),
        message_id=work.message_id,
        session_id=dataset,
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
    """Parse a message. Raises UnreadableMessage, which names the field and its value."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableMessage(f"work: it is not JSON ({error})") from error
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    if type(version) is not int or version != SCHEMA_VERSION:
        raise UnreadableMessage(
            f"work: it must be a JSON object with schema_version {SCHEMA_VERSION}"
        )
    dataset, label = (_named(fields, name) for name in ("dataset", "label"))
    start, end = (_time(fields, name) for name in ("start", "end"))
    if start >= end:
        raise UnreadableMessage(
            f"work: end is {_text(end)}; it must be after start, which is {_text(start)}"
        )
    if end - start > DUPLICATE_WINDOW_MAX:
        raise UnreadableMessage(
            f"work: {_text(start)} to {_text(end)} is longer than any period; a period has at most "
            f"{DUPLICATE_WINDOW_MAX.days} days"
        )
    return DatasetWork(dataset, label, start, end, _count(fields, "late"))


def _text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _named(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= DATASET_LENGTH_MAX:
        must = f"have 1 to {DATASET_LENGTH_MAX} characters"
        raise UnreadableMessage.field(f"work: {name}", value, must)
    return value


def _count(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name, 0)
    if must := Bounds(0, LATE_MAX).problem(value, int):
        raise UnreadableMessage.field(f"work: {name}", value, must.removeprefix("must "))
    return int(value)


def _time(fields: dict[str, Any], name: str) -> datetime:
    time = zoned_time(fields.get(name))
    if time is None or not EPOCH <= time <= TIME_MAX:
        raise UnreadableMessage.field(f"work: {name}", fields.get(name), "be a time with a zone")
    return time
