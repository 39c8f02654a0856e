"""Reading fields of decoded JSON: what is missing is missing, what has the wrong type is named."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

Fields = Mapping[str, Any]


class BadField(ValueError):
    """A field holds what it cannot hold: the schema drifted, or the line is damaged."""

    def __init__(self, field: str, expected: str, found: object) -> None:
        self.field = field
        super().__init__(f"{field}: expected {expected}, found {str(found)[:60]!r}")


def text(fields: Fields, name: str) -> str:
    """Empty where it is missing or null."""
    found = fields.get(name)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise BadField(name, "text", found)
    return found


def number(fields: Fields, name: str) -> float | None:
    """None where it is missing or null. A number within quotes counts: some exporters quote."""
    found = fields.get(name)
    if found is None:
        return None
    return as_number(found, name)


def as_number(found: object, name: str) -> float:
    """Finite. Raises BadField for anything else, and for true and false."""
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        raise BadField(name, "a number", found)
    try:
        value = float(found)
    except (ValueError, OverflowError):
        raise BadField(name, "a number", found) from None
    if not math.isfinite(value):
        raise BadField(name, "a finite number", found)
    return value


def mapping(fields: Fields, name: str) -> Fields:
    """Empty where it is missing, null or empty text; an object may come as JSON within text."""
    found = fields.get(name)
    if found is None or found == "":
        return {}
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError):
            raise BadField(name, "an object", found) from None
    if not isinstance(found, dict):
        raise BadField(name, "an object", found)
    return found


def only_item(fields: Fields, name: str) -> Fields:
    """The object of a list of one, as the classic export wraps its payloads."""
    found = fields.get(name)
    if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], dict):
        raise BadField(name, "a list of one object", found)
    return found[0]


def numbers(fields: Fields, prefix: str) -> dict[str, float]:
    """Every entry that is not null, as a number."""
    return {
        name: as_number(value, f"{prefix}.{name}")
        for name, value in fields.items()
        if value is not None
    }


def texts(fields: Fields) -> dict[str, str]:
    """Every entry that is not null, as text; what is no text is written as JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for name, value in fields.items()
        if value is not None
    }


def utc_time(fields: Fields, name: str) -> datetime:
    """In UTC to the microsecond (Azure writes tenths of one); without an offset it is UTC."""
    found = fields.get(name)
    try:
        if not isinstance(found, str):
            raise BadField(name, "a time", found)
        time = datetime.fromisoformat(found)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadField(name, "a time such as 2017-05-15T09:30:00.1234567Z", found) from None


def item_count(fields: Fields, name: str) -> float | None:
    """At least 1; None where it is missing."""
    found = number(fields, name)
    if found is not None and found < 1:
        raise BadField(name, "a number of at least 1", found)
    return found


def rate_percent(fields: Fields, name: str) -> float | None:
    """Above 0 and at most 100; None where it is missing or no such number: it is a free property.

    A rate of 0 marks records that are exempt from sampling in some SDKs, so it says nothing.
    """
    try:
        found = number(fields, name)
    except BadField:
        return None
    return found if found is not None and 0 < found <= 100 else None
