"""Resource Manager and a Service Bus namespace of a fleet, in their own process, limited as in
Azure.

``python -m bench.fleet_azure PLANS LISTS`` runs them until its input ends. Each line of its input
is a question in JSON, and each line of its output the answer.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench import fleet
from local.azure_apis.arm import ArmStandIn, RoleScope
from local.azure_apis.entities import EntityCounts
from local.azure_apis.limits import MANAGEMENT_CREDITS
from local.azure_apis.loopback_server import Reply, Request
from local.azure_apis.plans import P1V3, Plan, PlanId
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn

THROTTLED, CAPACITY, UNREAD_SECONDS = 429, 2, 120
ARM_SECONDS, BUS_SECONDS, CHANGE_SECONDS = 0.1, 0.05, 20.0
"""How long an answer of each, and a change of a plan, takes."""


@dataclass(frozen=True, slots=True)
class Azure:
    """The addresses of the running stand-ins, and their control."""

    process: subprocess.Popen[str]
    arm: str
    bus: str

    async def ask(self, **question: Any) -> dict[str, Any]:
        """Set the backlog of queues (``fill``), or count the requests since a time (``since``)."""
        return await asyncio.to_thread(self._answer, json.dumps(question))

    def _answer(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@contextmanager
def azure(plans: int, *, lists: bool) -> Iterator[Azure]:
    """Run the stand-ins. Without ``lists``, the caller has a right on each plan and queue only."""
    command = [sys.executable, "-m", __name__, str(plans), str(int(lists))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield Azure(process, **json.loads(process.stdout.readline()))
        process.communicate()


class Arm(ArmStandIn):
    """Counts what is accepted and refused each second, and notes when each plan was read."""

    def __init__(self, plans: list[Plan]) -> None:
        super().__init__(plans, operation_seconds=CHANGE_SECONDS)
        self.seconds: Counter[tuple[str, int]] = Counter()
        self.read_at = dict.fromkeys([each.id.key for each in plans], time.time())

    def observe(self, request: Request, done: Reply | None, sent: Reply | None) -> None:
        super().observe(request, done, sent)
        kind = "reads" if request.method == "GET" else "writes"
        refused = "_refused" if sent is not None and sent.status == THROTTLED else ""
        self.seconds[kind + refused, int(time.time())] += 1

    def _shown(self, plan: PlanId) -> dict[str, Any]:
        self.read_at[plan.key] = time.time()
        return super()._shown(plan)

    def unread(self) -> list[float]:
        """The seconds since each plan was read, longest first."""
        return sorted((time.time() - at for at in self.read_at.values()), reverse=True)


class Bus(ServiceBusAdminStandIn):
    def __init__(self, backlogs: dict[str, int]) -> None:
        super().__init__(self)
        self.backlogs = backlogs
        self.seconds: Counter[tuple[str, int]] = Counter()

    def counts(self, entity_path: str) -> EntityCounts:
        return EntityCounts(self.backlogs[entity_path])

    def observe(self, _request: Request, _done: Reply | None, sent: Reply | None) -> None:
        refused = "_refused" if sent is not None and sent.status == THROTTLED else ""
        self.seconds["credits" + refused, int(time.time())] += MANAGEMENT_CREDITS


def _answered(arm: Arm, bus: Bus, backlogs: dict[str, int], question: dict[str, Any]) -> Any:
    if "fill" in question:
        backlogs.update(dict.fromkeys(list(backlogs)[: question["fill"]], question["to"]))
        return {}
    since, figures = question["since"], Counter[str]()
    for (kind, second), count in [*arm.seconds.items(), *bus.seconds.items()]:
        if since <= second:
            figures[kind] += count
            figures[f"{kind}_max"] = max(figures[f"{kind}_max"], count)
    puts: dict[str, float] = {}
    for put in arm.puts:
        if put.accepted and put.time.timestamp() >= since:
            puts.setdefault(put.plan.name, put.time.timestamp())
    unread = arm.unread()
    late = sum(each > UNREAD_SECONDS for each in unread)
    accepted = sum(put.accepted for put in arm.puts)
    return {**figures, "puts": puts, "accepted": accepted, "unread": unread[0], "late": late}


async def _serve(count: int, *, lists: bool) -> None:
    resources = fleet.with_queues(count)
    targets = [each.target for each in resources]
    ids = [PlanId(each.subscription_id, each.resource_group, each.name) for each in targets]
    backlogs = {each.name: fleet.BETWEEN_THRESHOLDS for each in resources}
    arm, bus = Arm([Plan(each, CAPACITY, P1V3) for each in ids]), Bus(backlogs)
    arm.delay_seconds, bus.delay_seconds = ARM_SECONDS, BUS_SECONDS
    arm.role_scope = RoleScope.RESOURCE_GROUP if lists else RoleScope.PLAN
    bus.may_list = lists
    for each in resources:
        bus.declare_queue(each.name)
    async with arm, bus:
        print(json.dumps({"arm": arm.base_url, "bus": bus.connection_string}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(_answered(arm, bus, backlogs, json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), lists=bool(int(sys.argv[2]))))
