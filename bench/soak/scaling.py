"""``python -m bench.soak.scaling``: the complete app scales many plans while hosts are killed.

Azurite, Resource Manager and a Service Bus namespace with the limits of Azure, and real processes
of the app in the local functions host. The traffic of a third of the queues is the bundled trace,
each from another hour on, sped up. Each minute it prints what the fleet needs. The exit code is 1
if a plan was not read for two minutes (three with kills, because the timers of a killed host pause
until its lock expires), or an order was lost or carried out twice.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from aiohttp import ClientSession, ClientTimeout
from azure.storage.queue.aio import QueueServiceClient

from backtest.traces.reading import Trace, load_trace
from bench import fleet
from bench.filled_storage import state_store
from bench.fleet_azure import ARM_SECONDS, BUS_SECONDS, CAPACITY, UNREAD_SECONDS, Arm, Bus
from bench.fleet_process import SETTINGS
from bench.measurement import ROOT
from local.azure_apis.arm import RoleScope
from local.azure_apis.plans import P1V3, Plan, PlanId
from local.azurite import Azurite
from local.demo.workload import Workload, default_instance_rate
from local.functions_host.keys import read_keys
from local.hosts import Hosts
from local.prove.checks import repeated

TRACE = ROOT / "local" / "data" / "nasa_http_1995-07-11_13.csv"
TRACE_MINUTES_A_MINUTE = 6
FILLING = 3
"""One of so many queues has traffic. The others keep their backlog."""
QUEUES = ("metrics", "actions", "metrics-poison", "actions-poison")
MINUTE, SETTLE_MINUTES, PAGE_SECONDS_MAX, KILLED_READ_SECONDS = 60, 4, 60, 180
LOG_MAX, ORDER_SECONDS = 500, 120


@dataclass(slots=True)
class Soak:
    """One run, from empty storage to the final account."""

    options: argparse.Namespace
    folder: Path
    storage: str
    arm: Arm
    bus: Bus
    traffic: dict[str, Workload]
    hosts: Hosts
    cpu: float = 0.0
    unread_most: float = 0.0
    killed: int = 0

    async def run(self) -> dict[str, Any]:
        for _ in range(self.options.hosts):
            self.hosts.start()
        chance, began = random.Random(self.options.seed), time.monotonic()
        kills = sorted(chance.uniform(2, self.options.minutes) for _ in range(self.options.kills))
        flowing = asyncio.create_task(self._flow())
        for minute in range(1, self.options.minutes + SETTLE_MINUTES + 1):
            while kills and kills[0] <= minute and self.options.kills:
                await asyncio.sleep(max(began + kills.pop(0) * MINUTE - time.monotonic(), 0))
                self._kill(chance)
            await asyncio.sleep(max(began + minute * MINUTE - time.monotonic(), 0))
            if minute == self.options.minutes:
                flowing.cancel()  # The backlogs stay, so that what is still under way can end.
            print(json.dumps({"minute": minute, **await self._minute()}), flush=True)
        return await self._account()

    def _kill(self, chance: random.Random) -> None:
        port = chance.choice(list(self.hosts.running))
        self.cpu += _cpu(self.hosts.running[port].pid)
        self.hosts.kill(port)
        self.killed += 1
        self.hosts.start()

    async def _flow(self) -> None:
        """Let the traces fill the queues and the plans empty them."""
        began = time.monotonic()
        while True:
            await asyncio.sleep(1)
            minute = (time.monotonic() - began) / MINUTE * TRACE_MINUTES_A_MINUTE
            for name, workload in self.traffic.items():
                workload.order_capacity(self.arm.plan(_plan(name)).capacity)
                workload.advance_to(minute)
                self.bus.backlogs[name] = int(workload.backlog)

    async def _minute(self) -> dict[str, Any]:
        now, seconds = int(time.time()), Counter[str]()
        for (kind, second), count in [*self.arm.seconds.items(), *self.bus.seconds.items()]:
            seconds[kind] += count if now - MINUTE <= second < now else 0
        unread = self.arm.unread()
        self.unread_most = max(self.unread_most, unread[0])
        puts = [p for p in self.arm.puts if p.accepted and now - p.time.timestamp() <= MINUTE]
        orders = [await self._ordered_for(put) for put in puts[-100:]]
        known = sorted(each for each in orders if each is not None)
        cpu = self.cpu + sum(_cpu(host.pid) for host in self.hosts.running.values())
        return {
            "unread": sum(each > UNREAD_SECONDS for each in unread),
            "unread_longest_s": round(unread[0]),
            "queues": await self._depths(),
            **seconds,
            "puts": len(puts),
            "order_s": [round(known[len(known) * part // 100], 1) for part in (50, 95) if known],
            "cpu_s": round(cpu, 1),
            "page_s": await self._page(),
        }

    async def _ordered_for(self, put: Any) -> float | None:
        """The seconds from the decision to the accepted request; None if it is not known."""
        async with state_store(self.storage) as store:
            entries = await store.log(put.plan.name, 20)
        times = [e.time for e in entries if e.applies and e.desired == put.capacity]
        return (put.time - times[0]).total_seconds() if times else None

    async def _depths(self) -> dict[str, int]:
        depths: dict[str, int] = {}
        async with QueueServiceClient.from_connection_string(self.storage) as service:
            for name in QUEUES:
                with contextlib.suppress(Exception):  # A queue exists once it is first used.
                    found = await service.get_queue_client(name).get_queue_properties()
                    depths[name] = found.approximate_message_count or 0
        return depths

    async def _page(self) -> float | None:
        """The seconds of a page; None if no host answers."""
        key, port = read_keys(self.hosts.keys).master, next(iter(self.hosts.running))
        url, started = f"http://127.0.0.1:{port}/api/dashboard?code={key}", time.monotonic()
        try:
            limit = ClientTimeout(PAGE_SECONDS_MAX)
            async with ClientSession(timeout=limit) as session, session.get(url) as reply:
                (self.folder / "page.html").write_bytes(await reply.read())
                return round(time.monotonic() - started, 2) if reply.status == 200 else None
        except (OSError, TimeoutError):
            return None

    async def _account(self) -> dict[str, Any]:
        """Compare the changes that were decided with those that Resource Manager accepted."""
        lost, twice, orders = list[str](), list[str](), 0
        accepted = Counter(put.plan.name for put in self.arm.puts if put.accepted)
        async with state_store(self.storage) as store:
            for each in fleet.with_queues(self.options.plans):
                snapshot = await store.load(each.name)
                desired = snapshot.state.desired
                entries = await store.log(each.name, LOG_MAX)
                epoch = desired.epoch if desired else 0
                orders += epoch
                actual = self.arm.plan(_plan(each.name)).capacity
                if desired is not None and desired.target != actual:
                    old = (snapshot.read_at - desired.requested_at).total_seconds() > ORDER_SECONDS
                    lost += [each.name] if old else []
                twice += [each.name] if repeated(entries, epoch, accepted[each.name]) else []
        limit = KILLED_READ_SECONDS if self.options.kills else UNREAD_SECONDS
        starved = self.unread_most > limit
        return {
            "ok": not (lost or twice or starved),
            "orders": orders,
            "accepted": accepted.total(),
            "lost": lost,
            "repeated": twice,
            "unread_longest_s": round(self.unread_most),
            "killed": self.killed,
        }


def _cpu(process: int) -> float:
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(process).cpu_times()
        return float(times.user + times.system)
    return 0.0


def _plan(name: str) -> PlanId:
    target = fleet.resource(name).target
    return PlanId(target.subscription_id, target.resource_group, target.name)


def _traffic(names: list[str]) -> dict[str, Workload]:
    trace = load_trace(TRACE)
    rate = default_instance_rate(trace.arrivals) * 14 / 3
    return {
        name: Workload(_from(trace, number * 37), instance_rate_per_minute=rate)
        for number, name in enumerate(names)
    }


def _from(trace: Trace, minute: int) -> Trace:
    """The trace from this minute on, and then its beginning."""
    at = minute % trace.minutes
    return replace(trace, arrivals=(*trace.arrivals[at:], *trace.arrivals[:at]))


async def soak(options: argparse.Namespace) -> dict[str, Any]:
    names = [each.name for each in fleet.with_queues(options.plans)]
    arm = Arm([Plan(_plan(name), CAPACITY, P1V3) for name in names])
    bus = Bus(dict.fromkeys(names, fleet.BETWEEN_THRESHOLDS))
    arm.delay_seconds, bus.delay_seconds = ARM_SECONDS, BUS_SECONDS
    arm.role_scope = RoleScope.RESOURCE_GROUP if options.lists else RoleScope.PLAN
    bus.may_list = options.lists
    for name in names:
        bus.declare_queue(name)
    folder = Path(tempfile.mkdtemp(prefix="soak-scaling-"))
    print(f"logs and the newest page: {folder}", file=sys.stderr)
    with Azurite() as azurite, (folder / "hosts.log").open("wb") as log:
        async with arm, bus:
            environ = {
                "AzureWebJobsStorage": azurite.connection_string,
                "ServiceBusConnection": bus.connection_string,
                "ArmEndpoint": arm.base_url,
                fleet.PLANS: str(options.plans),
                **SETTINGS,
            }
            traffic = _traffic(names[::FILLING])
            hosts = Hosts(environ, log, folder / "key", "bench/host_app")
            try:
                return await Soak(
                    options, folder, azurite.connection_string, arm, bus, traffic, hosts
                ).run()
            finally:
                hosts.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak.scaling", description=__doc__)
    parser.add_argument("--plans", type=int, default=200)
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lists", action="store_true", help="the app may list plans and queues")
    figures = asyncio.run(soak(parser.parse_args(arguments)))
    print(json.dumps(figures), flush=True)
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
