"""Patterns of valid names, the types of texts, and short forms for error messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from reprlib import Repr
from typing import Annotated

TimeText = Annotated[str, "date-time"]
"""A time in ISO 8601 with a time zone, as JSON shows it. The annotation is the format that JSON
Schema has for it.
"""
DateText = Annotated[str, "date"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,99}")
"""Valid names. Names become keys of tables, which must not contain ``/``, ``?`` or ``#``."""

UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

SHOWN_CHARACTERS_MAX = 80
INTEGER_BITS_MAX = 10_000
"""The most bits of an integer that is shown in digits. Larger integers are described by their size,
because Python refuses to print very long ones.
"""

_SHORT = Repr()
_SHORT.maxother = _SHORT.maxlong = SHOWN_CHARACTERS_MAX + 1

DETAIL_LENGTH_MAX = 300


def one_line(text: object, length_max: int = DETAIL_LENGTH_MAX) -> str:
    """The text, such as the error of a client library, in one line of at most ``length_max``
    characters.
    """
    line = " ".join(str(text).split())
    return line if len(line) <= length_max else f"{line[: length_max - 1]}…"


def quoted(value: object) -> str:
    """The ``repr`` of a value, cut to ``SHOWN_CHARACTERS_MAX`` characters.

    Only the part before the cut is generated, so that a value of any size, type and depth is cheap
    to show and raises no error.
    """
    try:
        return _cut(_written(value))
    except BaseException:  # the class may be the user's own
        return f"a {type(value).__name__} that cannot be shown"


def _cut(written: Iterator[str]) -> str:
    parts: list[str] = []
    size = 0
    for part in written:
        parts.append(part)
        size += len(part)
        if size > SHOWN_CHARACTERS_MAX:
            return f"{''.join(parts)[: SHOWN_CHARACTERS_MAX - 3]}..."
    return "".join(parts)


def _written(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield "{"
        for index, (name, each) in enumerate(value.items()):
            yield ", " if index else ""
            yield from _written(name)
            yield ": "
            yield from _written(each)
        yield "}"
    elif isinstance(value, list):
        yield "["
        for index, each in enumerate(value):
            yield ", " if index else ""
            yield from _written(each)
        yield "]"
    elif isinstance(value, str | bytes):
        yield repr(value[: SHOWN_CHARACTERS_MAX + 1])
    elif isinstance(value, int) and value.bit_length() > INTEGER_BITS_MAX:
        yield f"an integer of {value.bit_length()} bits"
    else:
        yield _SHORT.repr(value)
