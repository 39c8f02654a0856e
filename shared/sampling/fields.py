"""Reads typed fields of decoded JSON. A missing field is allowed; a wrong type is an error."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from shared.sampling.model import BadField

Fields = Mapping[str, Any]
NO_OPERATION = "0-"
"""An operation ID of these characters is the invalid trace ID of W3C, or an empty GUID."""
T = TypeVar("T")


def or_else(default: T, read: Callable[[Fields, str], T], fields: Fields, name: str) -> T:
    """What ``read`` returns, or the default if the field has a wrong type or value."""
    try:
        return read(fields, name)
    except BadField:
        return default


def any_text(fields: Fields, name: str) -> str:
    """A text; empty if the field is missing or null. Other values are converted to JSON."""
    return texts({name: fields.get(name)}).get(name, "")


def text(fields: Fields, name: str) -> str:
    """A text; empty if the field is missing or null."""
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadField(name, "text", value)
    return value


def number(fields: Fields, name: str) -> float | None:
    """A number; None if the field is missing or null. Some exporters put numbers in quotes."""
    value = fields.get(name)
    if value is None:
        return None
    return as_number(value, name)


def as_number(value: object, name: str) -> float:
    """A finite number. Raises BadField for any other value, including true and false."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadField(name, "a number", value)
    if isinstance(value, str) and (not value.isascii() or "_" in value):
        raise BadField(name, "a number in digits 0 to 9", value)
    try:
        parsed = float(value)
    except (ValueError, OverflowError):
        raise BadField(name, "a number", value) from None
    if not math.isfinite(parsed):
        raise BadField(name, "a finite number", value)
    return parsed


def mapping(fields: Fields, name: str) -> Fields:
    """An object, which may be JSON in a text; empty if the field is missing, null or empty."""
    value = fields.get(name)
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise BadField(name, "an object", value) from None
    if not isinstance(value, dict):
        raise BadField(name, "an object", value)
    return value


def texts(fields: Fields) -> dict[str, str]:
    """All entries that are not null, as text. Other values are converted to JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for name, value in fields.items()
        if value is not None
    }


def utc_time(fields: Fields, name: str) -> datetime:
    """A time in UTC, cut to microseconds (Azure writes tenths of them). The default zone is UTC."""
    value = fields.get(name)
    try:
        if not isinstance(value, str):
            raise BadField(name, "a time", value)
        time = datetime.fromisoformat(value)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadField(name, "a time such as 2017-05-15T09:30:00.1234567Z", value) from None


def operation_id(fields: Fields, name: str) -> str:
    """The ID of an operation; empty if it is missing, or consists of zeros, which SDKs write
    outside of an operation.
    """
    found = any_text(fields, name)
    return found if found.strip(NO_OPERATION) else ""


def item_count(fields: Fields, name: str) -> float | None:
    """A number of at least 1; None if the field is missing."""
    value = number(fields, name)
    if value is not None and value < 1:
        raise BadField(name, "a number of at least 1", value)
    return value


def rate_percent(fields: Fields, name: str) -> float | None:
    """A sampling rate, above 0 and at most 100; None if the field is missing or has another value.

    An invalid value is not an error, because the field is a custom property, which may contain
    anything. Some SDKs write 0 for records that are exempt from sampling, so 0 counts as missing.
    """
    rate = or_else(None, number, fields, name)
    return rate if rate is not None and 0 < rate <= 100 else None
