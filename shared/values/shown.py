"""Fills in the TypedDicts with which the app describes its JSON."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar, cast

T = TypeVar("T")


def shown(kind: type[T], source: object, time: Callable[[datetime], str], **others: Any) -> T:
    """The fields of a TypedDict: from ``others``, or else the attributes of ``source`` of the same
    names. ``time`` writes a datetime as text.
    """

    def of(name: str) -> Any:
        value = others[name] if name in others else getattr(source, name)
        return time(value) if isinstance(value, datetime) else value

    return cast("T", {name: of(name) for name in kind.__annotations__})
