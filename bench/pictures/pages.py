"""The page of a made-up fleet in a real browser, with 1, 20 and 200 resources, in light, dark, and
on a phone.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from playwright.async_api import Browser, Page, Route, ViewportSize, async_playwright

from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling import AppServicePlan, QueueAge, Resource, ServiceBusQueue, Threshold
from shared.autoscaling import Throughput as Rate
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.messages import Samples
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.web.board import Board
from shared.web.http import Reply, Request
from shared.web.page import dashboard

COUNTS = (1, 20, 200)
ADDRESS = "http://page.example/api/dashboard"
MINUTES, STEP = 60, timedelta(seconds=60)
SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"
LAYOUTS = {"light": ("light", 1280), "dark": ("dark", 1280), "phone": ("light", 360)}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def plan(name: str) -> Resource:
    return Resource(
        name,
        AppServicePlan(SUBSCRIPTION, "group", name),
        {"backlog": ServiceBusQueue("orders")},
        QueueAge("backlog", until_known=Threshold("backlog", 100, 10)),
        throughput=Rate(rate_per_instance_minute=60, start_up_minutes=3),
    )


async def fleet(count: int) -> Board:
    """Plans that have decided for an hour. Every tenth one has no new samples."""
    now = datetime(2026, 3, 2, 14, tzinfo=UTC)
    store = MemoryStateStore(lambda: now)
    resources = {name: plan(name) for name in (f"team-{n:02}-workers" for n in range(1, count + 1))}
    for minute in range(MINUTES + 4):
        now += STEP
        for number, name in enumerate(resources):
            if minute >= MINUTES and number % 10 == 3:
                continue
            desired = (await store.load(name)).state.desired
            backlog = max(0.0, 100 + 400 * math.sin(minute / 8 + number))
            read = {CAPACITY_METRIC: desired.target if desired else 2, "backlog": round(backlog)}
            sent = tuple(Metric(name, each, MetricValue(now, float(v))) for each, v in read.items())
            await scaling_logic.process_samples(Samples(name, sent), resources, store)
    return Board(resources, store, 30, price=0.2)


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        await launched.close()


async def answered(board: Board, url: str) -> Reply:
    return await dashboard(Request(query=dict(parse_qsl(urlsplit(url).query))), board)


async def opened(
    launched: Browser,
    board: Board,
    query: str = "",
    scheme: str = "light",
    size: tuple[int, int] = (1280, 900),
) -> Page:
    """A tab with the page, served without a network."""

    async def serve(route: Route) -> None:
        reply = await answered(board, route.request.url)
        headers = {**reply.headers, "content-type": f"{reply.content_type}; charset=utf-8"}
        await route.fulfill(status=reply.status, body=reply.body, headers=headers)

    viewport = ViewportSize(width=size[0], height=size[1])
    tab = await launched.new_page(viewport=viewport, color_scheme=scheme)  # type: ignore[arg-type]
    await tab.route("**/*", serve)
    await tab.goto(f"{ADDRESS}?{query}")
    return tab


async def take_pictures(folder: Path, counts: Sequence[int] = COUNTS) -> None:
    async with browser() as launched:
        for count in counts:
            board = await fleet(count)
            for layout, (scheme, width) in LAYOUTS.items():
                tab = await opened(launched, board, "", scheme, (width, 900))
                await tab.wait_for_timeout(300)
                path = folder / f"page-{count}-{layout}.png"
                await tab.screenshot(path=path, full_page=count == 1)
                await tab.close()
