"""Converts values and data classes to properties of a row in Table Storage and back. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from shared.storage.tables import TEXT_LENGTH_MAX, Row

UNIX_START = datetime(1970, 1, 1, tzinfo=UTC)
FAR_AHEAD = datetime(2999, 12, 31, tzinfo=UTC)
"""Times in texts lie between UNIX_START and FAR_AHEAD, so adding a duration cannot overflow."""
REASON_LENGTH_MAX = 300
"""Maximum length of a reason. Longer reasons are cut, because an error may quote a whole row."""

T = TypeVar("T")


def properties(value: Any, left_out: Sequence[str] = (), *, times_as_text: bool = False) -> Row:
    """The properties of a data class, without those that are None. A tuple becomes JSON."""
    row: Row = {}
    for each in fields(value):
        content = getattr(value, each.name)
        if content is None or each.name in left_out:
            continue
        if isinstance(content, str):
            content = property_text(content)  # of an enum, its value
        elif isinstance(content, tuple):
            content = json_text(content)
        elif isinstance(content, datetime) and times_as_text:
            content = content.isoformat()
        row[each.name] = content
    return row


def value_of(
    of: type[T],
    row: Mapping[str, Any],
    required: Sequence[str] = (),
    time: Callable[[Any], datetime] | None = None,
    **given: Any,
) -> T:
    """The data class of a row, with fields that are ``given`` instead. Unknown properties are
    ignored. Those that are missing, and times that are empty, have their defaults unless they are
    ``required``.

    Raises KeyError, TypeError or ValueError. ``time`` converts times; see ``utc`` and ``zoned``.
    """
    values = dict(given)
    kinds = _kinds(of)  # type: ignore[arg-type]
    for name, (kind, has_default) in kinds.items():
        content = row.get(name)
        is_missing = content is None or (kind is datetime and content == "")
        if name in given or (is_missing and has_default and name not in required):
            continue
        if content is None:
            raise KeyError(name)
        if kind in NAMES_OF_TYPES and type(content) is not kind:
            wrong = type(content).__name__
            raise TypeError(f"{name} is a {wrong}, but must be {NAMES_OF_TYPES[kind]}")
        if kind is datetime:
            values[name] = (time or utc)(content)
        elif kind is tuple:
            values[name] = tuple(json.loads(content))
        else:
            values[name] = kind(content) if issubclass(kind, StrEnum) else content
    return of(**values)


NAMES_OF_TYPES = {int: "a whole number", str: "text"}


@cache
def _kinds(of: type) -> dict[str, tuple[type, bool]]:
    """The type of each field that has a simple one, and whether the field has a default."""
    hints = get_type_hints(of)
    kinds = {each.name: _kind(hints[each.name]) for each in fields(of)}
    defaults = {each.name for each in fields(of) if each.default is not MISSING}
    return {n: (kind, n in defaults) for n, kind in kinds.items() if isinstance(kind, type)}


def _kind(hint: Any) -> Any:
    if isinstance(hint, UnionType):
        (hint,) = [each for each in get_args(hint) if each is not NoneType]
    return get_origin(hint) or hint


def zoned(text: str) -> datetime:
    """A time in a text, with its zone."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    if not UNIX_START <= time.astimezone(UTC) <= FAR_AHEAD:
        raise ValueError(f"{text} is not between {UNIX_START:%Y} and {FAR_AHEAD:%Y}")
    return time


def json_text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), default=datetime.isoformat)


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


def utc(value: datetime | str) -> datetime:
    """A time in UTC, converted from a value of the SDK or from a text that an operator typed.

    A time without a zone is assumed to be in UTC.
    """
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return zoned.astimezone(UTC)


def error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:REASON_LENGTH_MAX]
