"""A message as a sender describes it. Times are aware; sizes are bytes on the wire."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

Scalar = str | bytes | int | float | bool | uuid.UUID | datetime | None
"""What properties and annotations can hold. Bytes in a property must be UTF-8: it is a string."""

BATCH_MESSAGES_MAX = 4500
"""Messages that the Standard tier takes in one batch, however small they are."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A body of AMQP sequences: each row a list of scalars, lists and maps."""

    rows: Sequence[list[Any]]


Body = bytes | str | tuple[bytes | str, ...] | Rows | None
"""One data section, several of them, sequences, or none at all."""


class Message(NamedTuple):
    """A message to send. A named tuple, for hundreds of thousands are made in a second.

    ``time_to_live`` counts in whole seconds, up to 49 days (AMQP has 32 bits for milliseconds).
    ``annotations`` are further message annotations beside those of the fields here.
    """

    body: Body
    message_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    subject: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    time_to_live: timedelta | None = None
    scheduled_at: datetime | None = None
    application_properties: Mapping[str, Scalar] | None = None
    annotations: Mapping[str, Scalar] | None = None

    @property
    def batch_key(self) -> str | None:
        """What all messages of one batch must share: the broker files a batch in one place."""
        return self.session_id or self.partition_key
