"""Parsing what the Event Hub trigger delivers: a batch, or an error that names what is missing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from shared.ingestion.errors import BadDelivery
from shared.ingestion.events.trigger_batch import parse_batch

AT = datetime(2026, 3, 1, 12, 0, 0, 627000, tzinfo=UTC)


def metadata(**changes: Any) -> dict[str, Any]:
    """The metadata of two events, as the host delivers it."""
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
    assert (first.sequence, first.offset, first.body) == (5, "4000", b"a")
    assert (first.partition_key, second.partition_key) == (None, "device-1")
    assert (second.properties, second.enqueued_at) == ({"source": "x"}, AT)


def test_offsets_of_geo_replicated_hubs_and_times_without_a_zone_are_read() -> None:
    delivered = metadata(
        SystemPropertiesArray=[
            {"SequenceNumber": 5, "Offset": "1:2:3", "EnqueuedTimeUtc": "2026-03-01T12:00:00.627"}
        ],
        PropertiesArray=[None],
    )
    (event,) = parse_batch([b"a"], delivered).events
    assert (event.offset, event.enqueued_at, event.properties) == ("1:2:3", AT, {})
    del delivered["PropertiesArray"]
    assert parse_batch([b"a"], delivered).events == (event,)


NOT_ONE_EACH = "SystemPropertiesArray must hold an object for each of 2 events, but holds"


@pytest.mark.parametrize(
    ("delivered", "reason"),
    [
        (None, "the trigger's metadata holds nothing"),
        (metadata(PartitionContext=None), "PartitionContext holds no partition ID"),
        (metadata(PartitionContext={}), "PartitionContext holds no partition ID"),
        (metadata(SystemPropertiesArray=None), f"{NOT_ONE_EACH} NoneType"),
        (metadata(SystemPropertiesArray=[{}]), f"{NOT_ONE_EACH} 1"),
        (
            metadata(SystemPropertiesArray=[{}, {}]),
            "an event's system properties () lack 'SequenceNumber'",
        ),
        (metadata(SystemPropertiesArray=[5, {}]), "an event's system properties (int) lack"),
    ],
)
def test_a_batch_with_incomplete_metadata_is_refused_as_a_whole(
    delivered: Any, reason: str
) -> None:
    with pytest.raises(BadDelivery) as raised:
        parse_batch([b"a", b"b"], delivered)
    assert reason in str(raised.value)
