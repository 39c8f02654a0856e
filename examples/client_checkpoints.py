"""azure-eventhub's own consumer, with checkpoints that no late owner can move back.

``python -m examples.client_checkpoints CONNECTION_STRING HUB sqlite:///checkpoints.db`` prints the
events of a hub until Ctrl-C, and goes on behind the last one when it is started again. Start it
several times at once and they share the partitions. PostgreSQL and Azure SQL serve as well, and in
the place of the URL a connection string of a storage account, for the table ``Checkpoints``.

``update_checkpoint`` raises OwnershipLostError from who lost the partition meanwhile: what it did
with the event since then, the new owner does again.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from azure.eventhub import EventData, LoadBalancingStrategy
from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.exceptions import OwnershipLostError

from shared.adapters.event_hubs.checkpoints import FencedCheckpointStore
from shared.adapters.sql.checkpoints import SqlPartitionRows
from shared.adapters.sql.engine import Sql
from shared.adapters.sql.schema import metadata
from shared.adapters.tables.checkpoints import TablePartitionRows
from shared.settings.connections import StorageConnection


def partition_rows(place: str) -> SqlPartitionRows | TablePartitionRows:
    """In a database, by its URL, or in the table of a storage account. Close them in the end."""
    if "://" in place.partition("=")[0]:
        return SqlPartitionRows(Sql(place, metadata))
    return TablePartitionRows(StorageConnection("Checkpoints", place))


async def read(
    connection_string: str, hub: str, place: str, told: Callable[[str], None] = print
) -> None:
    """Until it is cancelled."""

    async def on_event(context: Any, event: EventData | None) -> None:
        assert event is not None, "only with max_wait_time"
        told(f"{context.partition_id}:{event.sequence_number} {event.body_as_str()}")
        with suppress(OwnershipLostError):  # another has the partition, and this event too
            await context.update_checkpoint(event)

    rows = partition_rows(place)
    client = EventHubConsumerClient.from_connection_string(
        connection_string,
        "$Default",
        eventhub_name=hub,
        load_balancing_strategy=LoadBalancingStrategy.BALANCED,  # greedy clients never share evenly
        load_balancing_interval=5,  # seconds; one partition is claimed each time
        idle_timeout=20,  # seconds; without it a broken connection can go unnoticed for ever
        checkpoint_store=FencedCheckpointStore(rows),  # one for each client
    )
    try:
        async with client:
            await client.receive(on_event, starting_position="-1")
    finally:
        await rows.close()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(read(sys.argv[1], sys.argv[2], sys.argv[3]))
