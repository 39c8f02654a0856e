"""The app runs with the settings that the template gives it, by its managed identity alone."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from local.azure_apis.entities import EntityCounts
from local.azure_apis.plans import P1V3, Plan, PlanId
from tests.deployed.services import (
    HOST,
    IDENTITY_HEADER,
    SERVICE_BUS_AUDIENCE,
    Certificate,
    CheckingArm,
    CheckingServiceBus,
    IdentityEndpoint,
    behind_tls,
    storage,
)
from tests.infra.bicep import Expression
from tests.infra.test_deployment import APP, EXAMPLE, MAIN, computed_settings

ROOT = Path(__file__).parents[2]
PLAN = PlanId("00000000-0000-0000-0000-000000000001", "group", "workers")
NAMESPACE_ID = (
    f"/subscriptions/{PLAN.subscription}/resourceGroups/{PLAN.resource_group}"
    "/providers/Microsoft.ServiceBus/namespaces/bus"
)
CLIENT_ID = "11111111-1111-1111-1111-111111111111"
TOPIC, SUBSCRIPTION, BACKLOG = "orders", "billing", 900
SECONDS_MAX = 120
HOUR = timedelta(hours=1)
STORAGE_AUDIENCE = "https://storage.azure.com"
CHOSEN = {"DryRun": "false", "MinimumSamples": "1", "ArmPollingSeconds": "0.1"}
"""The parameter `settings` of the deployment."""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux answers on 127.0.0.2 without configuration"
)


class Counted:
    """Every entity holds the same number of messages."""

    def counts(self, entity_path: str) -> EntityCounts:  # noqa: ARG002
        return EntityCounts(active=BACKLOG)


@dataclass
class Deployed:
    """The services of a deployment, and the settings of its app."""

    arm: CheckingArm
    identity: IdentityEndpoint
    settings: dict[str, str]
    certificate: Certificate

    async def run(self) -> dict[str, Any]:
        """Run each function once in a process of its own."""
        environment = self.settings | {
            "IDENTITY_ENDPOINT": self.identity.url,
            "IDENTITY_HEADER": IDENTITY_HEADER,
            "SSL_CERT_FILE": str(self.certificate.file),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.deployed.app_once",
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(SECONDS_MAX):
            out, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        return result


def resolved(values: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, str]:
    """The values of a template's object, with what each expression has in this deployment."""
    return {
        name: known[str(value)] if isinstance(value, Expression) else value
        for name, value in values.items()
    }


def template_settings(addresses: Mapping[str, str], arm: str, bus: str) -> dict[str, str]:
    """All app settings, composed as main.bicep and function_app.bicep compose them."""
    left_out = MAIN.named("connectionSettings").value
    defaults = {name: value for name, value in EXAMPLE.items() if name not in left_out}
    chosen = resolved(
        computed_settings(),
        {
            "plan[2]": PLAN.subscription,
            "plan[4]": PLAN.resource_group,
            "plan[8]": PLAN.name,
            "topic": TOPIC,
            "subscription": SUBSCRIPTION,
            "environment().resourceManager": arm,
            "makesNamespace ? newNamespaceId : serviceBusNamespaceId": NAMESPACE_ID,
        },
    )
    endpoint = "storage.properties.primaryEndpoints."
    connections = resolved(
        APP.named("connections").value,
        {
            "identityClientId": CLIENT_ID,
            f"{endpoint}blob": addresses["blob"],
            f"{endpoint}queue": addresses["queue"],
            f"{endpoint}table": addresses["table"],
            "serviceBusHost": bus,
            # Without a connection string, the app exports no telemetry.
            "insights.properties.ConnectionString": "",
            "'ClientId=${identityClientId};Authorization=AAD'": "",
        },
    )
    limits: dict[str, str] = APP.named("limits").value
    return defaults | chosen | CHOSEN | limits | connections


@asynccontextmanager
async def deployed(folder: Path) -> AsyncIterator[Deployed]:
    certificate = Certificate(folder)
    async with AsyncExitStack() as stack:
        identity = await stack.enter_async_context(IdentityEndpoint(CLIENT_ID).running())
        plan = Plan(PLAN, capacity=1, sku=P1V3)
        arm = await stack.enter_async_context(CheckingArm([plan], operation_seconds=0.2))
        arm.may_read_operations = False
        arm.metrics.add(NAMESPACE_ID, "CompleteMessage", "IncomingMessages")
        bus = await stack.enter_async_context(CheckingServiceBus(Counted()))
        bus.declare_topic(TOPIC)
        bus.declare_subscription(TOPIC, SUBSCRIPTION)
        arm_port = await stack.enter_async_context(behind_tls(arm.port, certificate))
        bus_port = await stack.enter_async_context(behind_tls(bus.port, certificate))
        addresses = await stack.enter_async_context(storage(folder, certificate))
        arm.audience = f"https://{HOST}:{arm_port}"
        settings = template_settings(addresses, f"{arm.audience}/", f"{HOST}:{bus_port}")
        yield Deployed(arm, identity, settings, certificate)


def test_no_setting_is_a_connection_string() -> None:
    addresses = dict.fromkeys(("blob", "queue", "table"), "https://account.example/")
    settings = template_settings(addresses, "https://arm.example/", "bus.example")
    assert not [
        name
        for name, value in settings.items()
        if "AccountKey=" in value or "SharedAccessKey" in value or "UseDevelopment" in value
    ]


async def test_the_deployed_app_scales_the_plan_with_tokens_for_each_service(
    tmp_path: Path,
) -> None:
    async with deployed(tmp_path) as running:
        result = await running.run()
        assert result["problems"] == []
        assert len(result["collected"]) == 2, "the capacity and the backlog were read"
        assert len(result["actions"]) == 1
        assert running.arm.plan(PLAN).capacity > 1
        asked = {each.rstrip("/") for each in running.identity.audiences_asked}
        assert asked == {running.arm.audience, SERVICE_BUS_AUDIENCE, STORAGE_AUDIENCE}


ARM = "the address of Resource Manager"


@pytest.mark.parametrize(
    ("service", "lifetime", "collected"),
    [
        (ARM, None, 1),
        (SERVICE_BUS_AUDIENCE, -HOUR, 1),
        (STORAGE_AUDIENCE, None, 0),
        (STORAGE_AUDIENCE, -HOUR, 0),
    ],
    ids=["arm-audience", "service-bus-expired", "storage-audience", "storage-expired"],
)
async def test_a_token_of_another_audience_or_that_has_expired_is_refused(
    service: str, lifetime: timedelta | None, collected: int, tmp_path: Path
) -> None:
    """Each service checks tokens, so the test above can fail."""
    async with deployed(tmp_path) as running:
        running.identity.wrong_for = running.arm.audience if service == ARM else service
        running.identity.wrong_lifetime = lifetime
        result = await running.run()
        assert len(result["collected"]) == collected
        assert result["problems"]
        for problem in result["problems"]:
            assert "auth" in problem.lower() or "token" in problem.lower()
        assert running.arm.plan(PLAN).capacity == 1
