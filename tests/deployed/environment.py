"""A deployment on this machine: the services, and the app settings that the templates set."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import ResourceExistsError
from azure.storage.queue import QueueClient

from local.amqp_broker.administration import ServiceBusStandIn, service_bus
from local.amqp_broker.model.properties import HubProperties
from local.amqp_broker.processing_queues import declare_processing_queues
from local.azure_apis.arm import ArmStandIn
from local.azure_apis.plans import P1V3, Plan, PlanId
from local.clock import utc_now
from local.demo.traffic import an_item
from shared.settings.connections import AZURITE_KEY
from tests.deployed.services import (
    AMQP_PORT,
    IDENTITY_HEADER,
    Certificate,
    IdentityEndpoint,
    behind_tls,
    new_host,
    storage,
)
from tests.infra.bicep import Expression
from tests.infra.test_deployment import APP, EXAMPLE, MAIN, computed_settings

PLAN = PlanId("00000000-0000-0000-0000-000000000001", "group", "workers")
NAMESPACE_ID = (
    f"/subscriptions/{PLAN.subscription}/resourceGroups/{PLAN.resource_group}"
    "/providers/Microsoft.ServiceBus/namespaces/bus"
)
CLIENT_ID = "11111111-1111-1111-1111-111111111111"
TOPIC, SUBSCRIPTION, BACKLOG = "orders", "billing", 900
CHOSEN = {
    "DryRun": "false",
    "MetricCollectorSchedule": "* * * * * *",
    "MinimumSamples": "1",
    "ProcessingPeriodHours": "24",
}
"""The parameter `settings` of the deployment."""


class MovableClock:
    """The real time, plus what a test has added to it."""

    def __init__(self) -> None:
        self._ahead = timedelta()

    def __call__(self) -> datetime:
        return utc_now() + self._ahead

    def advance(self, by: timedelta) -> None:
        self._ahead += by


@dataclass
class Deployed:
    """The services of a deployment, and the environment of its app."""

    arm: ArmStandIn
    bus: ServiceBusStandIn
    clock: MovableClock
    identity: IdentityEndpoint
    settings: dict[str, str]
    certificate: Certificate

    @property
    def environment(self) -> dict[str, str]:
        """The app settings, and what App Service and the operating system add."""
        return self.settings | {
            "IDENTITY_ENDPOINT": self.identity.url,
            "IDENTITY_HEADER": IDENTITY_HEADER,
            "SSL_CERT_FILE": str(self.certificate.file),
            "PATH": os.environ["PATH"],
        }

    async def put(self, queue: str, text: str) -> None:
        """Put a message into a storage queue, in base64 as Event Grid does."""
        await asyncio.to_thread(self._put, queue, base64.b64encode(text.encode()).decode())

    def _put(self, queue: str, text: str) -> None:
        trusted = str(self.certificate.file)
        url = self.settings["AzureWebJobsStorage__queueServiceUri"]
        key = AzureNamedKeyCredential("devstoreaccount1", AZURITE_KEY)
        with QueueClient(url, queue, key, connection_verify=trusted) as client:
            with contextlib.suppress(ResourceExistsError):
                client.create_queue()
            client.send_message(text)


def resolved(values: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, str]:
    """The values of a template's object, with what each expression has in this deployment."""
    return {
        name: known[str(value)] if isinstance(value, Expression) else value
        for name, value in values.items()
    }


def template_settings(addresses: Mapping[str, str], arm: str, bus: str, hub: str) -> dict[str, str]:
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
            "topicSubscription": SUBSCRIPTION,
            "environment().resourceManager": arm,
            "makesNamespace ? newNamespaceId : serviceBusNamespaceId": NAMESPACE_ID,
        },
    )
    endpoint = "storage.properties.primaryEndpoints."
    known = {
        "identityClientId": CLIENT_ID,
        f"{endpoint}blob": addresses["blob"],
        f"{endpoint}queue": addresses["queue"],
        f"{endpoint}table": addresses["table"],
        "serviceBusHost": bus,
        "eventHubHost": hub,
        # Without a connection string, the app exports no telemetry.
        "insights.properties.ConnectionString": "",
        "'ClientId=${identityClientId};Authorization=AAD'": "",
    }
    connections = resolved(APP.named("connections").value, known)
    connections |= resolved(APP.named("eventHub").value, known)
    limits: dict[str, str] = APP.named("limits").value
    return defaults | chosen | CHOSEN | limits | connections


@asynccontextmanager
async def deployed(folder: Path) -> AsyncIterator[Deployed]:
    """Entities move by a clock of their own. Tokens and answers over HTTP have the real time."""
    host, clock = new_host(), MovableClock()
    certificate = Certificate(folder, host)
    async with AsyncExitStack() as stack:
        identity = await stack.enter_async_context(IdentityEndpoint(CLIENT_ID).running())
        plan = Plan(PLAN, capacity=1, sku=P1V3)
        arm = await stack.enter_async_context(ArmStandIn([plan], operation_seconds=0.2))
        arm.may_read_operations = False
        arm.metrics.add(NAMESPACE_ID, "CompleteMessage", "IncomingMessages")
        bus = await stack.enter_async_context(service_bus(clock=clock, token_clock=utc_now))
        bus.administration.clock = utc_now  # else samples would be in the future later
        _declare(bus)
        arm_port = await stack.enter_async_context(behind_tls(arm.port, certificate))
        bus_port = await stack.enter_async_context(behind_tls(bus.amqp.port, certificate))
        await stack.enter_async_context(behind_tls(bus.amqp.port, certificate, AMQP_PORT))
        addresses = await stack.enter_async_context(storage(folder, certificate))
        arm.audience = f"https://{host}:{arm_port}"
        settings = template_settings(addresses, f"{arm.audience}/", f"{host}:{bus_port}", host)
        yield Deployed(arm, bus, clock, identity, settings, certificate)


def _declare(bus: ServiceBusStandIn) -> None:
    """The entities that the templates create, and a backlog."""
    namespace, clock = bus.amqp.namespace, bus.amqp.broker.clock
    namespace.declare_topic(TOPIC)
    namespace.declare_subscription(TOPIC, SUBSCRIPTION)
    declare_processing_queues(namespace, EXAMPLE["ProcessingQueue"], EXAMPLE["WorkingQueue"])
    trigger, read_back = (
        computed_settings()["EventHubConsumerGroup"],
        EXAMPLE["EventHubReadBackConsumerGroup"],
    )
    properties = HubProperties(consumer_groups=("$Default", trigger, read_back))
    bus.amqp.broker.declare_hub(EXAMPLE["EventHubName"], properties)
    namespace.send(TOPIC, [an_item()] * BACKLOG, clock())
