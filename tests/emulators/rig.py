"""Brokers for the app's adapters: Microsoft's emulators if they are named, else the stand-in.

The variables SERVICE_BUS_EMULATOR and EVENT_HUBS_EMULATOR hold connection strings. The entities of
the emulators are declared in service_bus.json and event_hubs.json, those of the stand-in here.
`tests/emulators/test_entities.py` checks that both declare the same.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from local.amqp_broker.administration import service_bus
from local.amqp_broker.model.properties import HubProperties, QueueProperties
from shared.settings.connections import EventHubConnection, ServiceBusConnection

SERVICE_BUS, EVENT_HUBS = "SERVICE_BUS_EMULATOR", "EVENT_HUBS_EMULATOR"
ADMINISTRATION_PORT = 5300
"""Microsoft's emulator serves administration over HTTP on a port of its own."""

FOLDER = Path(__file__).parent
JOBS, DAILY, TOPIC, SUBSCRIPTION = "jobs", "daily", "orders", "billing"
HUB, PARTITIONS = "telemetry", 32
GROUPS = ("g1", "g2", "g3", "g4", "g5", "readback")
WINDOW = timedelta(minutes=5)
"""The longest window of duplicate detection that the tests need."""


@dataclass(frozen=True, slots=True)
class Bus:
    """A Service Bus namespace with the declared entities."""

    connection: ServiceBusConnection
    administration: ServiceBusConnection
    is_emulator: bool


@asynccontextmanager
async def running_bus() -> AsyncIterator[Bus]:
    if string := os.environ.get(SERVICE_BUS, ""):
        administration = with_port(string, ADMINISTRATION_PORT)
        yield Bus(_bus(string), _bus(administration), True)
        return
    async with service_bus() as stand_in:
        namespace = stand_in.amqp.namespace
        namespace.declare_queue(JOBS, QueueProperties())
        namespace.declare_queue(DAILY, QueueProperties(duplicate_window=WINDOW))
        namespace.declare_topic(TOPIC)
        namespace.declare_subscription(TOPIC, SUBSCRIPTION)
        connection = _bus(stand_in.connection_string)
        yield Bus(connection, connection, False)


@asynccontextmanager
async def running_hub() -> AsyncIterator[EventHubConnection]:
    if string := os.environ.get(EVENT_HUBS, ""):
        yield _hub(string)
        return
    async with service_bus() as stand_in:
        properties = HubProperties(
            partition_count=PARTITIONS, consumer_groups=("$Default", *GROUPS)
        )
        stand_in.amqp.broker.declare_hub(HUB, properties)
        yield _hub(stand_in.connection_string)


def new_id() -> str:
    """Emulators keep messages of earlier tests, so each test marks its own."""
    return uuid.uuid4().hex[:8]


def with_port(connection_string: str, port: int) -> str:
    return re.sub(r"(sb://[^:/;]+)(:\d+)?", rf"\g<1>:{port}", connection_string)


def declared_entities(file: str) -> Iterator[dict[str, Any]]:
    """Namespaces in the configuration file of an emulator."""
    document = json.loads((FOLDER / file).read_text())["UserConfig"]
    yield from document.get("Namespaces", document.get("NamespaceConfig"))


def _bus(connection_string: str) -> ServiceBusConnection:
    return ServiceBusConnection("ServiceBusConnection", connection_string)


def _hub(connection_string: str) -> EventHubConnection:
    host = re.search(r"sb://([^;/]+)", connection_string)
    assert host is not None
    return EventHubConnection("EventHubConnection", HUB, host[1], connection_string)
