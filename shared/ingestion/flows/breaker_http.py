"""The breaker over HTTP: what is asked, who may ask it, and the answer as page or JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from shared.ingestion.approval import TOKEN_CHARACTERS_MAX, TokenRefused
from shared.ingestion.errors import BreakerChanged, DependencyDown, StoreUnavailable
from shared.ingestion.flows.attend import Attendant
from shared.ingestion.presenting import HEADERS, page, said, view_json, view_page

log = logging.getLogger(__name__)

BODY_BYTES_MAX = TOKEN_CHARACTERS_MAX + 1024
REASON_CHARACTERS_MAX = 500
NO_TOKEN = "open the link that was sent when the breaker opened"  # noqa: S105  no password


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request brings; the token of a GET is in its query, that of a POST in its body."""

    name: str
    token: str = ""
    accept: str = ""
    body: bytes = b""

    @property
    def wants_json(self) -> bool:
        return "json" in self.accept and "html" not in self.accept


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    content_type: str
    body: str
    headers: Mapping[str, str] = field(default_factory=lambda: HEADERS)


async def show(asked: Asked, attendant: Attendant) -> Answer:
    """The state, for who holds a link. Looking changes nothing: mail scanners open links."""
    if asked.name != attendant.name:
        return _unknown(asked)
    if not asked.token:
        return _message(asked, 401, "Not allowed", NO_TOKEN)
    try:
        view = await attendant.view_with(asked.token)
    except TokenRefused as error:
        return _message(asked, 403, "Not allowed", str(error))
    except StoreUnavailable as error:
        return _message(asked, 503, "Not known", str(error))
    if asked.wants_json:
        return _json(200, view_json(view))
    return Answer(200, "text/html", view_page(view, asked.token))


async def close(asked: Asked, attendant: Attendant) -> Answer:
    """Close the incident that the token in the body is for."""
    if asked.name != attendant.name:
        return _unknown(asked)
    token = _fields(asked.body).get("token")
    if not isinstance(token, str) or not token:
        return _message(asked, 401, "Not allowed", NO_TOKEN)
    try:
        breaker = await attendant.close(token)
    except TokenRefused as error:
        log.warning("[breaker_close_refused] %s: %s", attendant.name, error)
        return _message(asked, 403, "Not closed", str(error))
    except (StoreUnavailable, BreakerChanged) as error:
        return _message(asked, 503, "Not closed", f"{error}; try again")
    except DependencyDown as error:
        return _message(asked, 502, "Closed, but the function is still disabled", str(error))
    log.warning("[breaker_closed] %s: incident %s %s", attendant.name, breaker.epoch, "by a link")
    if asked.wants_json:
        return _json(200, {"breaker": attendant.name, "mode": breaker.mode.value})
    text = "Events flow again, from where they were held."
    return Answer(200, "text/html", page("Closed", said(text)))


async def status(asked: Asked, attendant: Attendant) -> Answer:
    """The state and a new link, for who has a key of the app."""
    if asked.name != attendant.name:
        return _unknown(asked)
    try:
        view = await attendant.view()
    except StoreUnavailable as error:
        return _json(503, {"error": str(error)})
    return _json(200, view_json(view, attendant.link(view.breaker, view.read_at)))


async def isolate(asked: Asked, attendant: Attendant) -> Answer:
    """Stop everything until a person closes it, for who has a key of the app."""
    if asked.name != attendant.name:
        return _unknown(asked)
    reason = _fields(asked.body).get("reason")
    if not isinstance(reason, str) or not reason.strip():
        return _json(400, {"error": 'a reason is needed: {"reason": "..."}'})
    try:
        breaker = await attendant.isolate(reason.strip()[:REASON_CHARACTERS_MAX])
    except (StoreUnavailable, BreakerChanged) as error:
        return _json(503, {"error": str(error)})
    log.warning("[breaker_isolated] %s: %s", attendant.name, breaker.reason)
    mode, epoch = breaker.mode.value, breaker.epoch
    return _json(200, {"breaker": attendant.name, "mode": mode, "epoch": epoch})


def _fields(body: bytes) -> Mapping[str, Any]:
    """Of a form or of a JSON object; nothing where it is neither, or too large for either."""
    if len(body) > BODY_BYTES_MAX:
        return {}
    text = body.decode("utf-8", "replace").strip()
    try:
        if not text.startswith("{"):
            return {name: values[0] for name, values in parse_qs(text, max_num_fields=9).items()}
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _unknown(asked: Asked) -> Answer:
    return _message(asked, 404, "Not found", f"there is no breaker {asked.name[:100]!r}")


def _message(asked: Asked, code: int, title: str, text: str) -> Answer:
    if asked.wants_json:
        return _json(code, {"error": text})
    return Answer(code, "text/html", page(title, said(f"{text[:1].upper()}{text[1:]}.")))


def _json(code: int, fields: Mapping[str, Any]) -> Answer:
    return Answer(code, "application/json", json.dumps(fields, indent=2, default=str))
