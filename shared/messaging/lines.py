"""Reads messages from lines of JSON that users write, and reports all errors by line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from shared.messaging.model import BadLines
from shared.values.messages import NAMED_MAX, Message
from shared.values.text import one_line, quoted, utc_by_default

TEXTS = (
    "message_id",
    "session_id",
    "partition_key",
    "correlation_id",
    "content_type",
    "subject",
    "to",
    "reply_to",
    "reply_to_session_id",
)
JSON_TYPE = "application/json"


def read_messages(lines: Iterable[str], *, raw: bool = False) -> list[Message]:
    """Read one message per line: an object with ``body`` and any other field of a message, or, with
    ``raw``, the body itself. A text in ``body`` is sent unchanged, anything else as JSON.
    ``time_to_live_seconds`` is a number, ``scheduled_at`` an ISO 8601 time. Raises BadLines."""
    read = _raw if raw else _message
    messages: list[Message] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            messages.append(read(line))
        except (ValueError, RecursionError) as error:
            problems.append(f"line {number}: {error}")
    if problems:
        raise BadLines(problems[:NAMED_MAX], len(problems))
    return messages


def _raw(line: str) -> Message:
    _parsed(line)
    return Message(line.strip(), content_type=JSON_TYPE)


def _message(line: str) -> Message:
    fields = _parsed(line)
    if not isinstance(fields, dict) or "body" not in fields:
        raise ValueError(
            "it must be an object with a body; to send the lines themselves, use --raw"
        )
    if unknown := set(fields) - {"body", *READERS}:
        raise ValueError(f"unknown field {min(unknown)!r}")
    body = fields.pop("body")
    values = dict(_read(name, value) for name, value in fields.items())
    if not isinstance(body, str):
        body = json.dumps(body, separators=(",", ":"))
        values.setdefault("content_type", JSON_TYPE)
    return Message(body, **values)


def _read(name: str, value: object) -> tuple[str, Any]:
    field, parse, must = READERS[name]
    try:
        return field, parse(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} is {quoted(value)}; it must be {must}") from error


def _parsed(line: str) -> Any:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        where = f"{error.msg} at column {error.colno}"
        remedy = 'Write plain text as {"body": "text"}, without --raw'
        raise ValueError(f"not JSON ({where}). {remedy}") from error
    for place, number in _infinite(value, ""):
        name = one_line(place) or "the value"
        what = "NaN" if math.isnan(number) else "infinite or above 1.8e308"
        raise ValueError(f"{name} is {what}, which JSON cannot hold; send a text")
    return value


def _infinite(value: object, place: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield place, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _infinite(each, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _infinite(each, f"{place}[{index}]")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _seconds(value: Any) -> timedelta:
    if isinstance(value, bool):
        raise TypeError
    return timedelta(seconds=value)


def _properties(value: Any) -> Mapping[str, Any]:
    simple = str | int | float | bool | None
    if not isinstance(value, dict) or not all(isinstance(v, simple) for v in value.values()):
        raise TypeError
    return value


READERS: Mapping[str, tuple[str, Callable[[Any], Any], str]] = {
    **{name: (name, _text, "a text") for name in TEXTS},
    "time_to_live_seconds": ("time_to_live", _seconds, "a number, and not too large"),
    "scheduled_at": ("scheduled_at", utc_by_default, "an ISO 8601 time"),
    "application_properties": (
        "application_properties", _properties, "an object of texts, numbers and booleans"
    ),
}  # fmt: skip
"""The field of Message, the reader, and what the value must be, for each field beside the body."""
