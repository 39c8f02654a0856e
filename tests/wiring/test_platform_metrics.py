"""The app counts completed messages by default where it knows the namespace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from local.azure_apis.arm import ArmStandIn
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn
from shared.autoscaling import ServiceBusQueue
from shared.autoscaling.flows.reading import read_source
from shared.autoscaling.learning.counts import COMPLETED
from shared.settings import SettingsError
from shared.values.measurements import MetricValue
from shared.wiring.app import App
from shared.wiring.checks import check
from tests.builders import NOW

ROOT = Path(__file__).parents[2]
EXAMPLE: dict[str, str] = json.loads((ROOT / "local.settings.json.example").read_text())["Values"]
BUS = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/group-1/providers"
    "/Microsoft.ServiceBus/namespaces/bus-1"
)


async def test_the_shipped_rules_read_the_messages_that_azure_monitor_counts() -> None:
    async with ArmStandIn([], clock=lambda: NOW) as arm:
        arm.metrics.add(BUS, "CompleteMessage")
        environ = {**EXAMPLE, "ServiceBusNamespaceIds": BUS, "ArmEndpoint": arm.base_url}
        async with App(environ, lambda: NOW) as app:
            (resource,) = app.resources.values()
            assert resource.throughput.counted_metric == COMPLETED
            source = resource.metrics[COMPLETED]
            assert await read_source(source, app.scaling.reader, 5) == []


async def test_the_namespace_is_the_one_that_the_connection_names() -> None:
    named = {"ServiceBusConnection__fullyQualifiedNamespace": "bus-2.servicebus.windows.net"}
    both = f"{BUS}, {BUS.replace('bus-1', 'bus-2')}"
    environ = {**EXAMPLE, **named, "ServiceBusConnection": "", "ServiceBusNamespaceIds": both}
    async with App(environ) as app:
        (resource,) = app.resources.values()
        source = resource.metrics[COMPLETED]
        assert source.series is not None
        assert source.series.resource_id.endswith("/bus-2")


async def test_counts_are_read_through_resource_manager_if_the_setting_says_so() -> None:
    async with ArmStandIn([], clock=lambda: NOW) as arm, ServiceBusAdminStandIn() as bus:
        bus.declare_queue("work")
        arm.service_bus.add(BUS, bus)
        chosen = {"ServiceBusCountsFrom": "resource-manager", "ServiceBusNamespaceIds": BUS}
        environ = {**EXAMPLE, **chosen, "ArmEndpoint": arm.base_url}
        async with App(environ, lambda: NOW) as app:
            assert await read_source(ServiceBusQueue("work"), app.scaling.reader, 5) == (
                MetricValue(NOW, 0.0),
            )
        assert not bus.requests


def test_reading_through_resource_manager_needs_the_id_of_each_namespace() -> None:
    environ = {**EXAMPLE, "ServiceBusCountsFrom": "resource-manager"}
    with pytest.raises(SettingsError, match="ServiceBusNamespaceIds has no namespace of Service"):
        check(environ)
    with pytest.raises(SettingsError, match="must be one of namespace, resource-manager"):
        check({**environ, "ServiceBusCountsFrom": "arm"})


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({}, False),
        ({"ServiceBusNamespaceIds": BUS}, True),
        ({"ServiceBusNamespaceIds": BUS, "InstanceRatePerMinute": "30"}, True),
    ],
    ids=["no namespace", "the rate is learned", "the rate is set, and compared with the counts"],
)
async def test_azure_monitor_is_asked_where_the_namespace_is_known(
    changes: dict[str, str], asked: bool
) -> None:
    async with App({**EXAMPLE, **changes}) as app:
        (resource,) = app.resources.values()
        assert (COMPLETED in resource.metrics) is asked
        assert any(source.series for source in resource.metrics.values()) is asked
