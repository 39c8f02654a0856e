"""The properties of the queues that data sets use, as the broker and Azure describe them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn
from shared.settings.connections import ServiceBusConnection
from shared.trends.datasets.periods import Period
from shared.trends.datasets.queues import QueueCheck, QueueDescription
from shared.values.messages import LinkFailed
from tests.emulators.rig import running_bus

DAILY = Period()


async def test_the_properties_of_queues_are_read_as_the_broker_describes_them() -> None:
    async with running_bus() as bus:
        working = await bus.queue(requires_session=True)
        window = timedelta(minutes=5)
        processing = await bus.queue(duplicate_window=window, forward_to=working)
        reader = QueueCheck(bus.administration, processing, working, [])
        try:
            assert await reader.facts(processing) == QueueDescription(
                processing, window, requires_session=False, forward_to=working
            )
            assert (await reader.facts(working)).requires_session
        finally:
            await reader.close()


@pytest.mark.parametrize(
    ("forward_to", "path"),
    [
        ("sb://shop.servicebus.windows.net/working", "working"),
        ("sb://shop.servicebus.chinacloudapi.cn/working", "working"),
        ("https://shop.servicebus.usgovcloudapi.net:443/Working/", "Working"),
        ("working", "working"),
    ],
)
async def test_the_properties_of_queues_are_read_in_any_azure_cloud(
    forward_to: str, path: str
) -> None:
    async with ServiceBusAdminStandIn() as admin:
        admin.declare_queue(
            "processing",
            RequiresDuplicateDetection="true",
            DuplicateDetectionHistoryTimeWindow="P1DT13H",
            ForwardTo=forward_to,
        )
        unused = {"DuplicateDetectionHistoryTimeWindow": "PT10M"}
        admin.declare_queue("working", RequiresSession="true", **unused)
        bus = ServiceBusConnection("Bus", admin.connection_string)
        reader = QueueCheck(bus, "processing", "working", [DAILY])
        try:
            assert await reader.facts("processing") == QueueDescription(
                "processing", timedelta(hours=37), requires_session=False, forward_to=path
            )
            assert await reader.facts("working") == QueueDescription(
                "working", None, requires_session=True, forward_to=None
            )
            await reader.check()
            with pytest.raises(LinkFailed, match="queue none does not exist"):
                await reader.facts("none")
        finally:
            await reader.close()
