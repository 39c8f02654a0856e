"""A request and a reply of HTTP, apart from whoever serves them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

BODY_BYTES_MAX = 16 * 1024
NONE: Mapping[str, str] = MappingProxyType({})


class Refused(Exception):
    """A request that is answered with an error; its text says what would do."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """``route`` has the parameters of the function's route; header names are in lower case.

    The address is left out on purpose: which function was asked is the host's decision, which
    also checked its key. Whoever decides by the address again lets one key open another function.
    """

    query: Mapping[str, str] = field(default_factory=lambda: NONE)
    route: Mapping[str, str] = field(default_factory=lambda: NONE)
    headers: Mapping[str, str] = field(default_factory=lambda: NONE)
    body: bytes = b""

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A number of the query. Raises Refused where it is none or out of bounds."""
        text = self.query.get(name, "")
        try:
            value = float(text) if text else default
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise Refused(400, f"{name} = {text[:50]!r}: a number from {low:g} to {high:g}")
        return value

    def fields(self) -> dict[str, Any]:
        """The JSON object in the body. Raises Refused.

        A page of another site can send neither this type nor a header of its own without asking
        first, and an answer to its question is not given.
        """
        if self.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise Refused(415, "content-type: application/json is needed")
        if len(self.body) > BODY_BYTES_MAX:
            raise Refused(413, f"a body of at most {BODY_BYTES_MAX} bytes is needed")
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Refused(400, "the body must be a JSON object")
        return found


GUARDED: Mapping[str, str] = MappingProxyType(
    {
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
)
"""Of every reply: nobody may keep it, take it for something else, or learn its address."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: str
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=lambda: GUARDED)


def shown(value: Any, status: int = 200) -> Reply:
    """JSON."""
    return Reply(status, json.dumps(value, indent=2))


def refused(error: Refused) -> Reply:
    return shown({"error": str(error)}, error.status)
