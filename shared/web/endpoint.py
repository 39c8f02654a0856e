"""What an HTTP function accepts and returns, declared beside the code that serves it.

`python -m local.http_reference` writes docs/http.md and docs/openapi.json from these declarations,
and from the routes, keys and docstrings of function_app.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from shared.web.fields import Field

JSON = "application/json"
HTML = "text/html"

Content = Mapping[str, Any]
"""The type of a reply for each content type."""

STATUSES: Mapping[int, str] = {
    200: "done",
    400: "a parameter or field is wrong; the text says what is needed",
    401: "no key, or no token",
    403: "the token is not valid, or has expired",
    404: "no such address, resource, breaker or dead letter, or the address has no such method",
    409: "somebody else changed the state at the same time; try again",
    411: "the request has no `Content-Length`: the Functions host drops a body sent in chunks",
    413: "the body is too large",
    415: "the content type must be `application/json`",
    500: "the state of the app is inconsistent; the log says more",
    502: "the breaker was closed, but its function is still disabled",
    503: "storage, the hub or a handler fails, or does not answer within eight seconds; for a "
    "change, the text then says that its outcome is unknown",
}
BODY_REFUSED = (411, 413, 415)
"""The statuses with which every function refuses a body that is not a JSON object of a request."""


class Error(TypedDict):
    """Why a request was refused, or failed."""

    error: str


ERROR: Content = {JSON: Error}
ERROR_OR_PAGE: Content = {JSON: Error, HTML: str}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One operation of the HTTP API.

    ``function`` is its name in function_app.py. If the route of a function has optional parts, the
    function has one endpoint for each ``path``, with its own ``name`` and ``about``.
    """

    function: str
    replies: Mapping[int, Content]
    in_path: tuple[Field, ...] = ()
    in_query: tuple[Field, ...] = ()
    in_body: tuple[Field, ...] = ()
    body: Any = None
    """The type of a body that is not an object of ``in_body``."""
    body_example: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""
    name: str = ""
    about: str = ""


def replies(result: Any, *refusals: int, refusal: Content = ERROR) -> Mapping[int, Content]:
    """Replies in JSON: the result, and an error for each status of a refusal."""
    content = result if isinstance(result, Mapping) else {JSON: result}
    return {200: content, **dict.fromkeys(sorted(refusals), refusal)}
