"""Runs the app with a fleet of plans, and prints figures as one JSON object.

``python -m bench.fleet_process parts PLANS LISTS ROWS`` calls the functions one after the other,
each tick of 15 s, and tells what each part costs, and what the decision log costs if ROWS is 1.
``… host PLANS LISTS FILLING`` runs them in the local functions host by their schedules, and then
fills so many queues at once. LISTS is 1 if the app may list plans and queues. Seconds are real.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import azure.functions as func
from azure.data.tables.aio import TableClient
from azure.storage.queue.aio import QueueClient

from bench import fleet
from bench.fleet_azure import Azure, azure
from bench.measurement import ROOT
from local.azurite import Azurite
from local.demo.hosted_app import hosted_app
from local.functions_host import FunctionsHost, configure_logging
from local.functions_host.host_json import read_host_json
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.messages import Samples
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import ActionStatus
from shared.values.measurements import Metric, MetricValue
from shared.web.board import SEEN_SECONDS_MAX

APP_DIR = ROOT / "bench" / "host_app"
TICK_SECONDS, TICKS, WINDOW_SECONDS = 15, 4, 60
WARM_UP_SECONDS_MAX, ORDERS_SECONDS_MAX = 150, 300
PARTS = ("collect", "decide", "reconcile")
FULL, AT_ONCE, ROWS_OF_A_COMMIT = 4_000, 32, 48
HOURS_OF_ROWS, ROWS_KEPT = 6, 96
MONTH_SECONDS = 365.25 / 12 * 86_400
SETTINGS = {"ResourcesPerMessage": "25"}
"""What a fleet sets, besides what each app needs."""


@dataclass(slots=True)
class Watch:
    """What the store was given: the newest backlog of each plan, and confirmed actions."""

    begun: float = field(default_factory=time.time)
    newest: dict[str, float] = field(default_factory=dict)
    ages: list[float] = field(default_factory=list)
    confirmed: dict[str, float] = field(default_factory=dict)

    def over(self, store: Any) -> None:
        commit = store.commit

        async def watched(snapshot: Snapshot, state: Any, *rest: Any, **named: Any) -> None:
            await commit(snapshot, state, *rest, **named)
            name, backlog = snapshot.resource_name, state.histories.get(fleet.METRIC_NAME)
            if backlog is not None and backlog.latest is not None:
                self.ages.append(time.time() - self.newest.get(name, self.begun))
                self.newest[name] = backlog.latest.time.timestamp()
            if state.desired is not None and state.desired.status is ActionStatus.CONFIRMED:
                self.confirmed.setdefault(name, time.time())

        store.commit = watched

    def age_p99(self, plans: int) -> float:
        """The 99th percentile of the age that a backlog had when a newer one replaced it. Those
        that no newer one replaced have their present age."""
        now, names = time.time(), (each.name for each in fleet.with_queues(plans))
        present = [now - self.newest.get(name, self.begun) for name in names]
        return percentile([*self.ages, *present], 99)


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


@dataclass(slots=True)
class Run:
    """The app's functions, called one after the other."""

    module: Any
    storage: str
    plans: int
    rows: bool
    functions: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        registered = self.module.functions.get_functions()
        self.functions = {each.get_function_name(): each.get_user_function() for each in registered}

    async def call(self, name: str, **arguments: Any) -> Any:
        return await self.functions[name](**arguments)

    async def parts(self) -> dict[str, Any]:
        cpu, failed = dict.fromkeys(PARTS, 0.0), Counter[str]()
        every = 2 if "/30" in self.module.settings.reconciler_schedule else TICKS
        for tick in range(-TICKS, TICKS):  # The first ones read each plan and fill the windows.
            started = time.monotonic()
            if tick == 0:
                cpu = dict.fromkeys(PARTS, 0.0)
            await self._part("collect", "metric_collector", [{"timer": None}], cpu, failed)
            messages = [{"message": each} for each in await self._received("metrics")]
            await self._part("decide", "scaling_logic", messages, cpu, failed)
            if tick % every == 0:
                await self._part("reconcile", "reconciler", [{"timer": None}], cpu, failed)
            await asyncio.sleep(max(TICK_SECONDS - (time.monotonic() - started), 0))
        of_one = self.plans * TICKS
        shares = {name: 1_000 * seconds / of_one for name, seconds in cpu.items()}
        answer: dict[str, Any] = {"cpu_ms": sum(shares.values()), "parts": shares}
        answer["failed"] = failed.total()
        answer |= {"page": await self._page(), "status": await self._status()}
        if self.rows:
            answer |= {"rows": await self._rows_a_day(), "retention": await self._retention()}
        return answer

    async def _part(
        self, part: str, name: str, calls: list[Any], cpu: dict[str, float], failed: Counter[str]
    ) -> None:
        free, started = asyncio.Semaphore(AT_ONCE), time.process_time()

        async def one(arguments: dict[str, Any]) -> None:
            async with free:
                try:
                    await self.call(name, **arguments)
                except Exception:
                    logging.exception("%s failed", name)
                    failed[name] += 1

        await asyncio.gather(*map(one, calls))
        cpu[part] += time.process_time() - started

    async def _received(self, queue: str) -> list[func.QueueMessage]:
        found: list[func.QueueMessage] = []
        async with QueueClient.from_connection_string(self.storage, queue) as client:
            while some := [
                func.QueueMessage(id=each.id, body=each.content.encode())
                async for each in client.receive_messages(max_messages=32, visibility_timeout=600)
            ]:
                found += some
            await client.clear_messages()
        return found

    async def _page(self) -> float:
        """The second call, once all that the first one has read is too old to be shown again. The
        first one imports templates."""
        await self.call("dashboard", req=func.HttpRequest("GET", "/", body=b""))
        await asyncio.sleep(SEEN_SECONDS_MAX)
        started = time.monotonic()
        await self.call("dashboard", req=func.HttpRequest("GET", "/", body=b""))
        return time.monotonic() - started

    async def _status(self) -> float:
        started = time.monotonic()
        command = [sys.executable, "-m", "shared", "status"]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = await asyncio.create_subprocess_exec(
            *command, env=environ, cwd=APP_DIR, stdout=subprocess.DEVNULL
        )
        assert await done.wait() == 0
        return time.monotonic() - started

    async def _rows_a_day(self) -> float:
        """The rows that the decisions of some hours of one plan leave, for a day."""
        store, name, steps = self.module.app.scaling.store, "plan-day", HOURS_OF_ROWS * 240
        resources = {name: replace(fleet.with_queues(1)[0], name=name)}
        start = (await store.load(name)).read_at - timedelta(hours=HOURS_OF_ROWS)
        for step in range(steps):
            now = start + TICK_SECONDS * step * timedelta(seconds=1)
            value = fleet.BETWEEN_THRESHOLDS + step % 7
            pairs = ((fleet.METRIC_NAME, value), ("capacity", 2))
            metrics = tuple(Metric(name, each, MetricValue(now, float(v))) for each, v in pairs)
            shifted: Any = Shifted(store, now)
            await scaling_logic.process_samples(Samples(name, metrics), resources, shifted)
        async with TableClient.from_connection_string(self.storage, "Scaling") as table:
            rows = table.query_entities(f"PartitionKey eq '{name}'", select=["RowKey"])
            keys = [each["RowKey"] async for each in rows]
        of_log = [key for key in keys if key.startswith("deci") and "|" in key]
        return len(of_log) * 24 / HOURS_OF_ROWS

    async def _retention(self) -> float:
        """The seconds in which the function deletes 96 old rows of each plan."""
        store, names = self.module.app.scaling.store, [*self.module.declared]
        free = asyncio.Semaphore(AT_ONCE)
        (entry,) = await store.log("plan-day", 1)

        async def fill(name: str) -> None:
            async with free:
                for begin in range(0, ROWS_KEPT, ROWS_OF_A_COMMIT):
                    snapshot = await store.load(name)
                    first = snapshot.read_at - timedelta(days=20)
                    entries = [
                        replace(
                            entry,
                            resource_name=name,
                            time=first + timedelta(minutes=15 * number),
                            entry_id=f"old-{number}",
                        )
                        for number in range(begin, begin + ROWS_OF_A_COMMIT)
                    ]
                    await store.commit(snapshot, snapshot.state, entries)

        await asyncio.gather(*map(fill, names))
        started = time.monotonic()
        await self.call("log_retention", timer=None)
        return time.monotonic() - started


@dataclass(frozen=True, slots=True)
class Shifted:
    """The store at another time."""

    store: Any
    now: datetime

    async def load(self, name: str) -> Snapshot:
        snapshot: Snapshot = await self.store.load(name)
        return replace(snapshot, read_at=self.now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


async def hosted(host: FunctionsHost, azure: Azure, plans: int, filling: int) -> dict[str, Any]:
    async with hosted_app(host) as app:
        warm = Watch()
        warm.over(app.scaling.store)
        await _until(lambda: len(warm.newest) == plans, WARM_UP_SECONDS_MAX)
        await asyncio.sleep(TICK_SECONDS)
        watch, since, before = Watch(newest=dict(warm.newest)), time.time(), _runs(host)
        watch.over(app.scaling.store)
        cpu = time.process_time()
        await asyncio.sleep(WINDOW_SECONDS)
        answer = await azure.ask(since=since)
        seconds = time.time() - since
        answer["executions"] = (_runs(host) - before) / plans * MONTH_SECONDS / seconds
        answer["age"] = watch.age_p99(plans)
        answer["host_cpu_ms"] = 1_000 * (time.process_time() - cpu) / plans * TICK_SECONDS / seconds
        answer["window"] = seconds
        if filling:
            answer |= await _orders(azure, watch, filling)
    return answer


async def _until(reached: Callable[[], bool], seconds_max: float) -> None:
    began = time.monotonic()
    while not reached() and time.monotonic() - began < seconds_max:  # noqa: ASYNC110
        await asyncio.sleep(1)


def _runs(host: FunctionsHost) -> int:
    return sum(each.invocations for each in host.counts.values())


async def _orders(azure: Azure, watch: Watch, filling: int) -> dict[str, Any]:
    """Seconds until the order of each plan was accepted, and until it was known to be done. One
    that never was has the seconds that were waited."""
    await azure.ask(fill=filling, to=FULL)
    began = time.time()
    watch.confirmed.clear()
    await _until(lambda: len(watch.confirmed) == filling, ORDERS_SECONDS_MAX)
    figures = await azure.ask(since=began)
    waited = time.time() - began
    answer: dict[str, Any] = {"orders_" + key: figures.get(key, 0) for key in ("late", "accepted")}
    for kind, times in (("ordered", figures["puts"]), ("confirmed", watch.confirmed)):
        seconds = [at - began for at in times.values()]
        answer[kind] = percentile(seconds + [waited] * (filling - len(seconds)), 95)
        answer[f"{kind}_count"] = len(seconds)
    return answer


@asynccontextmanager
async def environment(plans: int, *, lists: bool) -> AsyncIterator[tuple[Azure, str]]:
    with Azurite() as azurite, azure(plans, lists=lists) as running:
        os.environ |= {
            "AzureWebJobsStorage": azurite.connection_string,
            "ServiceBusConnection": running.bus,
            "ArmEndpoint": running.arm,
            fleet.PLANS: str(plans),
            **SETTINGS,
        }
        yield running, azurite.connection_string


async def main(what: str, plans: int, lists: int, last: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        configure_logging(Path(folder) / "host.log")
        async with environment(plans, lists=bool(lists)) as (running, storage):
            if what == "host":
                host = FunctionsHost(APP_DIR, config=read_host_json(ROOT))
                answer = await hosted(host, running, plans, last)
            else:
                sys.path.insert(0, str(APP_DIR))
                import function_app  # noqa: PLC0415  it reads the environment

                module: Any = vars(function_app)["_module"]
                answer = await Run(module, storage, plans, bool(last)).parts()
                await module.app.close()
    print(json.dumps(answer))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
