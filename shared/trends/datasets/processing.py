"""Schedules one message per data set and period, however many observations (such as new blobs)
there are.

Each observation sends a message with the same id, and the queue keeps the first. When it is due, it
is forwarded to the working queue, whose sessions prevent a data set from being processed twice at
once. All observations that arrive after the processing together cause one more message.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from shared.trends.datasets.periods import DUPLICATE_WINDOW_MAX, Period
from shared.values.bounds import Bounds, matching, problems_of
from shared.values.messages import Message, MessagingError
from shared.values.row_values import value_of, zoned
from shared.values.samples import format_time
from shared.values.text import quoted

SCHEMA_VERSION = 1
LATE_MAX = 10**9 - 1
"""The highest number of a round: more than the minutes since 1970."""

DATASET_LENGTH_MAX = 80
"""A message id of 128 characters must hold the data set's name, a period, and the round."""

_NAMED = matching(f".{{1,{DATASET_LENGTH_MAX}}}", f"must have 1 to {DATASET_LENGTH_MAX} characters")


class UnreadableMessage(MessagingError):
    """A queue message can never be processed; it is moved to the poison queue."""

    @classmethod
    def field(cls, where: str, value: object, must: str) -> UnreadableMessage:
        """``where`` names the message and the field, such as ``event: id``."""
        return cls(f"{where} is {quoted(value)}; it must {must}")


@dataclass(frozen=True, slots=True)
class DatasetWork:
    """A data set to process for one period. ``label`` is the period's name, see ``Period.label``.

    ``late`` is the number of the round, see ``Period.next_round``.
    """

    dataset: Annotated[str, _NAMED]
    label: Annotated[str, _NAMED]
    start: datetime
    end: datetime
    late: Annotated[int, Bounds(0, LATE_MAX)] = 0

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
        "start": format_time(work.start),
        "end": format_time(work.end),
        "late": work.late,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_work(body: bytes | str) -> DatasetWork:
    """Parse a message. Raises UnreadableMessage, which names the field and its value."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableMessage(f"work: it is not JSON ({error})") from error
    try:
        version = fields.get("schema_version") if isinstance(fields, dict) else None
        if type(version) is not int or version != SCHEMA_VERSION:
            raise ValueError(f"it must be a JSON object with schema_version {SCHEMA_VERSION}")
        work = value_of(DatasetWork, fields, time=zoned)
        length = work.end - work.start
        if wrong := problems_of(work):
            raise ValueError(wrong[0])
        if not timedelta(0) < length <= DUPLICATE_WINDOW_MAX:
            raise ValueError(
                f"{format_time(work.start)} to {format_time(work.end)} is not a period of up to "
                f"{DUPLICATE_WINDOW_MAX.days} days"
            )
    except KeyError as error:
        raise UnreadableMessage(f"work: it has no {error}") from error
    except (TypeError, ValueError) as error:
        raise UnreadableMessage(f"work: {error}") from error
    return work
