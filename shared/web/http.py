"""HTTP requests and replies, as JSON and as pages, independent of the Functions host."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from jinja2 import Environment

T = TypeVar("T")
TEMPLATES = Path(__file__).parent / "templates"
ANSWER_SECONDS_MAX = 8
"""How long every route waits for storage, the hub and a handler before it replies with an error."""
NO_LENGTH = (
    "content-length: is missing. Send the body with its length and not in chunks, "
    "because the Functions host passes on no body without a length"
)
COMPRESSED_FROM = 2_000
GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q\s*=\s*0(?:\.0*)?\s*(?:,|$))", re.IGNORECASE)


async def in_time(work: Awaitable[T]) -> T:
    """The result of the work of a route. Raises TimeoutError with a text for the reply."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            return await work
    except TimeoutError as error:
        raise TimeoutError(f"no answer within {ANSWER_SECONDS_MAX} s") from error


class Refused(Exception):
    """The request is answered with an error status. The text says what a valid request contains."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """``route`` has the parameters of the function's route; header names are in lower case.

    The address is left out on purpose: the host has chosen the function by it and checked its key,
    so if the app chose again, the key of one function could give access to another.
    """

    query: Mapping[str, str] = field(default_factory=dict)
    route: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def author(request: Request, given: str | None) -> str:
    """Who sends a request: the person who is signed in, or else the name that the request gives."""
    return (request.headers.get("x-ms-client-principal-name") or given or "").strip()


SECURITY_HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: str
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=lambda: SECURITY_HEADERS)


def encoded(reply: Reply, accepted: str) -> tuple[bytes, Mapping[str, str]]:
    """The body and the headers. A long body is compressed if Accept-Encoding allows gzip, because
    Azure Functions compresses nothing."""
    body, headers = reply.body.encode(), {**reply.headers, "Vary": "Accept-Encoding"}
    if len(body) < COMPRESSED_FROM or not GZIP.search(accepted):
        return body, headers
    return gzip.compress(body, compresslevel=6), {**headers, "Content-Encoding": "gzip"}


def json_reply(value: Any, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value, indent=2))


def error_reply(_request: Request, error: Refused) -> Reply:
    return json_reply({"error": str(error)}, error.status)


def page(status: int, template: str, policy: str, **shown: Any) -> Reply:
    """A page from a template, with text from outside escaped. No other page may contain it.
    ``policy`` is what else its content may do."""
    text = _environment().get_template(template).render(shown)
    headers = {**SECURITY_HEADERS, "Content-Security-Policy": policy, "X-Frame-Options": "DENY"}
    return Reply(status, text, "text/html", headers)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415  only pages need it

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clock": _clock, "day": _day, "minutes": _minutes, "number": _number}
    return environment


def _clock(text: str, as_of: str) -> str:
    """The time of day; with the date if the day differs from that of ``as_of``."""
    time, now = datetime.fromisoformat(text), datetime.fromisoformat(as_of)
    return time.strftime("%H:%M:%S" if time.date() == now.date() else "%m-%d %H:%M:%S")


def _day(text: str) -> str:
    return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M")


def _minutes(value: float) -> str:
    return f"{value * 60:.2g} s" if value < 1 else f"{value:.3g} min"


def _number(value: Any) -> str:
    if value is None:
        return "?"
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1e4 else f"{value:,.0f}"
