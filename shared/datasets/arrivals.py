"""Events that tell of a new blob, in both schemas of Event Grid, checked field by field.

CloudEvents 1.0: learn.microsoft.com/azure/event-grid/cloud-event-schema. Event Grid's own:
learn.microsoft.com/azure/event-grid/event-schema-blob-storage. Event Grid writes a queue message in
base64; people who try something write plain JSON.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from shared.datasets.errors import UnreadableMessage
from shared.datasets.periods import EPOCH, TIME_MAX
from shared.sampling.blob_paths import hour_of
from shared.values.untrusted import shown

BLOB_CREATED = "Microsoft.Storage.BlobCreated"
SUBJECT = re.compile(r"/blobServices/default/containers/([a-z0-9$-]{3,63})/blobs/(.+)")


@dataclass(frozen=True, slots=True)
class BlobArrived:
    """A blob that is new or longer than before. Its container names the data set."""

    container: str
    path: str
    event_id: str
    time: datetime

    @property
    def observed_at(self) -> datetime:
        """The hour or day that the path names; when the event happened, where it names none.

        Raises UnreadableMessage where that is no time, or one at which there was no telemetry.
        """
        try:
            observed_at = hour_of(self.path) or self.time
        except ValueError as error:
            path = shown(self.path)
            raise UnreadableMessage(f"event: the path {path} names no date ({error})") from error
        if not EPOCH <= observed_at <= TIME_MAX:
            raise UnreadableMessage(
                f"event: {shown(self.path)} is filed under {observed_at:%Y-%m-%d}"
            )
        return observed_at


def decode_arrival(body: str) -> BlobArrived:
    """The event of one queue message. Raises UnreadableMessage, which says why."""
    fields = _object(body)
    cloud_event = "specversion" in fields
    if cloud_event and fields["specversion"] != "1.0":
        raise UnreadableMessage(
            f"event: specversion is {shown(fields['specversion'])}, 1.0 is needed"
        )
    kind = _string(fields, "type" if cloud_event else "eventType")
    if kind != BLOB_CREATED:
        raise UnreadableMessage(
            f"event: {shown(kind)} tells of no new blob; filter the subscription"
        )
    if not isinstance(fields.get("data"), dict):
        raise UnreadableMessage(f"event: data is {shown(fields.get('data'))}, an object is needed")
    subject = _string(fields, "subject")
    found = SUBJECT.fullmatch(subject)
    if not found:
        raise UnreadableMessage(f"event: subject {shown(subject)} names no blob in a container")
    time = _time(_string(fields, "time" if cloud_event else "eventTime"))
    return BlobArrived(found[1], found[2], _string(fields, "id"), time)


def _object(body: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(_text(body))
    except (ValueError, RecursionError) as error:
        raise UnreadableMessage(f"event: neither JSON nor JSON in base64 ({error})") from error
    if isinstance(fields, list) and len(fields) == 1:  # Event Grid's own schema comes in arrays
        fields = fields[0]
    if not isinstance(fields, dict):
        raise UnreadableMessage(f"event: one JSON object is needed, not {shown(fields)}")
    return fields


def _text(body: str) -> str:
    stripped = body.strip()
    if stripped.startswith(("{", "[")):
        return stripped
    try:
        return base64.b64decode(stripped, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return stripped


def _string(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise UnreadableMessage(f"event: {name} is {shown(value)}, a string is needed")
    return value


TIME_CHARACTERS_MAX = 64
FRACTION = re.compile(r"(\.\d{6})\d+")
"""Azure writes seven digits of a second, Python reads six."""


def _time(text: str) -> datetime:
    try:
        if len(text) > TIME_CHARACTERS_MAX:
            raise ValueError
        time = datetime.fromisoformat(FRACTION.sub(r"\1", text))
        if time.tzinfo is not None:
            return time.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise UnreadableMessage(f"event: time {shown(text)} is no ISO 8601 time with a zone")
