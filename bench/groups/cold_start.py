"""cold_start: CPU time of a new process, to import the app and to its first decision."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Mapping
from statistics import median

from bench.measurement import ROOT, Measurement
from local.azure_apis.arm import ArmStandIn
from local.azure_apis.plans import P1V3, Plan
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn
from local.azurite import Azurite
from local.demo import profile

IMPORTED = "import time; s = time.process_time(); import {}; print(time.process_time() - s)"
STARTED = "import {}; import time; print(time.process_time())"
CLIENTS = (
    "azure.functions",
    "azure.data.tables.aio",
    "azure.storage.queue.aio",
    "azure.servicebus.aio.management",
    "azure.mgmt.web.aio",
)
ENVIRON = {
    "AzureWebJobsStorage": "UseDevelopmentStorage=true",
    "ServiceBusConnection": "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=k",
    "SubscriptionId": "00000000-0000-0000-0000-000000000000",
    "ResourceGroup": "group",
    "ResourceToScale": "plan",
    "Topic": "topic",
    "Subscription": "subscription",
    "ProcessingPeriodHours": "24",
    "EventHubConnection__fullyQualifiedNamespace": "127.0.0.1",
    "TrendsSubmitter": "local",
    "TrendsInput": "in",
    "TrendsOutput": "out",
}


def measure(repeats: int = 9) -> Iterator[Measurement]:
    """Import the app with all features switched on; decide with the shipped rules and settings."""
    imports = ("-c", IMPORTED.format("function_app")), ("-c", IMPORTED.format("azure.functions"))
    app, library = _medians(imports, ENVIRON, repeats)
    yield Measurement(
        "cold_start.import_app",
        app,
        "s",
        library,
        "≤ 0.6 s",
        "seconds of CPU in a fresh interpreter, files cached; baseline: azure.functions alone, "
        "which every app imports",
    )
    decision, clients = asyncio.run(first_decision(repeats))
    yield Measurement(
        "cold_start.first_decision",
        decision,
        "s",
        clients,
        "≤ 0.9 s",
        "seconds of CPU of a fresh process until its first decision with the shipped rules is "
        "committed, through stand-ins, so without a login; baseline: a process that only imports "
        "the clients which this decision needs",
    )


async def first_decision(repeats: int) -> tuple[float, ...]:
    """The seconds of a process that decides, and of one that only imports the clients."""
    arm = ArmStandIn([Plan(id=profile.PLAN, sku=P1V3)])
    service_bus = ServiceBusAdminStandIn()
    service_bus.declare_topic(profile.TOPIC)
    service_bus.declare_subscription(profile.TOPIC, profile.SUBSCRIPTION)
    async with arm, service_bus:
        with Azurite() as azurite:
            storage, bus = azurite.connection_string, service_bus.connection_string
            environ = profile.required(storage, bus, arm.base_url)
            commands = ("-m", "bench.first_decision"), ("-c", STARTED.format(", ".join(CLIENTS)))
            return await asyncio.to_thread(_medians, commands, environ, repeats)


def _medians(
    commands: tuple[tuple[str, str], ...], environ: Mapping[str, str], repeats: int
) -> tuple[float, ...]:
    """The median of the seconds that each command prints. The commands take turns."""
    turns = [[_seconds(command, environ) for command in commands] for _ in range(repeats)]
    return tuple(median(seconds) for seconds in zip(*turns, strict=True))


def _seconds(command: tuple[str, str], environ: Mapping[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environ, stdout=subprocess.PIPE, check=True
    )
    return float(done.stdout)
