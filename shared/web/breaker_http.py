"""The HTTP endpoints of the circuit breaker: authorization, and replies as a page or as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from shared.ingestion.breaker.approval import TOKEN_CHARACTERS_MAX, TokenRefused
from shared.ingestion.errors import BreakerChanged, DependencyDown, StoreUnavailable
from shared.ingestion.operating.breaker import BreakerController
from shared.web.breaker_page import HEADERS, page, paragraph, view_json, view_page
from shared.web.http import NO_LENGTH, Refused, Reply, Request, error_reply, json_reply

log = logging.getLogger(__name__)

BODY_BYTES_MAX = TOKEN_CHARACTERS_MAX + 1024
TOO_LARGE = f"the body must have at most {BODY_BYTES_MAX} bytes"
REASON_CHARACTERS_MAX = 500
NO_TOKEN = "open the link that was sent when the breaker opened"  # noqa: S105  not a password


async def show(request: Request, controller: BreakerController) -> Reply:
    """The state of the breaker, for a caller with a link. The request changes nothing, because mail
    scanners open links.
    """
    if _name(request) != controller.name:
        return _unknown(request)
    token = request.query.get("token", "")
    if not token:
        return _message(request, 401, "Not allowed", NO_TOKEN)
    try:
        view = await controller.view_with(token)
    except TokenRefused as error:
        return _message(request, 403, "Not allowed", str(error))
    except StoreUnavailable as error:
        return _message(request, 503, "State unknown", str(error))
    if _wants_json(request):
        return json_reply(view_json(view))
    return _html(200, view_page(view, token))


async def close(request: Request, controller: BreakerController) -> Reply:
    """Close the breaker, if the token in the body is for the current incident."""
    if _name(request) != controller.name:
        return _unknown(request)
    if refused := _body_refused(request):
        return refused
    token = _fields(request.body).get("token")
    if not isinstance(token, str) or not token:
        return _message(request, 401, "Not allowed", NO_TOKEN)
    try:
        breaker = await controller.close(token)
    except TokenRefused as error:
        log.warning("[breaker_close_refused] %s: %s", controller.name, error)
        return _message(request, 403, "Not closed", str(error))
    except (StoreUnavailable, BreakerChanged) as error:
        return _message(request, 503, "Not closed", f"{error}; try again")
    except DependencyDown as error:
        return _message(request, 502, "Closed, but the function is still disabled", str(error))
    log.warning("[breaker_closed] %s: incident %s %s", controller.name, breaker.epoch, "by a link")
    if _wants_json(request):
        return json_reply({"breaker": controller.name, "mode": breaker.mode.value})
    text = "Events flow again, starting with the first one that was held."
    return _html(200, page("Closed", paragraph(text)))


async def status(request: Request, controller: BreakerController) -> Reply:
    """The state of the breaker and a new link, for a caller with a key of the function app."""
    if _name(request) != controller.name:
        return _unknown(request)
    try:
        view = await controller.view()
    except StoreUnavailable as error:
        return json_reply({"error": str(error)}, 503)
    return json_reply(view_json(view, controller.link(view.breaker, view.read_at)))


async def isolate(request: Request, controller: BreakerController) -> Reply:
    """Stop processing events until an operator closes the breaker.

    The caller needs a key of the function app.
    """
    if _name(request) != controller.name:
        return _unknown(request)
    try:
        reason = request.fields().get("reason")
    except Refused as error:
        return error_reply(error)
    if not isinstance(reason, str) or not reason.strip():
        return json_reply({"error": 'no reason is given; send {"reason": "..."}'}, 400)
    try:
        breaker = await controller.isolate(reason.strip()[:REASON_CHARACTERS_MAX])
    except (StoreUnavailable, BreakerChanged) as error:
        return json_reply({"error": str(error)}, 503)
    log.warning("[breaker_isolated] %s: %s", controller.name, breaker.reason)
    mode, epoch = breaker.mode.value, breaker.epoch
    return json_reply({"breaker": controller.name, "mode": mode, "epoch": epoch})


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
    return _message(request, 404, "Not found", f"there is no breaker {_name(request)[:100]!r}")


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
