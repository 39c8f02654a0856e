"""Triggers, bindings and the app use only the managed identity, with the settings of the template.

The package runs in the local Functions host, whose environment holds what Bicep would set.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from proton import Message

from local.amqp_broker.messages import event_contents
from local.tokens import EVENT_HUBS, SERVICE_BUS, STORAGE
from tests.core_tools.host_process import HostProcess
from tests.deployed.environment import PLAN, Deployed, deployed, template_settings
from tests.infra.test_deployment import EXAMPLE
from tests.local.polling import until

START_SECONDS_MAX = 60.0
SECONDS_MAX = 60.0

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux answers on 127.x.y.z without configuration"
)


def test_no_setting_is_a_connection_string() -> None:
    addresses = dict.fromkeys(("blob", "queue", "table"), "https://account.example/")
    settings = template_settings(addresses, "https://arm.example/", "bus.example", "hub.example")
    told = re.compile("AccountKey=|SharedAccessKey|UseDevelopment")
    assert [name for name, value in settings.items() if told.search(value)] == []


async def shown(host: HostProcess, met: Callable[[], bool], seconds: float = SECONDS_MAX) -> None:
    try:
        await until(met, seconds)
    except AssertionError as error:
        error.add_note(host.printed()[-5000:])
        raise


@pytest.mark.timeout(300)
async def test_the_deployed_app_runs_in_a_host_with_tokens_for_each_service(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    async with deployed(tmp_path) as running:
        host = HostProcess("deployed", tmp_path / "app", running.environment, unused_tcp_port)
        async with host:
            declared = host.declared_functions()
            assert {"metric_collector", "scaler", "metric_ingest", "process_dataset"} <= declared
            await shown(host, lambda: declared <= host.listed_functions(), START_SECONDS_MAX)
            publish_an_event(running)
            await the_backlog_scales_the_plan(running, host)
            await shown(host, lambda: "[dead_lettered]" in host.printed())
            await a_blob_is_processed_after_its_day(running, host)
        audiences = {running.arm.audience, SERVICE_BUS, EVENT_HUBS, STORAGE}
        assert running.identity.audiences_asked == audiences
        assert refusals(host) == []


REFUSAL = re.compile(r"\b40[13]\b|token|credential|unauthorized", re.IGNORECASE)


def refusals(host: HostProcess) -> list[str]:
    """The lines of the log about a refused or missing token, of the host or of the app."""
    printed = (each for each in host.printed().splitlines() if each.startswith("{"))
    return [each for each in printed if REFUSAL.search(json.loads(each)["message"])]


def publish_an_event(running: Deployed) -> None:
    """The Event Hub trigger hands it over, and the app keeps it as a dead letter."""
    broker = running.bus.amqp.broker
    event = event_contents(Message(body=b"not JSON", inferred=True).encode(), 0)
    broker.publish(broker.hub(EXAMPLE["EventHubName"]), event, "0")


async def the_backlog_scales_the_plan(running: Deployed, host: HostProcess) -> None:
    """Timer with a lock in a blob → queue → decision → output binding → queue → scaler."""
    await shown(host, lambda: running.arm.plan(PLAN).capacity > 1)


async def a_blob_is_processed_after_its_day(running: Deployed, host: HostProcess) -> None:
    """Queue trigger → sender of Service Bus → trigger of Service Bus with sessions."""
    namespace, clock = running.bus.amqp.namespace, running.clock
    await running.put(EXAMPLE["TelemetryQueue"], blob_created(clock()))
    queue = EXAMPLE["ProcessingQueue"]
    await shown(host, lambda: namespace.counts(queue, clock()).scheduled == 1)
    clock.advance(timedelta(days=1, hours=3))
    await shown(host, lambda: "[processed]" in host.printed())


def blob_created(now: datetime) -> str:
    """The event of Event Grid about a blob of Application Insights."""
    path = f"resourceId=/A/{now:y=%Y/m=%m/d=%d}/h=01/m=00/PT1H.json"
    return json.dumps(
        {
            "specversion": "1.0",
            "type": "Microsoft.Storage.BlobCreated",
            "source": "/subscriptions/1/storageAccounts/telemetry",
            "id": "event-1",
            "time": now.isoformat(),
            "subject": f"/blobServices/default/containers/insights-logs-appevents/blobs/{path}",
            "data": {"contentLength": 1},
        }
    )
