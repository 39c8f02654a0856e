"""Answers of the `$management` node of an Event Hubs namespace.

Source: `_get_eventhub_properties` and `_get_partition_properties` of azure-eventhub. Microsoft
does not document them elsewhere.
"""

from datetime import datetime
from typing import Any

from proton import Data

from local.amqp_broker.broker import Broker
from local.amqp_broker.messages import array, to_timestamp
from local.amqp_broker.model.errors import NotSupported
from local.amqp_broker.model.hub import Hub
from local.amqp_broker.requests import Handler, ManagementAnswer, ManagementRequest, answer_with

HUB_TYPE = "com.microsoft:eventhub"
PARTITION_TYPE = "com.microsoft:partition"


def handler(broker: Broker) -> Handler:
    """A handler for READ requests about hubs and partitions."""

    def answer(request: ManagementRequest) -> ManagementAnswer:
        hub = broker.hub(str(request.properties["name"]))
        kind = str(request.properties.get("type"))
        if kind == HUB_TYPE:
            return answer_with(_hub(hub))
        if kind == PARTITION_TYPE:
            partition_id = str(request.properties["partition"])
            return answer_with(_partition(hub, partition_id, broker.now()))
        raise NotSupported(f"the type '{kind}'")

    return answer


def _hub(hub: Hub) -> dict[str, Any]:
    ids = [partition.id for partition in hub.partitions]
    return {
        "name": hub.name,
        "type": HUB_TYPE,
        "created_at": to_timestamp(hub.created_at),
        "partition_count": len(ids),
        "partition_ids": array(Data.STRING, ids),
    }


def _partition(hub: Hub, partition_id: str, now: datetime) -> dict[str, Any]:
    facts = hub.partition(partition_id).facts(now)
    last = facts.last_enqueued_at
    return {
        "name": hub.name,
        "type": PARTITION_TYPE,
        "partition": partition_id,
        "begin_sequence_number": facts.begin_sequence_number,
        "last_enqueued_sequence_number": facts.last_sequence_number,
        "last_enqueued_offset": str(facts.last_offset),
        "last_enqueued_time_utc": to_timestamp(last or hub.created_at),
        "is_partition_empty": facts.is_empty,
    }
