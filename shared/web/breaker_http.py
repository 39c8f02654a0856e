"""The operations on the circuit breaker: authorization, and replies as a page or as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any, TypedDict
from urllib.parse import parse_qs

from pydantic import ConfigDict, Field

from shared.ingestion.breaker.approval import TOKEN_CHARACTERS_MAX, TokenRefused
from shared.ingestion.breaker.state import BreakerMode
from shared.ingestion.operating.breaker_controller import BreakerController
from shared.web.board import Board
from shared.web.given import Given, Line, Name, check_length, described
from shared.web.http import Refused, Reply, Request, error_reply, page
from shared.web.operation import operation
from shared.web.panels import BreakerStatus, BreakerSummary, status_of

log = logging.getLogger(__name__)

POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
BODY_BYTES_MAX = TOKEN_CHARACTERS_MAX + 1024
TOKEN_PATTERN = "^[A-Za-z0-9_-]+[.][A-Za-z0-9_-]+$"  # noqa: S105  not a password
NO_TOKEN = "open the link that was sent when the breaker opened"  # noqa: S105  not a password


class OfBreaker(Given):
    name: Name = Field(description="the name of the breaker, `metric_ingest`")


class OfLink(Given):
    token: Annotated[str, described(TOKEN_PATTERN, TOKEN_CHARACTERS_MAX)] = Field(
        description="the token of a signed link"
    )


class Isolation(Given):
    model_config = ConfigDict(
        json_schema_extra={"example": {"reason": "the database is being moved"}}
    )

    reason: Line = Field(description="why the breaker is isolated")


class BreakerClosed(TypedDict):
    """A breaker that a person closed."""

    breaker: str
    mode: BreakerMode


class BreakerIsolated(BreakerClosed):
    """A breaker that a person isolated. ``epoch`` is the number of the incident."""

    epoch: int


def _page_or_json(request: Request, error: Refused) -> Reply:
    if _wants_json(request):
        return error_reply(request, error)
    text = str(error)
    title = HTTPStatus(error.status).phrase
    return _page(title, error.status, text=f"{text[:1].upper()}{text[1:]}.")


def _page(title: str, status: int = 200, **shown: Any) -> Reply:
    return page(status, "breaker.html", POLICY, title=title, **shown)


@operation(
    "GET",
    "breakers/{name}",
    *(401, 403, 404),
    keyed=False,
    refuse=_page_or_json,
    described={"query": OfLink},
)
async def breaker_page(
    controller: BreakerController, path: OfBreaker, request: Request
) -> Reply | BreakerStatus:
    """The state of the breaker, for a caller with a signed link from a notification."""
    # The request changes nothing, because mail scanners open links. The headers of a page suppress
    # the referrer, because the address contains the token.
    _check_name(controller, path)
    token = _present(request.query.get("token"))
    told = status_of(await controller.view_with(token))
    if _wants_json(request):
        return told
    return _page(f"Circuit breaker {controller.name}", told=told, token=token)


@operation(
    "POST",
    "breakers/{name}/close",
    *(401, 403, 404, 411, 413),
    keyed=False,
    change="the breaker was closed; try again",
    refuse=_page_or_json,
    described={"body": OfLink},
)
async def breaker_close(
    controller: BreakerController, path: OfBreaker, request: Request
) -> Reply | BreakerClosed:
    """Close the breaker, for a caller with the token of a signed link."""
    _check_name(controller, path)
    check_length(request, BODY_BYTES_MAX)
    try:
        breaker = await controller.close(_present(_fields(request.body).get("token")))
    except TokenRefused as error:
        log.warning("[breaker_close_refused] %s: %s", controller.name, error)
        raise
    log.warning("[breaker_closed] %s: incident %s %s", controller.name, breaker.epoch, "by a link")
    if _wants_json(request):
        return {"breaker": controller.name, "mode": breaker.mode}
    text = "Events flow again, starting with the first one that was held."
    return _page("Closed", text=text)


@operation("GET", "breakers/{name}/status", 404)
async def breaker_status(controller: BreakerController, path: OfBreaker) -> BreakerStatus:
    """The state of the breaker and a new signed link, for a caller who has a key of the app."""
    _check_name(controller, path)
    view = await controller.view()
    return status_of(view, controller.link(view.breaker, view.read_at))


@operation("POST", "breakers/{name}/isolate", 404, change="the breaker was isolated")
async def breaker_isolate(
    controller: BreakerController, path: OfBreaker, body: Isolation
) -> BreakerIsolated:
    """Stop processing events until a person closes the breaker."""
    _check_name(controller, path)
    breaker = await controller.isolate(body.reason.strip())
    log.warning("[breaker_isolated] %s: %s", controller.name, breaker.reason)
    return {"breaker": controller.name, "mode": breaker.mode, "epoch": breaker.epoch}


@operation("GET", "breakers")
async def breakers(board: Board) -> list[BreakerSummary]:
    """The circuit breakers as JSON, each open one with a link for closing it."""
    shown: list[BreakerSummary] = (await board.panels["breakers"]()).content
    return shown


def _check_name(controller: BreakerController, path: OfBreaker) -> None:
    if path.name.lower() != controller.name.lower():
        raise Refused(404, f"there is no breaker {path.name[:100]!r}")


def _present(token: Any) -> str:
    if not isinstance(token, str) or not token:
        raise Refused(401, NO_TOKEN)
    return token


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


def _wants_json(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return "json" in accept and "html" not in accept


OPERATIONS = (breaker_page, breaker_close, breaker_status, breaker_isolate)
