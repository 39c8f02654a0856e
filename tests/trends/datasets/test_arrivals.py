"""Events of new blobs: both schemas, dates in paths, and events for the poison queue."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from local.twins.messaging import Fault, MemoryLink, MemoryQueue
from shared.messaging.batch_sender import BatchSender
from shared.trends.datasets import flows
from shared.trends.datasets.arrivals import BlobArrived, decode_arrival
from shared.trends.datasets.periods import DAY, Period
from shared.trends.datasets.processing import UnreadableMessage
from shared.values.messages import MessagesRefused

NOW = datetime(2026, 3, 2, 6, tzinfo=UTC)
PATH = "resourceId=/SUBSCRIPTIONS/1/COMPONENTS/SHOP/y=2026/m=03/d=01/h=23/m=00/PT1H.json"
SUBJECT = f"/blobServices/default/containers/insights-logs-appevents/blobs/{PATH}"
CLOUD: dict[str, Any] = {
    "specversion": "1.0",
    "type": "Microsoft.Storage.BlobCreated",
    "source": "/subscriptions/1/resourceGroups/g/providers/Microsoft.Storage/storageAccounts/s",
    "id": "e-1",
    "time": "2026-03-02T05:59:58.1234567Z",
    "subject": SUBJECT,
    "data": {"api": "PutBlockList", "contentLength": 524288, "url": "https://s/c/b"},
}
GRID: dict[str, Any] = {
    "topic": CLOUD["source"],
    "subject": SUBJECT,
    "eventType": "Microsoft.Storage.BlobCreated",
    "eventTime": "2026-03-02T05:59:58.1234567Z",
    "id": "e-1",
    "data": CLOUD["data"],
    "dataVersion": "",
    "metadataVersion": "1",
}
ARRIVED = BlobArrived(
    "insights-logs-appevents", PATH, datetime(2026, 3, 2, 5, 59, 58, 123456, tzinfo=UTC)
)


@pytest.mark.parametrize("event", [CLOUD, GRID, [GRID]])
def test_both_schemas_are_read_plain_and_in_base64(event: object) -> None:
    text = json.dumps(event)
    assert decode_arrival(text) == ARRIVED
    assert decode_arrival(f"\ufeff{text}") == ARRIVED
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert decode_arrival(base64.b64encode(text.encode(encoding)).decode()) == ARRIVED


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        ("not json", "neither JSON"),
        ("[]", "must be one JSON object"),
        (json.dumps([GRID, GRID]), "must be one JSON object"),
        ({**CLOUD, "specversion": "0.3"}, "specversion is '0.3'"),
        (
            {**CLOUD, "type": "Microsoft.Storage.BlobDeleted"},
            "its type is 'Microsoft.Storage.BlobDel",
        ),
        ({**GRID, "eventType": None}, "eventType is None"),
        (
            {**GRID, "subject": "/blobServices/default/containers/c"},
            "must name a blob in a container",
        ),
        ({**CLOUD, "data": "x"}, "data is 'x'"),
        ({**CLOUD, "time": "noon"}, "time is 'noon'; it must be an ISO 8601 time"),
        ({**GRID, "eventTime": "2026-03-02T05:59:58"}, "with a zone"),
    ],
)
def test_an_invalid_event_is_refused_with_the_reason(event: object, complaint: str) -> None:
    with pytest.raises(UnreadableMessage, match=complaint):
        decode_arrival(event if isinstance(event, str) else json.dumps(event))


@pytest.mark.parametrize(("now", "late"), [(NOW.replace(hour=0), ""), (NOW, ":late-1")])
async def test_an_arrival_schedules_one_message_for_each_kind_of_period(
    now: datetime, late: str
) -> None:
    queue = MemoryQueue()
    sender = BatchSender(MemoryLink(queue), no_sleep, lambda: "never used")
    periods = [Period(), Period(DAY / 12)]
    for _ in range(3):
        await flows.schedule_data_set(ARRIVED, periods, sender, now, set())
    assert [message.message_id for message in queue.messages] == [
        f"insights-logs-appevents:2026-03-01{late}",
        f"insights-logs-appevents:2026-03-01T22:00Z/PT2H{late}",
    ]


async def test_an_arrival_whose_message_the_queue_refuses_is_not_taken_as_scheduled() -> None:
    link = MemoryLink(MemoryQueue(), [Fault.REFUSED])
    sender = BatchSender(link, no_sleep, lambda: "never used")
    with pytest.raises(MessagesRefused, match="a message is wrong"):
        await flows.schedule_data_set(ARRIVED, [Period()], sender, NOW, set())


async def test_telemetry_dated_in_the_future_is_refused() -> None:
    sender = BatchSender(MemoryLink(MemoryQueue()), no_sleep, lambda: "never used")
    ahead = BlobArrived("c", "y=2026/m=03/d=04/x", NOW)
    with pytest.raises(UnreadableMessage, match="which is in the future"):
        await flows.schedule_data_set(ahead, [Period()], sender, NOW, set())


async def test_a_path_without_a_date_is_logged_once_for_each_data_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sender = BatchSender(MemoryLink(MemoryQueue()), no_sleep, lambda: "never used")
    undated: set[str] = set()
    for container, path in [("a", "x.json"), ("a", "y.json"), ("b", "z.json"), ("c", PATH)]:
        arrival = BlobArrived(container, path, NOW)
        await flows.schedule_data_set(arrival, [Period()], sender, NOW, undated)
    first, second = caplog.messages
    assert first.startswith("[undated] data set a: the path 'x.json' has no date")
    assert second.startswith("[undated] data set b: the path 'z.json'")


async def no_sleep(_seconds: float) -> None: ...


def test_an_event_in_the_poison_queue_is_logged_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flows.log_poison("not json", "m1")
    flows.log_poison(json.dumps(CLOUD), "m2")
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    unreadable, unexplained = (record.getMessage() for record in caplog.records)
    assert "neither JSON" in unreadable
    assert flows.UNEXPLAINED in unexplained
