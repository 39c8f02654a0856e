"""The dashboard page, rendered on the server. A script in the page refreshes its content."""

from __future__ import annotations

import secrets
from asyncio import gather
from collections.abc import Awaitable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypedDict

from pydantic import ConfigDict, Field

from shared.notifications.conditions import LastingCondition
from shared.values.news import Severity
from shared.web.board import Board, HistoryHours, Shown, card
from shared.web.http import SECURITY_HEADERS, Reply, in_time, json_reply
from shared.web.operation import failure, operation
from shared.web.rendering import render

STATIC = Path(__file__).parent / "static"
NEXT_STEP = "Correct the settings or scaling_rules.py. The app restarts by itself."
SEE_LOG = "See the log of the function app for details."
SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.INFO)
SHOWN_IN = {"hub": "breakers", "set-aside": "dead-letters"}
"""The panels that have no heading of their own, and the panel that shows them."""


class SettingsProblems(TypedDict):
    """What is wrong with settings and rules. Until it is corrected, only ``dashboard`` and
    ``settings_check`` run."""

    problems: list[str]
    next_step: str


class OfDashboard(HistoryHours):
    model_config = ConfigDict(extra="ignore")  # other programs add parameters to a link

    live: bool = Field(False, description="only the content of the page, which changes")


@operation("GET", "dashboard", is_timed=False, told_by={503: SettingsProblems})
async def dashboard(board: Board, query: OfDashboard) -> Reply:
    """The dashboard, as HTML."""
    # Each part that cannot be read shows its error. The status is 503 if no part can be read.
    resources, panels = board.resources.items(), board.panels.items()
    cards = [
        _read(name, Severity.ERROR, card(board, each, query.hours)) for name, each in resources
    ]
    parts = await gather(
        *cards, *(_read(name.replace("-", " "), Severity.WARNING, each()) for name, each in panels)
    )
    anchors = [*(f"name-{number}" for number, _ in enumerate(cards, 1)), *board.panels]
    contents = [part.content for part in parts]
    shown = {
        "resources": [{"name": n, **c} for n, c in zip(board.resources, contents, strict=False)],
        "panels": dict(zip(board.panels, contents[len(cards) :], strict=True)),
        "attention": attention(dict(zip(anchors, parts, strict=True))),
        "hours": query.hours,
    }
    status = 503 if all(isinstance(c, dict) and "error" in c for c in contents) else 200
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


def attention(parts: Mapping[str, Shown]) -> list[tuple[str, LastingCondition]]:
    """The conditions of the parts, the most severe first, each with a link to its part."""
    found = [
        (f"#{SHOWN_IN.get(anchor, anchor)}", each)
        for anchor, part in parts.items()
        for each in part.conditions
    ]
    return sorted(found, key=lambda each: SEVERITIES.index(each[1].severity))


async def _read(name: str, severity: Severity, part: Awaitable[Shown]) -> Shown:
    """A part of the page, or its error, so that the other parts are still shown."""
    try:
        return await in_time(part)
    except Exception as error:
        said = failure(name, error)
        return Shown(
            {"error": said}, [LastingCondition(name, severity, f"{name}: {said}", "", SEE_LOG)]
        )


def _html(status: int, text: str, policy: str) -> Reply:
    headers = {**SECURITY_HEADERS, "Content-Security-Policy": policy, "X-Frame-Options": "DENY"}
    return Reply(status, text, "text/html", headers)


@cache
def _text(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


OPERATIONS = (dashboard,)


@operation("GET", "dashboard")
async def settings_problems(problems: Sequence[str]) -> Reply:
    """What is wrong with settings and rules, in place of the dashboard."""
    told: SettingsProblems = {"problems": list(problems), "next_step": NEXT_STEP}
    return json_reply(told, 503)
