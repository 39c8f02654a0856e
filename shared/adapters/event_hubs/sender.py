"""Sends events, for people who try things: the app itself only reads."""

from __future__ import annotations

import asyncio

from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient
from azure.eventhub.exceptions import EventHubError

from shared.adapters.event_hubs.hub import client_of
from shared.ingestion.errors import HubUnavailable
from shared.settings.connections import EventHubConnection

SECONDS_MAX = 30


async def send_event(
    connection: EventHubConnection, body: bytes, seconds_max: float = SECONDS_MAX
) -> None:
    """Returns when the hub has it. Raises HubUnavailable."""
    try:
        client = client_of(EventHubProducerClient, connection, retry_total=1)
        async with asyncio.timeout(seconds_max), client:
            await client.send_event(EventData(body))
    except TimeoutError as error:
        raise HubUnavailable(f"{connection.hub}: no answer within {seconds_max:g} s") from error
    except (EventHubError, OSError) as error:
        raise HubUnavailable(f"{connection.hub}: {type(error).__name__}: {error}") from error
