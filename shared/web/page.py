"""The dashboard page, rendered on the server. A script in the page refreshes its content."""

from __future__ import annotations

import secrets
from asyncio import gather
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypedDict
from urllib.parse import quote

from pydantic import ConfigDict, Field

from shared.autoscaling.deciding.decide import EntryKind
from shared.autoscaling.deciding.guards import GUARDS
from shared.autoscaling.flows.common import find
from shared.notifications.conditions import SEVERITIES, LastingCondition, grouped
from shared.values.news import Severity
from shared.web.board import CARDS_MAX, Board, HistoryWanted, Shown, card, overview
from shared.web.http import Reply, in_time, json_reply, page
from shared.web.operation import log_failed, operation, told

STATIC = Path(__file__).parent / "static"
NEXT_STEP = "Correct the settings or scaling_rules.py. The app restarts by itself."
SEE_LOG = "See the log of the function app for details."
SHOWN_IN = {"hub": "breakers", "set-aside": "dead-letters"}
"""The panels that have no heading of their own, and the panel that shows them."""


class SettingsProblems(TypedDict):
    """What is wrong with settings and rules. Until it is corrected, only ``dashboard`` and
    ``settings_check`` run."""

    problems: list[str]
    next_step: str


class OfDashboard(HistoryWanted):
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
    log_failed(failed)
    panels = dict(zip(board.panels, parts, strict=True))
    shown = {
        "cards": [{"name": name, **resources[name].content} for name in cards],
        "table": [] if len(cards) == len(resources) else sorted(resources.items(), key=_worst),
        "chosen": query.resource,
        "panels": {name: each.content for name, each in panels.items()},
        "attention": attention(resources, cards, panels),
        "query": query,
        "spent": _spent(resources.values(), board.price),
        "kinds": list(EntryKind),
        "guards": [guard.__name__ for guard in GUARDS],
    }
    found = [each.content for each in (*resources.values(), *parts)]
    status = 503 if all(isinstance(c, dict) and "error" in c for c in found) else 200
    if query.live:
        return page(status, "live.html", "default-src 'none'", **shown)
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; connect-src 'self'; script-src 'nonce-{nonce}'; "
        f"style-src 'nonce-{nonce}'; img-src data:; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
    return page(
        status,
        "dashboard.html",
        policy,
        **shown,
        nonce=nonce,
        styles=_text("uplot/uPlot.min.css") + _text("dashboard.css"),
        scripts=[_text("uplot/uPlot.iife.min.js"), _text("dashboard.js")],
    )


async def _resources(
    board: Board, query: OfDashboard, failed: dict[str, Exception]
) -> tuple[dict[str, Shown], list[str]]:
    """All resources, and the names of those with cards: the one that is asked for, or else all,
    unless a table shows them.
    """
    declared, cards = board.resources, list(board.resources)
    board.seen.pop(query.resource, None)
    reads = [_read(name, overview(board, each), failed, name) for name, each in declared.items()]
    seen = dict(zip(declared, await gather(*reads), strict=True))
    if query.resource:
        cards = [find(declared, query.resource).name]
    elif len(seen) > CARDS_MAX:
        cards = []
    drawn = [card(board, declared[name], seen[name], query) for name in cards]
    reads = [_read(name, each, failed, name) for name, each in zip(cards, drawn, strict=True)]
    return seen | dict(zip(cards, await gather(*reads), strict=True)), cards


def attention(
    resources: Mapping[str, Shown], cards: Sequence[str], panels: Mapping[str, Shown]
) -> list[tuple[str, LastingCondition]]:
    """What is wrong, worst first, each with a link to what shows it."""
    links = {name: f"?resource={quote(name)}#name-1" for name in resources}
    links |= {name: f"#name-{number}" for number, name in enumerate(cards, 1)}
    links[""] = "#all" if len(cards) < len(resources) else "#name-1"
    of_resources = grouped(each for shown in resources.values() for each in shown.conditions)
    found = [(links[each.resource], each) for each in of_resources]
    for name, panel in panels.items():
        found += [(f"#{SHOWN_IN.get(name, name)}", each) for each in panel.conditions]
    return sorted(found, key=lambda each: each[1].rank)


def _spent(resources: Iterable[Shown], price: float | None) -> str:
    """What all resources cost this month; empty without a price or a resource that is known."""
    status = [each.content["status"]["spent"] for each in resources if "status" in each.content]
    known = [each for each in status if each]
    if price is None or not known:
        return ""
    month, most = (sum(each[name] for each in known) for name in ("month", "month_at_maximum"))
    return f"≈ {month * price:,.2f} this month; at the maximum {most * price:,.2f}"


def _worst(named: tuple[str, Shown]) -> int:
    return min((each.rank for each in named[1].conditions), default=len(SEVERITIES))


async def _read(
    name: str, part: Awaitable[Shown], failed: dict[str, Exception], resource: str = ""
) -> Shown:
    """A part of the page, or its error, so that the other parts are still shown."""
    try:
        return await in_time(part)
    except Exception as error:
        failed[name] = error
        said, severity = told(error), Severity.ERROR if resource else Severity.WARNING
        what = (name, severity, f"{name}: {said}", "", SEE_LOG)
        return Shown({"error": said}, [LastingCondition(*what, resource=resource)])


@cache
def _text(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


OPERATIONS = (dashboard,)


@operation("GET", "dashboard")
async def settings_problems(problems: Sequence[str]) -> Reply:
    """What is wrong with settings and rules, in place of the dashboard."""
    told: SettingsProblems = {"problems": list(problems), "next_step": NEXT_STEP}
    return json_reply(told, 503)
