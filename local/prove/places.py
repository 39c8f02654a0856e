"""Where a proof runs: what the program does to the plan and to the app, which differs by place."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from local.azure_apis import arm_errors
from local.azure_apis.arm import ArmStandIn
from local.azure_apis.loopback_server import Fault
from local.azure_apis.plans import P1V3, Plan
from local.azurite import Azurite
from local.demo import profile
from local.demo.system import CONFLICT_PROBABILITY, declare_entities
from local.hosts import Hosts
from local.prove.script import MINIMUM, app_settings

ROOT = Path(__file__).parents[2]
CHANGE_SECONDS, MANY, RETRY_AFTER = 20.0, 1_000_000, "2"
ALERT_LOOKS, ALERT_SECONDS = 20, 60
ALERTS_API = "2019-03-01"
HOST_SETTINGS = {
    "AzureFunctionsJobHost__extensions__queues__maxPollingInterval": "00:00:00.1",
    "AzureFunctionsJobHost__extensions__queues__visibilityTimeout": "00:00:00",
}
"""A host that polls and repeats as fast as the minutes go."""


class Place(Protocol):
    """The plan, the app and Resource Manager of one place."""

    where: str
    speed: float
    look_seconds: float
    ready_seconds: float
    """How long the app and new roles may take until they work."""

    async def capacity(self) -> int: ...

    async def set_capacity(self, capacity: int) -> None: ...

    async def restart(self) -> None: ...

    async def remove_role(self) -> None: ...

    async def return_role(self) -> None: ...

    async def throttle(self) -> None:
        """Refuse requests until ``relent``, where this can be provoked."""
        ...

    async def relent(self) -> None: ...

    async def puts(self, since: datetime) -> Sequence[int | None]:
        """The capacities that were accepted from the app, oldest first."""
        ...

    async def alarms(self) -> Sequence[str] | None:
        """The names of alerts that have fired; None where there are none."""
        ...


@dataclass(slots=True)
class ThisMachine:
    """The complete app in the local functions host, with Azurite and the stand-ins."""

    speed: float
    arm: ArmStandIn
    hosts: Hosts
    where: str = "this machine, with stand-ins for Azure"
    look_seconds: float = 0.5
    ready_seconds: float = 120.0

    async def capacity(self) -> int:
        return self.arm.plan(profile.PLAN).capacity

    async def set_capacity(self, capacity: int) -> None:
        self.arm.set_capacity_by_hand(profile.PLAN, capacity)

    async def restart(self) -> None:
        """Kill the app, and start it again."""
        self.hosts.kill(next(iter(self.hosts.running)))
        self.hosts.start()

    async def remove_role(self) -> None:
        refusal = arm_errors.front_door_error(403, "AuthorizationFailed", "The role is missing.")
        self.arm.fail_next(Fault(refusal), MANY)

    async def return_role(self) -> None:
        self.arm.stop_failing()

    async def throttle(self) -> None:
        wait = {"Retry-After": RETRY_AFTER}
        refusal = arm_errors.front_door_error(429, "TooManyRequests", "Slow down.", wait)
        self.arm.fail_next(Fault(refusal, methods=frozenset({"PUT"})), MANY)

    async def relent(self) -> None:
        self.arm.stop_failing()

    async def puts(self, since: datetime) -> Sequence[int | None]:
        return [put.capacity for put in self.arm.puts if put.accepted and put.time >= since]

    async def alarms(self) -> None:
        return None


@asynccontextmanager
async def this_machine(
    speed: float, folder: Path
) -> AsyncIterator[tuple[ThisMachine, dict[str, str]]]:
    """The running system, and the settings of the app."""
    from local.amqp_broker.administration import service_bus  # noqa: PLC0415  may not be installed

    async with AsyncExitStack() as stack:
        azurite = Azurite()
        stack.callback(azurite.stop)
        await asyncio.to_thread(azurite.start)
        bus = await stack.enter_async_context(service_bus())
        declare_entities(bus.amqp.broker)
        arm = await stack.enter_async_context(
            ArmStandIn(
                [Plan(profile.PLAN, MINIMUM, P1V3)],
                operation_seconds=CHANGE_SECONDS / speed,
                retry_after_seconds=0,
                conflict_probability=CONFLICT_PROBABILITY,
            )
        )
        settings = {
            **profile.required(azurite.connection_string, bus.connection_string, arm.base_url),
            **profile.ingestion(bus.connection_string),
            **HOST_SETTINGS,
            **app_settings(speed),
        }
        log = stack.enter_context((folder / "host.log").open("wb"))
        hosts = Hosts(settings, log, folder / "key")
        stack.callback(hosts.stop)
        hosts.start()
        yield ThisMachine(speed, arm, hosts), settings


class AzFailed(Exception):
    """The Azure CLI failed. The text is its error."""


@dataclass(slots=True)
class InAzure:
    """A deployment of ``infra/prove.sh``, through the Azure CLI with the login of the user."""

    speed: float
    plan: str
    """The resource ID. The app and its identity are in the same resource group."""
    app: str
    where: str = "Azure"
    look_seconds: float = 15.0
    ready_seconds: float = 900.0
    _role: list[str] = field(default_factory=list)

    async def capacity(self) -> int:
        shown = await _az("appservice", "plan", "show", "--ids", self.plan)
        return int(shown["sku"]["capacity"])

    async def set_capacity(self, capacity: int) -> None:
        count = ("--number-of-workers", str(capacity))
        await _az("appservice", "plan", "update", "--ids", self.plan, *count)

    async def restart(self) -> None:
        await _az("functionapp", "restart", "--resource-group", self._group, "--name", self.app)

    async def _assignment(self) -> Any:
        """The assignment of the custom role of the app, on the plan."""
        at_plan = ("--scope", self.plan)
        roles = await _az("role", "definition", "list", "--custom-role-only", "true", *at_plan)
        own = {each["name"] for each in roles}
        for each in await _az("role", "assignment", "list", *at_plan):
            if each["roleDefinitionId"].rsplit("/", 1)[-1] in own:
                return each
        raise AzFailed("the app has no role of its own on the plan")

    async def remove_role(self) -> None:
        """Delete the assignment, which ``return_role`` makes again."""
        given = await self._assignment()
        owner, kind = "--assignee-object-id", "--assignee-principal-type"
        self._role = [owner, given["principalId"], kind, "ServicePrincipal"]
        self._role += ["--role", given["roleDefinitionId"], "--scope", self.plan]
        await _az("role", "assignment", "delete", "--ids", given["id"])

    async def return_role(self) -> None:
        if self._role:
            await _az("role", "assignment", "create", *self._role)
            self._role = []

    async def throttle(self) -> None:
        """It comes as it comes."""

    async def relent(self) -> None: ...

    async def puts(self, since: datetime) -> Sequence[int | None]:
        """From the activity log, which has no capacities. It is written minutes later."""
        await asyncio.sleep(ALERT_SECONDS)
        app = (await self._assignment())["principalId"]
        start = ("--start-time", f"{since:%Y-%m-%dT%H:%M:%SZ}", "--max-events", "1000")
        events = await _az("monitor", "activity-log", "list", "--resource-id", self.plan, *start)
        accepted = {
            each["correlationId"]
            for each in events
            if each["operationName"]["value"].lower() == "microsoft.web/serverfarms/write"
            and each["status"]["value"] in ("Accepted", "Succeeded")
            and app in (each.get("claims") or {}).values()
        }
        return [None] * len(accepted)

    async def alarms(self) -> Sequence[str]:
        """The rules that fired. Alerts are evaluated every five minutes, on logs that are late."""
        fired: list[str] = []
        subscription = self.plan.split("/resourceGroups/")[0]
        query = f"api-version={ALERTS_API}&targetResourceGroup={self._group}&timeRange=1d"
        url = f"{subscription}/providers/Microsoft.AlertsManagement/alerts?{query}"
        for _ in range(ALERT_LOOKS):
            answer = await _az("rest", "--method", "get", "--url", url)
            rules = (each["properties"]["essentials"]["alertRule"] for each in answer["value"])
            fired = [rule.rsplit("/", 1)[-1] for rule in rules]
            if len(set(fired)) > 1:
                break
            await asyncio.sleep(ALERT_SECONDS)
        return fired

    @property
    def _group(self) -> str:
        return self.plan.split("/")[4]


async def _az(*arguments: str) -> Any:
    """The answer of the Azure CLI; None if it has none. Raises AzFailed."""
    command = ["az", *arguments, "--output", "json"]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AzFailed(done.stderr.strip() or f"az {arguments[0]} ended with {done.returncode}")
    return json.loads(done.stdout) if done.stdout.strip() else None
