"""Parses Event Grid's events of new blobs, in both of its schemas.

See learn.microsoft.com/azure/event-grid/cloud-event-schema and event-schema-blob-storage. Event
Grid encodes queue messages in base64; those that are written by hand are usually plain JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shared.sampling.blob_paths import hour_of
from shared.trends.datasets.processing import UnreadableMessage
from shared.values.row_values import FAR_AHEAD, UNIX_START
from shared.values.text import of_queue, quoted, zoned_time

BLOB_CREATED = "Microsoft.Storage.BlobCreated"
SUBJECT = re.compile(r"/blobServices/default/containers/([a-z0-9$-]{3,63})/blobs/(.+)")


@dataclass(frozen=True, slots=True)
class BlobArrived:
    """A blob that was created or replaced. Its container names the data set."""

    container: str
    path: str
    time: datetime

    @property
    def observed_at(self) -> datetime:
        """The hour or day in the path, or else the time of the event. Raises UnreadableMessage."""
        try:
            observed_at = hour_of(self.path) or self.time
        except ValueError as error:
            path = quoted(self.path)
            raise UnreadableMessage(
                f"event: the path {path} holds an invalid date ({error})"
            ) from error
        if not UNIX_START <= observed_at <= FAR_AHEAD:
            raise UnreadableMessage(
                f"event: the path {quoted(self.path)} holds the date {observed_at:%Y-%m-%d}, which "
                f"is not from {UNIX_START:%Y} to {FAR_AHEAD:%Y}"
            )
        return observed_at


def decode_arrival(body: str) -> BlobArrived:
    """Parse the event in a queue message. Raises UnreadableMessage."""
    fields = _object(body)
    cloud_event = "specversion" in fields
    if cloud_event and fields["specversion"] != "1.0":
        raise UnreadableMessage.field("event: specversion", fields["specversion"], "be 1.0")
    kind = _string(fields, "type" if cloud_event else "eventType")
    if kind != BLOB_CREATED:
        raise UnreadableMessage(
            f"event: its type is {quoted(kind)}; limit the Event Grid subscription to "
            f"{BLOB_CREATED}"
        )
    if not isinstance(fields.get("data"), dict):
        raise UnreadableMessage.field("event: data", fields.get("data"), "be an object")
    subject = _string(fields, "subject")
    match = SUBJECT.fullmatch(subject)
    if not match:
        raise UnreadableMessage.field("event: subject", subject, "name a blob in a container")
    text = _string(fields, "time" if cloud_event else "eventTime")
    if (time := zoned_time(text)) is None:
        raise UnreadableMessage.field("event: time", text, "be an ISO 8601 time with a zone")
    return BlobArrived(match[1], match[2], time)


def _object(body: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(of_queue(body))
    except (ValueError, RecursionError) as error:
        raise UnreadableMessage(
            f"event: it is neither JSON nor JSON in base64 ({error})"
        ) from error
    if isinstance(fields, list) and len(fields) == 1:  # Event Grid's own schema uses arrays
        fields = fields[0]
    if not isinstance(fields, dict):
        raise UnreadableMessage.field("event: it", fields, "be one JSON object")
    return fields


def _string(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise UnreadableMessage.field(f"event: {name}", value, "be a string")
    return value
