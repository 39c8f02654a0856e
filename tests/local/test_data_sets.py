"""Telemetry blobs through the whole app: ten events, one message, one processing, one claim."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta

from azure.storage.queue.aio import QueueClient

from local.amqp_broker import VirtualClock
from local.amqp_broker.administration import service_bus
from local.amqp_broker.processing_queues import declare_processing_queues
from local.azurite import Azurite
from local.demo.hosted_app import hosted_app
from local.demo.system import APP_DIR, shrunk_host_json
from local.functions_host import FunctionsHost, InvocationCounts
from shared.settings.connections import StorageConnection
from shared.trends.datasets.periods import Period
from shared.trends.datasets.processing import decode_work, schedule_processing
from shared.trends.store.claims import TableClaims
from tests.local.polling import until
from tests.settings.test_settings import SINGLE

QUEUE = "blobs-of-a-day"
NEVER = "0 0 0 1 1 *"
WITHOUT_SCALING = {
    **SINGLE,
    "MetricCollectorSchedule": NEVER,
    "ReconcilerSchedule": NEVER,
    "LogRetentionSchedule": NEVER,
    "NotifierSchedule": NEVER,
}


def blob_created(number: int, now: datetime) -> str:
    path = f"resourceId=/A/{now:y=%Y/m=%m/d=%d}/h={number % 24:02}/m=00/PT1H.json"
    return json.dumps(
        {
            "specversion": "1.0",
            "type": "Microsoft.Storage.BlobCreated",
            "source": "/subscriptions/1/storageAccounts/telemetry",
            "id": f"event-{number}",
            "time": now.isoformat(),
            "subject": f"/blobServices/default/containers/insights-logs-appevents/blobs/{path}",
            "data": {"contentLength": 1},
        }
    )


def succeeded(host: FunctionsHost, function: str) -> int:
    counts = host.counts.get(function, InvocationCounts())
    return counts.invocations - counts.failures


async def test_ten_blobs_of_one_day_lead_to_one_processing_after_the_day(
    azurite: Azurite,
) -> None:
    clock = VirtualClock()
    today = datetime.now(UTC)
    async with service_bus(clock=clock) as bus:
        namespace = bus.amqp.namespace
        declare_processing_queues(namespace)
        settings = {
            **WITHOUT_SCALING,
            "AzureWebJobsStorage": azurite.connection_string,
            "ServiceBusConnection": bus.connection_string,
            "ProcessingPeriodHours": "24",
            "TelemetryQueue": QUEUE,
        }
        host = FunctionsHost(APP_DIR, settings=settings, config=shrunk_host_json())
        async with (
            hosted_app(host),
            QueueClient.from_connection_string(azurite.connection_string, QUEUE) as queue,
        ):
            await queue.create_queue()
            for number in range(10):
                event = blob_created(number, today)  # Event Grid writes base64; senders may not
                in_base64 = base64.b64encode(event.encode()).decode()
                await queue.send_message(in_base64 if number % 2 else event)
            await queue.send_message("no event")

            await until(lambda: succeeded(host, "telemetry_arrived") == 10, 30)
            await until(lambda: succeeded(host, "telemetry_poison") == 1, 30)
            assert namespace.counts("processing", clock()).scheduled == 1
            assert "process_dataset" not in host.counts
            clock.advance(timedelta(days=1, hours=2))
            await until(lambda: succeeded(host, "process_dataset") == 1, 30)
            await until(lambda: namespace.counts("working", clock()).active == 0, 30)
        assert host.counts["process_dataset"].invocations == 1
    claims = TableClaims(StorageConnection("Storage", azurite.connection_string))
    work = decode_work(scheduled_for(today))
    claim = await claims.take(work, "somebody else")
    await claims.close()
    assert claim.done_at is not None
    assert claim.holder != "somebody else"


def scheduled_for(day: datetime) -> bytes:
    body = schedule_processing("insights-logs-appevents", Period(), day).body
    assert isinstance(body, bytes)
    return body
