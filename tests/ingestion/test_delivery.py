"""What the trigger gives: a batch, or a clear word of what is missing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from shared.ingestion.errors import BadDelivery
from shared.ingestion.events.trigger_batch import parse_batch

AT = datetime(2026, 3, 1, 12, 0, 0, 627000, tzinfo=UTC)


def metadata(**changes: Any) -> dict[str, Any]:
    """As the host gives it for two events."""
    system = [
        {
            "SequenceNumber": 5 + n,
            "Offset": 4000 + n,
            "PartitionKey": "device-1" if n else None,
            "EnqueuedTimeUtc": "2026-03-01T12:00:00.627Z",
        }
        for n in range(2)
    ]
    return {
        "PartitionContext": {"EventHubName": "metrics", "PartitionId": "3"},
        "SystemPropertiesArray": system,
        "PropertiesArray": [{}, {"source": "x"}],
        **changes,
    }


def test_bodies_and_metadata_become_events() -> None:
    delivery = parse_batch([b"a", b"b"], metadata())
    first, second = delivery.events
    assert delivery.partition_id == "3"
    assert (first.sequence, first.offset, first.body, first.partition_key) == (
        5,
        "4000",
        b"a",
        None,
    )
    assert (second.partition_key, second.properties, second.enqueued_at) == (
        "device-1",
        {"source": "x"},
        AT,
    )


def test_offsets_of_geo_replicated_hubs_and_times_without_a_zone_are_read() -> None:
    found = metadata(
        SystemPropertiesArray=[
            {"SequenceNumber": 5, "Offset": "1:2:3", "EnqueuedTimeUtc": "2026-03-01T12:00:00.627"}
        ],
        PropertiesArray=[None],
    )
    (event,) = parse_batch([b"a"], found).events
    assert (event.offset, event.enqueued_at, event.properties) == ("1:2:3", AT, {})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"PartitionContext": None}, "PartitionContext names no partition"),
        ({"PartitionContext": {}}, "PartitionContext names no partition"),
        ({"SystemPropertiesArray": None}, "SystemPropertiesArray holds NoneType for 2 events"),
        ({"SystemPropertiesArray": [{}]}, "SystemPropertiesArray holds 1 for 2 events"),
        ({"SystemPropertiesArray": [{}, {}]}, "an event without 'SequenceNumber'"),
        ({"SystemPropertiesArray": [5, {}]}, "among its properties (int)"),
    ],
)
def test_what_cannot_be_accounted_for_is_refused_whole(changes: Any, said: str) -> None:
    with pytest.raises(BadDelivery) as raised:
        parse_batch([b"a", b"b"], metadata(**changes))
    assert said in str(raised.value)


def test_a_trigger_without_metadata_is_said_to_be_one() -> None:
    with pytest.raises(BadDelivery, match="the trigger gave no metadata"):
        parse_batch([b"a"], None)
