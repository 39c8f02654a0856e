"""The dashboard page, rendered on the server. A script in the page refreshes its content."""

from __future__ import annotations

import secrets
from asyncio import gather
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from shared.web.attention import attention
from shared.web.board import Board, Span, card, read_part
from shared.web.http import SECURITY_HEADERS, Reply
from shared.web.operation import operation
from shared.web.rendering import render
from shared.web.settings_http import SettingsProblems

STATIC = Path(__file__).parent / "static"


class OfPage(Span):
    model_config = ConfigDict(extra="ignore")  # other programs add parameters to a link

    live: bool = Field(False, description="only the content of the page, which changes")


@operation("GET", "dashboard", is_timed=False, told_by={503: SettingsProblems})
async def dashboard(board: Board, query: OfPage) -> Reply:
    """The dashboard, as HTML."""
    # Each part that cannot be read shows its error. The status is 503 if no part can be read.
    cards, panels = await _read_all(board, query.hours)
    shown = {
        "resources": cards,
        "panels": panels,
        "attention": attention(cards, panels),
        "hours": query.hours,
    }
    status = 200 if any(map(_was_read, (*cards, *panels.values()))) else 503
    if query.live:
        return _html(status, render("live.html", **shown), "default-src 'none'")
    nonce = secrets.token_urlsafe(16)
    text = render(
        "dashboard.html",
        **shown,
        nonce=nonce,
        styles=_text("uplot/uPlot.min.css") + _text("dashboard.css"),
        scripts=[_text("uplot/uPlot.iife.min.js"), _text("dashboard.js")],
    )
    policy = (
        f"default-src 'none'; connect-src 'self'; script-src 'nonce-{nonce}'; "
        f"style-src 'nonce-{nonce}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return _html(status, text, policy)


async def _read_all(board: Board, hours: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The card of each resource and the content of each panel, all read concurrently."""
    parts = [read_part(each.name, card(board, each, hours)) for each in board.resources.values()]
    parts += [read_part(name, panel()) for name, panel in board.panels.items()]
    answers = await gather(*parts)
    cards = [{"name": name, **shown} for name, shown in zip(board.resources, answers, strict=False)]
    return cards, dict(zip(board.panels, answers[len(cards) :], strict=True))


def _was_read(shown: Any) -> bool:
    return not (isinstance(shown, dict) and "error" in shown)


def _html(status: int, text: str, policy: str) -> Reply:
    headers = {**SECURITY_HEADERS, "Content-Security-Policy": policy, "X-Frame-Options": "DENY"}
    return Reply(status, text, "text/html", headers)


@cache
def _text(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


OPERATIONS = (dashboard,)
