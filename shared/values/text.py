"""Patterns of valid names, texts of one line, numbers in texts, and short forms for errors."""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from reprlib import Repr
from typing import Annotated, Any, TypeVar, cast

TimeText = Annotated[str, "date-time"]
"""A time in ISO 8601 with a time zone, and the format that JSON Schema has for it."""
DateText = Annotated[str, "date"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,99}")
"""Valid names. Names become keys of tables, which must not contain ``/``, ``?`` or ``#``."""

METRIC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,399}")
"""Valid names of metrics, such as of a topic (up to 260 characters) and a subscription (50)."""

UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

SHOWN_CHARACTERS_MAX = 80
INTEGER_BITS_MAX = 10_000
"""Python refuses to print very long integers, so larger ones are described by their size."""

DETAIL_LENGTH_MAX = 300


_REFUSED = r"\u0000-\u001f\u007f-\u009f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_BLANK = r" \u00a0\u1680\u2000-\u200d\u202f\u205f\u2060\u3000\ufeff"
LINE_PATTERN = rf"^[^{_REFUSED}]*[^{_REFUSED}{_BLANK}][^{_REFUSED}]*$"
"""A line of text that is not blank, as a pattern of JSON Schema: no control characters, no line or
paragraph separators, and nothing that changes the direction of text."""
_LINE = re.compile(LINE_PATTERN)
_ODD = re.compile(rf"[{_REFUSED}\ud800-\udfff]")

TIME_CHARACTERS_MAX = 64
WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
NUMBER = re.compile(
    r"[+-]?(?:(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?"
    r"|(?i:inf|infinity|nan))"
)


def of_queue(body: str) -> str:
    """The JSON of a queue message. Many clients send it in base64, some of them with a byte order
    mark, in UTF-16, or in lines, as the command ``base64`` writes."""
    stripped = body.strip().removeprefix("\ufeff")
    if stripped.startswith(("{", "[")):
        return stripped
    try:
        data = base64.b64decode("".join(stripped.split()), validate=True)
        return data.decode(json.detect_encoding(data))
    except ValueError:
        return stripped


def odd_character(text: str) -> str:
    """The first character that a line must not contain and its place; empty if there is none."""
    found = _ODD.search(text)
    if found is None:
        return ""
    kinds = {"Cc": "control character", "Cs": "lone surrogate"}
    kind = kinds.get(unicodedata.category(found[0])) or unicodedata.name(found[0])
    return f"character {found.start() + 1} is U+{ord(found[0]):04X} ({kind})"


def line_problem(text: str, length_max: int) -> str:
    """Why the text is not a line of 1 to ``length_max`` characters; empty if it is one."""
    odd = odd_character(text)
    if not odd and len(text) <= length_max and _LINE.fullmatch(text):
        return ""
    return f"must be 1 to {length_max:,} characters in one line{odd and f': {odd}'}"


def whole(text: str) -> int:
    """A whole number in digits 0 to 9. Raises ValueError for any other text."""
    if not WHOLE.fullmatch(text):
        raise ValueError(f"{quoted(text)} is not a whole number")
    return int(text)


def number(text: str) -> float:
    """A number in digits 0 to 9, or one such as ``nan``. Raises ValueError for any other text."""
    if not NUMBER.fullmatch(text):
        raise ValueError(f"{quoted(text)} is not a number")
    return float(text)


def utc_by_default(text: str) -> datetime:
    """The time of an ISO 8601 text. One without an offset is in UTC. Raises ValueError."""
    time = datetime.fromisoformat(text)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def last_such_time(text: str, now: datetime) -> datetime:
    """The time of an ISO 8601 text, or of one such as 14:03 the last such time, by default in UTC.
    Raises ValueError."""
    try:
        if ":" not in text[:3]:
            return utc_by_default(text.upper())
        today = utc_by_default(f"{now:%Y-%m-%d}T{text.upper()}")
    except ValueError:
        such = "must be a time such as 14:03 or 2026-03-01T12:00:00Z"
        raise ValueError(f"{text!r}: {such}") from None
    return today + timedelta(days=(now - today) // timedelta(days=1))


def zoned_time(value: object) -> datetime | None:
    """The time of an ISO 8601 text with a time zone, in UTC and cut to microseconds; None for any
    other value."""
    if not isinstance(value, str) or len(value) > TIME_CHARACTERS_MAX:
        return None
    try:
        time = datetime.fromisoformat(value)
        return time.astimezone(UTC) if time.tzinfo else None
    except (ValueError, OverflowError):
        return None


def told(error: Exception) -> str:
    """What an error says, after the name of its class unless the class is the app's own."""
    is_own = type(error).__module__.startswith("shared.") and str(error)
    return str(error) if is_own else f"{type(error).__name__}: {error}"


def one_line(text: object, length_max: int = DETAIL_LENGTH_MAX) -> str:
    """The text, such as the error of a client library, in one line of bounded length."""
    line = " ".join(str(text).split())
    return line if len(line) <= length_max else f"{line[: length_max - 1]}…"


def listed(items: Sequence[object], most: int, between: str = ", ") -> str:
    """The first ``most`` items, and how many more there are."""
    more, first = len(items) - most, between.join(map(str, items[:most]))
    return f"{first}{between.strip(', ')} and {more} more" if more > 0 else first


class _Short(Repr):
    def repr_int(self, x: int, level: int) -> str:
        bits = x.bit_length()
        return (
            f"an integer of {bits} bits" if bits > INTEGER_BITS_MAX else super().repr_int(x, level)
        )


_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxlong = 4 * SHOWN_CHARACTERS_MAX
_SHORT.maxother = SHOWN_CHARACTERS_MAX + 1
_SHORT.maxlist, _SHORT.maxdict, _SHORT.maxlevel = 20, 20, 3


def quoted(value: object) -> str:
    """The ``repr`` of a value, cut to ``SHOWN_CHARACTERS_MAX`` characters. Only its first parts are
    generated, so a value of any size, type and depth is cheap to show and raises no error."""
    try:
        written = _SHORT.repr(value)
    except BaseException:  # the class may be the user's own
        return f"a {type(value).__name__} that cannot be shown"
    long = len(written) > SHOWN_CHARACTERS_MAX
    return f"{written[: SHOWN_CHARACTERS_MAX - 3]}..." if long else written


T = TypeVar("T")


def shown(kind: type[T], source: object, time: Callable[[datetime], str], **others: Any) -> T:
    """The fields of a TypedDict: from ``others``, or else the attributes of ``source`` of the same
    names. ``time`` writes a datetime as text."""

    def of(name: str) -> Any:
        value = others[name] if name in others else getattr(source, name)
        return time(value) if isinstance(value, datetime) else value

    return cast("T", {name: of(name) for name in kind.__annotations__})
