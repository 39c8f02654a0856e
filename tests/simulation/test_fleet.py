"""Simulates the functions of a fleet whose subscription has a tiny bucket of requests.

The functions of function_app.py run with the real client of Resource Manager in virtual time. At
random times queues fill, other callers use up the bucket, and plans are busy. In each world these
rules must hold:

- each plan is read at least every two minutes;
- no order waits behind routine reads;
- no order is lost, and none is carried out twice.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any

import azure.functions as func
import pytest

from bench import fleet
from local.azure_apis import arm_errors
from local.azure_apis.arm import ArmStandIn, RoleScope
from local.azure_apis.limits import Limit
from local.azure_apis.plans import P1V3, Plan, PlanId
from local.twins.autoscaling import MemoryReader, MemoryStateStore
from shared.azure import budget
from shared.azure.budget import ArmBudget
from shared.azure.transport import LoopbackTransport
from tests.builders import NOW
from tests.simulation.seeds import seeds
from tests.simulation.virtual_time import VirtualLoop, run

SEEDS, PLANS, SECONDS, FILL_AFTER = 4, 24, 900, 240
LIMITS = {"reads": Limit(6, 0.6), "writes": Limit(5, 0.24)}
"""As for 1,000 plans: 24 of them have a share of 6 reads, refilled with 0.6 a second."""
UNREAD_SECONDS_MAX, ORDER_SECONDS_MAX = 120, 30
COLLECT_SECONDS, RECONCILE_SECONDS, RETRIED_SECONDS, CHANGE_SECONDS = 15, 60, 15, 20
FULL = 4_000.0


def now() -> datetime:
    loop = asyncio.get_running_loop()
    return NOW + timedelta(seconds=loop.time())


@dataclass(slots=True)
class Queue:
    """A queue of the app, whose messages a function receives."""

    messages: asyncio.Queue[tuple[str, int]] = field(default_factory=asyncio.Queue)

    async def send_texts(self, texts: list[str]) -> None:
        for text in texts:
            self.messages.put_nowait((text, 0))

    async def close(self) -> None: ...


class Arm(ArmStandIn):
    """Notes when each plan was shown."""

    def __init__(self, plans: list[Plan]) -> None:
        super().__init__(plans, clock=now, operation_seconds=CHANGE_SECONDS)
        self.limits = LIMITS
        self.shown_at = {each.id.name: [NOW] for each in plans}

    def _shown(self, plan: PlanId) -> dict[str, Any]:
        self.shown_at[plan.name].append(now())
        return super()._shown(plan)

    def others_take(self, requests: int) -> None:
        """Other callers with the same identity use up part of the bucket."""
        for bucket in self._buckets.values():
            bucket.tokens = max(bucket.tokens - requests, 0)


class World:
    """The functions with their queues and timers."""

    def __init__(self, seed: int, arm: Arm, module: ModuleType) -> None:
        self.random, self.arm = random.Random(seed), arm
        self.app, parts = module.app, module.app.scaling
        self.app.now = now
        self.app.arm_budget = ArmBudget(asyncio.get_running_loop().time)
        self.store = parts.store = MemoryStateStore(now)
        self.sources = [each.metrics[fleet.METRIC_NAME] for each in self.app.resources.values()]
        backlogs = dict.fromkeys(self.sources, float(fleet.BETWEEN_THRESHOLDS))
        parts.reader = MemoryReader(now, backlogs, parts.control)
        self.backlogs = parts.reader.values
        self.queues = {"metrics": Queue(), "actions": Queue()}
        parts.metrics_queue, parts.actions_queue = self.queues.values()
        registered = module.functions.get_functions()
        self.functions = {each.get_function_name(): each.get_user_function() for each in registered}
        self.filled: set[str] = set()

    async def live(self) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._timer("metric_collector", COLLECT_SECONDS)),
                group.create_task(self._timer("reconciler", RECONCILE_SECONDS)),
                group.create_task(self._pump("metrics", "scaling_logic")),
                group.create_task(self._pump("actions", "scaler")),
                group.create_task(self._happen()),
            ]
            await asyncio.sleep(SECONDS)
            for task in tasks:
                task.cancel()
        await self.app.close()

    async def _timer(self, name: str, seconds: float) -> None:
        """A run begins by the schedule, but not before the one before it has ended."""
        loop = asyncio.get_running_loop()
        while True:
            await self._call(name, timer=None)
            await asyncio.sleep(seconds - loop.time() % seconds)

    async def _pump(self, queue: str, function: str) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                text, attempt = await self.queues[queue].messages.get()
                if attempt < 5:
                    group.create_task(self._deliver(queue, function, text, attempt))

    async def _deliver(self, queue: str, function: str, text: str, attempt: int) -> None:
        message = func.QueueMessage(id="1", body=text.encode())
        if not await self._call(function, message=message):
            await asyncio.sleep(RETRIED_SECONDS)
            self.queues[queue].messages.put_nowait((text, attempt + 1))

    async def _call(self, name: str, **arguments: Any) -> bool:
        try:
            await self.functions[name](**arguments)
        except Exception:
            return False
        return True

    async def _happen(self) -> None:
        """Queues fill one by one and at once, others use up the bucket, and plans are busy."""
        await asyncio.sleep(FILL_AFTER)
        while True:
            for source in self.random.sample(self.sources, self.random.choice([1, 1, 3])):
                if len(self.filled) < PLANS // 2:
                    self.filled.add(source.queue)
                    self.backlogs[source] = FULL
            if self.random.random() < 0.3:
                self.arm.others_take(self.random.randint(1, 10))
            if self.random.random() < 0.2:
                self.arm.fail_next(arm_errors.ANOTHER_OPERATION)
            await asyncio.sleep(self.random.uniform(10, 60))

    # --- rules ---

    def unread(self) -> dict[str, float]:
        """The longest time for which each plan was not read."""
        return {
            name: max((b - a).total_seconds() for a, b in pairwise([*times, now_at_end()]))
            for name, times in self.arm.shown_at.items()
        }

    def orders(self) -> list[tuple[str, int, datetime]]:
        """The changes that were decided: plan, capacity, and when."""
        logs = [entry for log in self.store._log.values() for entry in log.values()]
        return [(each.resource_name, each.desired or 0, each.time) for each in logs if each.applies]

    def accepted(self) -> list[tuple[str, int, datetime]]:
        return [(p.plan.name, p.capacity or 0, p.time) for p in self.arm.puts if p.accepted]


@pytest.fixture(autouse=True)
def requests_stop_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    send = LoopbackTransport.send

    async def counted(self: Any, request: Any, **kwargs: Any) -> Any:
        loop: Any = asyncio.get_running_loop()
        await asyncio.sleep(0.1)
        loop.under_way += 1
        try:
            return await send(self, request, **kwargs)
        finally:
            loop.under_way -= 1

    monkeypatch.setattr(LoopbackTransport, "send", counted)
    sizes = {kind: (float(each.size), each.per_second) for kind, each in LIMITS.items()}
    monkeypatch.setattr(budget, "SIZES", sizes)
    monkeypatch.setenv(fleet.PLANS, str(PLANS))
    rules = import_module("bench.host_app.scaling_rules")
    monkeypatch.setitem(sys.modules, "scaling_rules", rules)


def loaded(monkeypatch: pytest.MonkeyPatch, arm: Arm) -> ModuleType:
    """A new function_app, whose functions no other test has used."""
    monkeypatch.setenv("ArmEndpoint", arm.base_url)
    monkeypatch.setenv("AzureWebJobsStorage", "UseDevelopmentStorage=true")
    bus = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=k"
    monkeypatch.setenv("ServiceBusConnection", bus)
    from bench.host_app.function_app import _product

    return _product()


@pytest.mark.parametrize("role", [RoleScope.PLAN, RoleScope.RESOURCE_GROUP])
@pytest.mark.parametrize("seed", seeds(SEEDS))
def test_no_plan_is_starved_and_no_order_waits_is_lost_or_repeated(
    seed: int, role: RoleScope, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds: list[World] = []

    async def live() -> None:
        assert isinstance(asyncio.get_running_loop(), VirtualLoop)
        targets = [each.target for each in fleet.with_queues(PLANS)]
        ids = [PlanId(each.subscription_id, each.resource_group, each.name) for each in targets]
        async with Arm([Plan(each, 2, P1V3) for each in ids]) as arm:
            arm.role_scope = role
            worlds.append(World(seed, arm, loaded(monkeypatch, arm)))
            await worlds[0].live()

    run(live())
    check(worlds[0])


def check(world: World) -> None:
    """All rules together, so that a failure shows what else is wrong."""
    orders, accepted = world.orders(), world.accepted()
    tried = {(p.plan.name, p.capacity): p.time for p in reversed(world.arm.puts)}
    waited = {
        name: (tried.get((name, capacity), now_at_end()) - at).total_seconds()
        for name, capacity, at in orders
    }
    decided = Counter(order[:2] for order in orders)
    carried_out = Counter(order[:2] for order in accepted)
    problems = {
        f"not read for {UNREAD_SECONDS_MAX} s": {
            name: wait for name, wait in world.unread().items() if wait > UNREAD_SECONDS_MAX
        },
        "never decided": world.filled - {name for name, *_ in orders},
        f"not asked of Azure for {ORDER_SECONDS_MAX} s": {
            name: wait for name, wait in waited.items() if wait > ORDER_SECONDS_MAX
        },
        "lost": decided - carried_out,
        "carried out more often than decided": carried_out - decided,
    }
    assert not {name: found for name, found in problems.items() if found}


def now_at_end() -> datetime:
    return NOW + timedelta(seconds=SECONDS)
