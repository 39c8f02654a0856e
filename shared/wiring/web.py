"""What the page and the JSON endpoints show, each panel only where there is something to see."""

from __future__ import annotations

from contextlib import aclosing
from datetime import timedelta
from functools import cache
from typing import Any

from shared.ingestion.dead_letters.find import newest
from shared.web import panels
from shared.web.board import Board, Panel, RecentLog, cached
from shared.wiring import autoscaling as wiring
from shared.wiring import ingestion as wiring_ingestion
from shared.wiring import ingestion_state as state

DEAD_LETTERS_SHOWN = 50
TREND_DAYS = 60
TRENDS_KEPT_SECONDS = 300
STORAGE = "AzureWebJobsStorage"


@cache
def board() -> Board:
    found: dict[str, Panel] = {"trends": cached(_trends, TRENDS_KEPT_SECONDS)}
    if wiring.settings().ingestion.hub:
        found |= {"breakers": _breakers, "dead-letters": _dead_letters}
    return Board(wiring.resources(), wiring.store(), RecentLog(wiring.store()), found)


async def _breakers() -> list[dict[str, Any]]:
    breaker_controller = wiring_ingestion.breaker_controller()
    seen = await breaker_controller.breakers.load()
    here = (seen.breaker, seen.read_at)
    link = breaker_controller.link(*here) or breaker_controller.path(*here)
    return [panels.breaker(breaker_controller.name, seen.breaker, link)]


async def _dead_letters() -> list[dict[str, Any]]:
    letters = await newest(state.store(), DEAD_LETTERS_SHOWN)
    return [panels.dead_letter(stored.stream, stored.letter) for stored in letters]


async def _trends() -> list[dict[str, Any]]:
    from shared.adapters.tables.trends import TableTrends  # noqa: PLC0415  heavy to import

    since = wiring.now().date() - timedelta(days=TREND_DAYS)
    async with aclosing(TableTrends(wiring.settings().storage(STORAGE))) as table:
        return panels.trends(await table.since(since))


async def close() -> None:
    board.cache_clear()


wiring.before_closing.append(close)
