"""Names and values as keys and properties of a table's row.

A key knows neither ``/`` nor ``\\``, ``#``, ``?`` and controls. Values are whole numbers of 64
bits, long texts and bytes, and times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import count
from typing import Any
from urllib.parse import quote

from azure.data.tables import EdmType

TEXT_LENGTH_MAX = 16_000
"""Characters of one property, which holds 64 KiB in UTF-16; each may take two units."""
BYTES_MAX = 60_000

Row = dict[str, Any]


def whole(number: int) -> tuple[int, EdmType]:
    """A number that may need 64 bits; the client takes a plain one for 32."""
    return number, EdmType.INT64


def number_of(value: Any) -> int:
    return int(getattr(value, "value", value))


def time_of(value: datetime) -> datetime:
    """The client's own kind of time as a plain one."""
    at = value.astimezone(UTC)
    return datetime(
        at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond, tzinfo=UTC
    )


def text_fields(name: str, text: str | None) -> Row:
    """A text of any length over the properties ``name``, ``name_1`` …; nothing for None."""
    return _pieces(name, text, TEXT_LENGTH_MAX)


def text_of(row: Mapping[str, Any], name: str) -> str | None:
    found = list(_found(row, name))
    return "".join(found) if found else None


def bytes_fields(name: str, data: bytes | None) -> Row:
    """Bytes of any length over the properties ``name``, ``name_1`` …; nothing for None."""
    return _pieces(name, data, BYTES_MAX)


def bytes_of(row: Mapping[str, Any], name: str) -> bytes | None:
    found = list(_found(row, name))
    return b"".join(found) if found else None


def _pieces(name: str, value: str | bytes | None, length_max: int) -> Row:
    if value is None:
        return {}
    starts = range(0, max(len(value), 1), length_max)
    return {_name(name, n): value[i : i + length_max] for n, i in enumerate(starts)}


def _found(row: Mapping[str, Any], name: str) -> Iterator[Any]:
    for n in count():
        piece = row.get(_name(name, n))
        if piece is None:
            return
        yield piece


def _name(name: str, number: int) -> str:
    return name if number == 0 else f"{name}_{number}"


def key(text: str) -> str:
    """Any text as a key: readable where it can be, and another one for each text."""
    return quote(text, safe=" ,:@!$").replace("%", "=")


def joined(*names: str) -> str:
    """Several names as one key; the separator is in none of them once they are keys."""
    return "|".join([key(name) for name in names])
