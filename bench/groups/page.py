"""The page in a real browser with 1, 20 and 200 resources, and a view of 14 days on Azurite."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

from bench.filled_storage import state_store
from bench.measurement import Measurement
from bench.pictures.pages import ADDRESS, COUNTS, answered, browser, fleet, opened, plan
from local.azurite import Azurite
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.state import ScalingState
from shared.values.measurements import MetricValue
from shared.web.board import Board
from shared.web.http import encoded

DAYS, STEP, HOLDS = 14, timedelta(seconds=15), 60
MEASURED = """() => {
    const tabbable = [...document.querySelectorAll("a[href], button, input, select, summary")]
        .filter(each => each.checkVisibility() && each.type !== "hidden");
    const controls = tabbable.filter(each => each.tagName !== "A" || each.closest("nav"));
    const {responseEnd, domComplete} = performance.getEntriesByType("navigation")[0];
    return {
        tab_stops_to_any_control: tabbable.indexOf(controls.at(-1)) + 1,
        screens_high: document.documentElement.scrollHeight / innerHeight,
        render_milliseconds: domComplete - responseEnd,
    };
}"""
UNITS = {"tab_stops_to_any_control": "stops", "screens_high": "screens",
         "render_milliseconds": "ms"}  # fmt: skip
AIMS = {
    "page.200.update_kilobytes": "≤ 20",
    "page.200.tab_stops_to_any_control": "≤ 30",
    "page.20.screens_high": "≤ 1.5",
    "page.200.render_milliseconds": "≤ 200",
    "page.14_days_seconds": "≤ 2",
}


def measure() -> Iterator[Measurement]:
    figures = asyncio.run(_figures())
    first = {name.split(".", 2)[-1]: value for name, (value, _) in reversed(figures.items())}
    for name, (value, unit) in figures.items():
        baseline = first[name.split(".", 2)[-1]] or 1
        note = "baseline: the same figure with one resource"
        if name.endswith("_seconds"):
            note, baseline = (
                "80,640 decisions in Azurite; baseline: the first day of them",
                first["1_day_seconds"],
            )
        yield Measurement(name, value, unit, baseline, AIMS.get(name, ""), note)


async def _figures() -> dict[str, tuple[float, str]]:
    figures: dict[str, tuple[float, str]] = {}
    async with browser() as launched:
        for count in COUNTS:
            board = await fleet(count)
            for name, query in (("first", ""), ("update", "live=true")):
                body, _ = encoded(await answered(board, f"{ADDRESS}?{query}"), "gzip")
                figures[f"page.{count}.{name}_kilobytes"] = len(body) / 1000, "kB"
            tab = await opened(launched, board)
            read = await tab.evaluate(MEASURED)
            figures |= {f"page.{count}.{name}": (read[name], unit) for name, unit in UNITS.items()}
            await tab.close()
    with Azurite() as azurite:
        async for name, seconds in _long_views(azurite.connection_string):
            figures[name] = seconds, "s"
    return figures


async def _long_views(connection_string: str) -> AsyncIterator[tuple[str, float]]:
    """The seconds of the page with one resource, each with nothing in its cache."""
    resource, now = plan("plan"), datetime.now(UTC)
    async with state_store(connection_string) as store:
        snapshot, start = await store.load(resource.name), now - timedelta(days=DAYS)
        for first in range(0, int(timedelta(days=DAYS) / STEP), HOLDS):
            entries = [_hold(start + STEP * number) for number in range(first, first + HOLDS)]
            await store.commit(snapshot, ScalingState(), entries)
            snapshot = await store.load(resource.name)
        for name, hours in (("14_days", 336), ("1_day", 24), ("3_hours", 3)):
            board = Board({resource.name: resource}, store, 30)
            began = time.perf_counter()
            reply = await answered(board, f"{ADDRESS}?hours={hours}")
            assert reply.status == 200
            yield f"page.{name}_seconds", time.perf_counter() - began


def _hold(when: datetime) -> LogEntry:
    number = int(when.timestamp()) // 15
    applies = number % 240 == 0
    return LogEntry(
        "plan", when, EntryKind.DECISION, f"backlog-{number}", "oldest about 1.4 min of 5, "
        "3 instances busy", 3, 4 if applies else 3, number // 240, applies=applies,
        evidence={"backlog": float(number % 97), "arrivals_per_minute": 60.0},
        metric="backlog", value=float(number % 97),
        samples={"backlog": (MetricValue(when, float(number % 97)),)},
        counterfactual="at a backlog of 300 it would be 5",
    )  # fmt: skip
