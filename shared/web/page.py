"""The dashboard page, rendered on the server. A script in the page refreshes its content."""

from __future__ import annotations

import secrets
from asyncio import gather
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from pydantic import ConfigDict, Field

from shared.autoscaling.flows.common import find
from shared.notifications.conditions import LastingCondition, grouped
from shared.values.news import Severity
from shared.web.board import Board, HistoryHours, Shown, card, overview
from shared.web.http import SECURITY_HEADERS, Reply, in_time, json_reply
from shared.web.operation import log_failed, operation, told
from shared.web.rendering import render

CARDS_MAX = 20
"""If there are more resources, a table shows them, and cards only the first that need attention."""
CARDS_OF_MANY = 5
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
    resource: str = Field("", max_length=100, description="the only resource to show in detail")


@operation("GET", "dashboard", 404, is_timed=False, told_by={503: SettingsProblems})
async def dashboard(board: Board, query: OfDashboard) -> Reply:
    """The dashboard, as HTML."""
    # Each part that cannot be read shows its error. The status is 503 if no part can be read.
    failed = dict[str, Exception]()
    of_panels = (_read(name.replace("-", " "), p(), failed) for name, p in board.panels.items())
    read = (_resources(board, query, failed), gather(*of_panels))
    (resources, cards), parts = await gather(*read)
    panels = dict(zip(board.panels, parts, strict=True))
    log_failed(failed)
    contents = {
        name: {"name": name, "conditions": sorted(each.conditions, key=_rank), **each.content}
        for name, each in resources.items()
    }
    shown = {
        "cards": [contents[name] for name in cards],
        "table": _rows(contents.values()) if len(cards) < len(contents) else [],
        "chosen": query.resource,
        "panels": {name: each.content for name, each in panels.items()},
        "attention": attention(resources, cards, panels),
        "hours": query.hours,
    }
    found = [each.content for each in (*resources.values(), *panels.values())]
    status = 503 if all(isinstance(c, dict) and "error" in c for c in found) else 200
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


async def _resources(
    board: Board, query: OfDashboard, failed: dict[str, Exception]
) -> tuple[dict[str, Shown], list[str]]:
    """All resources, and the names of those that are shown as cards, with their charts."""
    declared = board.resources
    if query.resource:
        find(declared, query.resource)
    reads = [_read(name, overview(board, each), failed, name) for name, each in declared.items()]
    seen = dict(zip(declared, await gather(*reads), strict=True))
    cards = [query.resource] if query.resource else _cards(seen)
    read = [name for name in cards if "error" not in seen[name].content]
    drawn = await gather(
        *(
            _read(name, card(board, declared[name], seen[name], query.hours), failed, name)
            for name in read
        )
    )
    return seen | dict(zip(read, drawn, strict=True)), cards


def _cards(seen: Mapping[str, Shown]) -> list[str]:
    """The resources to show in detail: all, or of many the first that need attention."""
    if len(seen) <= CARDS_MAX:
        return list(seen)
    found = [each for shown in seen.values() for each in shown.conditions]
    urgent = [each for each in found if each.severity is not Severity.INFO]
    return list(dict.fromkeys(each.resource for each in sorted(urgent, key=_rank)))[:CARDS_OF_MANY]


def _rows(contents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the table. Those that need attention come first, the most severe at the top."""
    worst = len(SEVERITIES)
    return sorted(contents, key=lambda row: min(map(_rank, row["conditions"]), default=worst))


def attention(
    resources: Mapping[str, Shown], cards: Sequence[str], panels: Mapping[str, Shown]
) -> list[tuple[str, LastingCondition]]:
    """What is wrong, the most severe first, each with a link to what shows it."""
    links = {name: f"?resource={name}#name-1" for name in resources}
    links |= {name: f"#name-{number}" for number, name in enumerate(cards, 1)}
    links[""] = "#all" if len(cards) < len(resources) else "#name-1"
    of_resources = grouped(each for shown in resources.values() for each in shown.conditions)
    found = [(links[each.resource], each) for each in of_resources]
    for name, panel in panels.items():
        found += [(f"#{SHOWN_IN.get(name, name)}", each) for each in panel.conditions]
    return sorted(found, key=lambda each: _rank(each[1]))


def _rank(condition: LastingCondition) -> int:
    return SEVERITIES.index(condition.severity)


async def _read(
    name: str, part: Awaitable[Shown], failed: dict[str, Exception], resource: str = ""
) -> Shown:
    """A part of the page, or its error, so that the other parts are still shown."""
    try:
        return await in_time(part)
    except Exception as error:
        failed[name] = error
        said, severity = told(error), Severity.ERROR if resource else Severity.WARNING
        what = f"{name}: {said}"
        wrong = LastingCondition(name, severity, what, "", SEE_LOG, resource=resource)
        return Shown({"error": said}, [wrong])


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
