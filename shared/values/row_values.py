"""Converts values and data classes to properties of a row in Table Storage and back. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from shared.values.text import quoted, utc_by_default

TEXT_LENGTH_MAX = 16_000
"""The most characters in one property of 64 KiB in UTF-16, at up to two units each."""
UNIX_START = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
FAR_AHEAD = datetime(2999, 12, 31, tzinfo=UTC)
"""Times in texts lie between these two, so adding a duration cannot overflow."""

NUMBER_MAX = 1e300
"""The largest stored number, so that calculations cannot overflow."""

T = TypeVar("T")


def properties(
    value: Any, left_out: Sequence[str] = (), *, times_as_text: bool = False
) -> dict[str, Any]:
    """The properties of a data class, without those that are None. A tuple becomes JSON, and so
    does a data class in it."""
    row: dict[str, Any] = {}
    for each in fields(value):
        content = getattr(value, each.name)
        if content is None or each.name in left_out:
            continue
        if isinstance(content, str):
            content = property_text(content)  # of an enum, its value
        elif isinstance(content, tuple) or is_dataclass(content):
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
    """The data class of a row, with fields that are ``given`` instead. Missing fields have their
    defaults unless they are ``required``. Raises KeyError, TypeError, ValueError. ``time`` converts
    times."""
    values = dict(given)
    for name, (hint, _, has_default) in _fields(of).items():  # type: ignore[arg-type]
        content, (kind, *_) = row.get(name), _kind(hint)
        is_missing = content is None or (kind is datetime and content == "")
        if name in given or (is_missing and has_default and name not in required):
            continue
        if content is None:
            raise KeyError(name)
        if kind is datetime and time is not None:
            values[name] = _time(time, content, name)
        else:
            is_json = kind in (tuple, Mapping) or is_dataclass(kind)
            values[name] = checked(hint, json.loads(content) if is_json else content, name)
    return of(**values)


def _time(parse: Callable[[Any], datetime], content: Any, name: str) -> datetime:
    try:
        return parse(content)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} is {quoted(content)}: {error}") from error


KINDS: Mapping[Any, tuple[str, Any]] = {
    int: ("a whole number", int),
    float: ("a number", (int, float)),
    bool: ("true or false", bool),
    str: ("text", str),
    datetime: ("a time", (str, datetime)),
    tuple: ("a list", list),
    Mapping: ("an object", dict),
}
"""What a value must be, and as what JSON and Table Storage return it, for the type of a field."""


def checked(hint: Any, content: Any, name: str) -> Any:
    """The value of a field, from a property or from JSON, where unknown fields of a data class are
    ignored. Raises KeyError, TypeError or ValueError."""
    kind, args, must, types = _kind(hint)
    if content is None:
        raise TypeError(f"there is no {name}")
    if not isinstance(content, types) or isinstance(content, bool) is not (kind is bool):
        raise TypeError(f"{name} is a {type(content).__name__}, but must be {must}")
    if kind is float and not abs(content) <= NUMBER_MAX:  # also true for NaN
        raise ValueError(f"{name} is {quoted(content)}, but must be at most {NUMBER_MAX:g}")
    if kind is datetime:
        return utc(content)
    if kind is tuple:
        return tuple([checked(args[0], each, name) for each in content])
    if kind in KINDS:
        return content
    return _nested(kind, content) if types is dict else kind(content)


def _nested(of: Any, content: Mapping[str, Any]) -> Any:
    known = _fields(of)
    if content and not known.keys() & content.keys():
        raise ValueError("no field is known")
    values = {}
    for name, (hint, optional, has_default) in known.items():
        if name in content or not has_default:
            each = content[name]
            values[name] = None if optional and each is None else checked(hint, each, name)
    return of(**values)


@cache
def _kind(hint: Any) -> tuple[Any, tuple[Any, ...], str, Any]:
    """The class of a type, its arguments and its entry of ``KINDS``; others are enumerations."""
    kind = get_origin(hint) or hint
    must, types = KINDS.get(kind) or KINDS[Mapping if is_dataclass(kind) else str]
    return kind, get_args(hint), must, types


@cache
def _fields(of: type) -> dict[str, tuple[Any, bool, bool]]:
    """The type of each field without None, whether it may be None, and whether it has a default."""
    found, hints = {}, get_type_hints(of)
    for each in fields(of):
        hint, has_default = hints[each.name], not each.default is each.default_factory is MISSING
        optional = isinstance(hint, UnionType)
        if optional:
            (hint,) = [option for option in get_args(hint) if option is not NoneType]
        found[each.name] = hint, optional, has_default
    return found


def zoned(text: str) -> datetime:
    """The time of a text that names its zone, in UTC."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    if not UNIX_START <= (found := time.astimezone(UTC)) <= FAR_AHEAD:
        raise ValueError(f"{text} is not between {UNIX_START:%Y} and {FAR_AHEAD:%Y}")
    return found


def _plain(value: Any) -> Any:
    """A time or a data class for JSON. ``dataclasses.asdict`` copies each value, which is slow."""
    if isinstance(value, datetime):
        return value.isoformat()
    return {each.name: getattr(value, each.name) for each in fields(value)}


json_text = json.JSONEncoder(separators=(",", ":"), default=_plain).encode


def property_text(text: str) -> str:
    """The text, cut to one property, with lone surrogates replaced."""
    return text[:TEXT_LENGTH_MAX].encode("utf-8", "replace").decode("utf-8")


def pieces(name: str, text: str) -> dict[str, Any]:
    """A long text, split into the properties ``name_0``, ``name_1`` …"""
    starts = range(0, len(text), TEXT_LENGTH_MAX)
    return {f"{name}_{n}": text[i : i + TEXT_LENGTH_MAX] for n, i in enumerate(starts)}


def whole_text(name: str, row: Mapping[str, Any]) -> str:
    pieces: list[str] = []
    while (piece := row.get(f"{name}_{len(pieces)}")) is not None:
        pieces.append(piece)
    return "".join(pieces)


def microseconds(time: datetime) -> int:
    return (time - UNIX_START) // MICROSECOND


def utc(value: datetime | str) -> datetime:
    """A time of a row or a text, in UTC. A text without a zone is in UTC."""
    time = utc_by_default(value) if isinstance(value, str) else value
    return time.astimezone(UTC)
