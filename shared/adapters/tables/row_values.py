"""Converts values to properties of a row in Table Storage and back. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from shared.adapters.tables.table import TEXT_LENGTH_MAX, Row

UNIX_START = datetime(1970, 1, 1, tzinfo=UTC)
REASON_LENGTH_MAX = 300
"""Maximum length of a reason. Longer reasons are cut, because an error may quote a whole row."""


def json_text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def property_text(text: str) -> str:
    """The text, cut to the maximum length of one property. Lone surrogates, which UTF-8 cannot
    encode, are replaced."""
    return text[:TEXT_LENGTH_MAX].encode("utf-8", "replace").decode("utf-8")


def pieces(name: str, text: str) -> Row:
    """A long text, split into the properties ``name_0``, ``name_1`` …"""
    starts = range(0, len(text), TEXT_LENGTH_MAX)
    return {f"{name}_{n}": text[i : i + TEXT_LENGTH_MAX] for n, i in enumerate(starts)}


def joined(name: str, row: Mapping[str, Any]) -> str:
    pieces: list[str] = []
    while (piece := row.get(f"{name}_{len(pieces)}")) is not None:
        pieces.append(piece)
    return "".join(pieces)


def microseconds(time: datetime) -> int:
    return (time - UNIX_START) // timedelta(microseconds=1)


def utc_or_none(value: datetime | str | None) -> datetime | None:
    return None if value is None or value == "" else utc(value)


def utc(value: datetime | str) -> datetime:
    """A time in UTC, converted from a value of the SDK or from a text that an operator typed.

    A time without a zone is assumed to be in UTC.
    """
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return zoned.astimezone(UTC)


def error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:REASON_LENGTH_MAX]
