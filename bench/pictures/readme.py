"""Makes the picture in the README.

The app's own code takes the decisions, in the time of the bundled trace, on a queue that fills and
drains as the trace and the working instances say. Beside the picture, the texts of the page are
kept, so that a test fails once the page has other texts.
"""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

from backtest.traces.reading import BUNDLED, load_trace
from bench.pictures.pages import browser, opened
from local.demo.workload import default_instance_rate
from local.twins.autoscaling import MemoryCapacityControl, MemoryStateStore
from shared.autoscaling import (
    AppServicePlan,
    Limits,
    QueueAge,
    Resource,
    ServiceBusQueue,
    Threshold,
)
from shared.autoscaling import Throughput as Rate
from shared.autoscaling.acting.actions import ActionTiming
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.flows.scaler import Scaler
from shared.autoscaling.messages import Samples
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.web.board import Board

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "dashboard.png"
TEXTS = PICTURE.with_suffix(".json")
WEB = ROOT / "shared" / "web"
TEMPLATES = [WEB / "templates" / name for name in ("dashboard.html", "live.html")]
SCRIPT = WEB / "static" / "dashboard.js"
FIRST_MINUTE, HOURS = 60, 12
STEPS_PER_MINUTE, START_UP_MINUTES = 4, 3
SIZE = (1100, 1000)
SHOWN = r"""() => [...document.querySelectorAll("body, body :not(script, style, option)")]
    .filter(each => each.checkVisibility() && each.getBoundingClientRect().top < innerHeight)
    .flatMap(each => [...each.childNodes].filter(node => node.nodeType === Node.TEXT_NODE))
    .map(node => node.data.trim().replace(/\s+/g, " "))
    .filter(text => text)"""
"""The texts within the picture, from the top."""


async def replayed() -> Board:
    """What the app decides while half a day of the trace arrives in its queue."""
    trace = load_trace(BUNDLED)
    arrivals = trace.arrivals[FIRST_MINUTE : FIRST_MINUTE + HOURS * 60]
    rate = default_instance_rate(arrivals)
    plan = AppServicePlan("00000000-0000-0000-0000-000000000001", "my-group", "workers")
    policy = QueueAge("orders", until_known=Threshold("orders", 100, 10))
    known = Rate(rate_per_instance_minute=rate, start_up_minutes=START_UP_MINUTES)
    queue = {"orders": ServiceBusQueue("orders")}
    limits = Limits(1, 20)
    declared = Resource("workers", plan, queue, policy, limits=limits, throughput=known)
    resources = {"workers": declared}
    now = trace.time_at(FIRST_MINUTE)
    store = MemoryStateStore(lambda: now)
    control = MemoryCapacityControl(lambda: now, {"workers": 2})
    scaler = Scaler(resources, store, control, ActionTiming(60, 15, 60, 600))
    backlog, capacities = 0.0, [2] * STEPS_PER_MINUTE * START_UP_MINUTES
    for step in range(len(arrivals) * STEPS_PER_MINUTE):
        now += timedelta(minutes=1 / STEPS_PER_MINUTE)
        capacities = [*capacities[1:], control.capacities["workers"]]
        finished = rate * min(capacities)
        change = (arrivals[step // STEPS_PER_MINUTE] - finished) / STEPS_PER_MINUTE
        backlog = max(backlog + change, 0.0)
        read = {CAPACITY_METRIC: capacities[-1], "orders": round(backlog)}
        sent = tuple(Metric("workers", n, MetricValue(now, float(v))) for n, v in read.items())
        action = await scaling_logic.process_samples(Samples("workers", sent), resources, store)
        if action is not None:
            await scaler.execute(action)
    return Board(resources, store, 30)


def labels() -> list[str]:
    """The texts that the page's templates and its charts always have."""
    found = set[str]()
    for template in TEMPLATES:
        text = re.sub(r"<style.*?</style>", "", template.read_text(encoding="utf-8"), flags=re.S)
        pieces = re.split(r"<[^>]*>|\{%.*?%\}|\{\{.*?\}\}", text, flags=re.S)
        found |= {piece.strip() for piece in pieces if re.search(r"[A-Za-z]{2}", piece)}
    script = SCRIPT.read_text(encoding="utf-8")
    found |= set(re.findall(r'label: "([a-z ]+)"', script))
    found |= set(re.findall(r'chart\(card, ["`]([a-z ]+)', script))
    return sorted(found)


async def make() -> None:
    board = await replayed()
    async with browser() as launched:
        page = await opened(launched, board, f"hours={HOURS}", size=SIZE)
        await page.locator("canvas").nth(2).wait_for()
        await page.screenshot(path=PICTURE)
        texts = {"labels": labels(), "shown": await page.evaluate(SHOWN)}
    TEXTS.write_text(f"{json.dumps(texts, indent=1, ensure_ascii=False)}\n", encoding="utf-8")
