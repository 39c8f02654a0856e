"""HTTP requests and replies, independent of the Functions host. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

BODY_BYTES_MAX = 16 * 1024
NO_LENGTH = (
    "content-length: is missing. Send the body with its length and not in chunks, "
    "because the Functions host passes on no body without a length"
)
EMPTY: Mapping[str, str] = MappingProxyType({})


class Refused(Exception):
    """The request is answered with an error status. The text says what a valid request must
    contain.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """``route`` has the parameters of the function's route; header names are in lower case.

    The address is left out on purpose. The host has chosen the function by the address and checked
    its key. If the app chose by the address again, the key of one function could give access to
    another.
    """

    query: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    route: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    headers: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    body: bytes = b""

    @property
    def lost_its_body(self) -> bool:
        """Whether a body may have been sent in chunks, which the Functions host drops."""
        return not self.body and "content-length" not in self.headers

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A number of the query. Raises Refused if it is not a number or is out of bounds."""
        text = self.query.get(name, "")
        try:
            value = float(text) if text else default
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise Refused(400, f"{name} = {text[:50]!r}: must be a number from {low:g} to {high:g}")
        return value

    def fields(self) -> dict[str, Any]:
        """The JSON object in the body. Raises Refused.

        The content type must be application/json, which prevents cross-site request forgery: before
        a page of another site can send this type, the browser sends a preflight request, which the
        app does not allow.
        """
        if self.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise Refused(415, "content-type: must be application/json")
        if self.lost_its_body:
            raise Refused(411, NO_LENGTH)
        if len(self.body) > BODY_BYTES_MAX:
            raise Refused(413, f"the body must have at most {BODY_BYTES_MAX} bytes")
        try:
            document = json.loads(self.body)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise Refused(400, "the body must be a JSON object")
        return document


SECURITY_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
)
"""Headers of every reply: no caching, no guessing of the content type, no referrer."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: str
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=lambda: SECURITY_HEADERS)


def json_reply(value: Any, status: int = 200) -> Reply:
    """A reply whose body is the value as JSON."""
    return Reply(status, json.dumps(value, indent=2))


def error_reply(error: Refused) -> Reply:
    return json_reply({"error": str(error)}, error.status)
