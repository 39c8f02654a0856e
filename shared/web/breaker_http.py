"""The HTTP endpoints of the circuit breaker: authorization, and replies as a page or as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, TypedDict
from urllib.parse import parse_qs

from shared.ingestion.breaker.approval import TOKEN_CHARACTERS_MAX, TokenRefused
from shared.ingestion.breaker.breaker import BreakerMode
from shared.ingestion.errors import BreakerChanged, DependencyDown, StoreUnavailable
from shared.ingestion.operating.breaker import BreakerController
from shared.web.breaker_page import (
    HEADERS,
    BreakerStatus,
    page,
    paragraph,
    view_json,
    view_page,
)
from shared.web.endpoint import (
    BODY_REFUSED,
    ERROR_OR_PAGE,
    HTML,
    JSON,
    Endpoint,
    replies,
)
from shared.web.fields import Text, in_body
from shared.web.http import NO_LENGTH, Refused, Reply, Request, error_reply, in_time, json_reply

log = logging.getLogger(__name__)

BODY_BYTES_MAX = TOKEN_CHARACTERS_MAX + 1024
TOO_LARGE = f"the body must have at most {BODY_BYTES_MAX} bytes"

NAME = Text("name", "the name of the breaker, `metric_ingest`", required=True)
REASON = Text("reason", "why the breaker is isolated", required=True)
TOKEN = Text(
    "token",
    "the token of a signed link",
    required=True,
    length_max=TOKEN_CHARACTERS_MAX,
    pattern="^[A-Za-z0-9_-]+[.][A-Za-z0-9_-]+$",
)
NO_TOKEN = "open the link that was sent when the breaker opened"  # noqa: S105  not a password


class BreakerClosed(TypedDict):
    """A breaker that a person closed."""

    breaker: str
    mode: BreakerMode


class BreakerIsolated(BreakerClosed):
    """A breaker that a person isolated. ``epoch`` is the number of the incident."""

    epoch: int


async def show(request: Request, controller: BreakerController) -> Reply:
    """The state of the breaker, for a caller with a link. The request changes nothing, because mail
    scanners open links.
    """
    if _name(request).lower() != controller.name.lower():
        return _unknown(request)
    token = request.query.get("token", "")
    if not token:
        return _message(request, 401, "Not allowed", NO_TOKEN)
    try:
        view = await in_time(controller.view_with(token))
    except TokenRefused as error:
        return _message(request, 403, "Not allowed", str(error))
    except (StoreUnavailable, TimeoutError) as error:
        return _message(request, 503, "State unknown", str(error))
    if _wants_json(request):
        return json_reply(view_json(view))
    return _html(200, view_page(view, token))


async def close(request: Request, controller: BreakerController) -> Reply:
    """Close the breaker, if the token in the body is for the current incident."""
    if _name(request).lower() != controller.name.lower():
        return _unknown(request)
    if refused := _body_refused(request):
        return refused
    token = _fields(request.body).get("token")
    if not isinstance(token, str) or not token:
        return _message(request, 401, "Not allowed", NO_TOKEN)
    try:
        breaker = await in_time(controller.close(token), "the breaker was closed")
    except TokenRefused as error:
        log.warning("[breaker_close_refused] %s: %s", controller.name, error)
        return _message(request, 403, "Not closed", str(error))
    except (StoreUnavailable, BreakerChanged, TimeoutError) as error:
        return _message(request, 503, "Not confirmed", f"{error}; try again")
    except DependencyDown as error:
        return _message(request, 502, "Closed, but the function is still disabled", str(error))
    log.warning("[breaker_closed] %s: incident %s %s", controller.name, breaker.epoch, "by a link")
    if _wants_json(request):
        closed: BreakerClosed = {"breaker": controller.name, "mode": breaker.mode}
        return json_reply(closed)
    text = "Events flow again, starting with the first one that was held."
    return _html(200, page("Closed", paragraph(text)))


async def status(request: Request, controller: BreakerController) -> Reply:
    """The state of the breaker and a new link, for a caller with a key of the function app."""
    if _name(request).lower() != controller.name.lower():
        return json_reply({"error": _no_breaker(request)}, 404)
    try:
        view = await in_time(controller.view())
    except (StoreUnavailable, TimeoutError) as error:
        return json_reply({"error": str(error)}, 503)
    return json_reply(view_json(view, controller.link(view.breaker, view.read_at)))


async def isolate(request: Request, controller: BreakerController) -> Reply:
    """Stop processing events until an operator closes the breaker.

    The caller needs a key of the function app.
    """
    if _name(request).lower() != controller.name.lower():
        return json_reply({"error": _no_breaker(request)}, 404)
    try:
        reason = in_body(request, (REASON,))[REASON.name]
    except Refused as error:
        return error_reply(error)
    try:
        breaker = await in_time(controller.isolate(reason.strip()), "the breaker was isolated")
    except (StoreUnavailable, BreakerChanged, TimeoutError) as error:
        return json_reply({"error": str(error)}, 503)
    log.warning("[breaker_isolated] %s: %s", controller.name, breaker.reason)
    isolated: BreakerIsolated = {
        "breaker": controller.name,
        "mode": breaker.mode,
        "epoch": breaker.epoch,
    }
    return json_reply(isolated)


def _body_refused(request: Request) -> Reply | None:
    if len(request.body) > BODY_BYTES_MAX:
        return _message(request, 413, "Too large", TOO_LARGE)
    if request.lost_its_body:
        return _message(request, 411, "Length required", NO_LENGTH)
    return None


def _fields(body: bytes) -> Mapping[str, Any]:
    """The fields of a form or of a JSON object; empty if the body is neither."""
    text = body.decode("utf-8", "replace").strip()
    try:
        if not text.startswith("{"):
            return {name: values[0] for name, values in parse_qs(text, max_num_fields=9).items()}
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _unknown(request: Request) -> Reply:
    return _message(request, 404, "Not found", _no_breaker(request))


def _no_breaker(request: Request) -> str:
    return f"there is no breaker {_name(request)[:100]!r}"


def _message(request: Request, code: int, title: str, text: str) -> Reply:
    if _wants_json(request):
        return json_reply({"error": text}, code)
    return _html(code, page(title, paragraph(f"{text[:1].upper()}{text[1:]}.")))


def _html(code: int, text: str) -> Reply:
    return Reply(code, text, "text/html", HEADERS)


def _name(request: Request) -> str:
    return request.route.get("name", "")


def _wants_json(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return "json" in accept and "html" not in accept


ENDPOINTS = (
    Endpoint(
        "breaker_page",
        replies({HTML: str, JSON: BreakerStatus}, 401, 403, 404, 503, refusal=ERROR_OR_PAGE),
        in_path=(NAME,),
        in_query=(TOKEN,),
    ),
    Endpoint(
        "breaker_close",
        replies(
            {HTML: str, JSON: BreakerClosed},
            *(401, 403, 404, 411, 413, 502, 503),
            refusal=ERROR_OR_PAGE,
        ),
        in_path=(NAME,),
        in_body=(TOKEN,),
    ),
    Endpoint("breaker_status", replies(BreakerStatus, 404, 503), in_path=(NAME,)),
    Endpoint(
        "breaker_isolate",
        replies(BreakerIsolated, 400, 404, *BODY_REFUSED, 503),
        in_path=(NAME,),
        in_body=(REASON,),
        body_example={REASON.name: "the database is being moved"},
    ),
)
