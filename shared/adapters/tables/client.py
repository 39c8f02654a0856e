"""The client of a storage account's tables."""

from __future__ import annotations

from azure.data.tables.aio import TableServiceClient

from shared.adapters.azure.credentials import credential_for
from shared.adapters.azure.transport import ServerTimeTransport
from shared.settings.connections import StorageConnection


def table_service(connection: StorageConnection) -> TableServiceClient:
    transport = ServerTimeTransport()
    if connection.connection_string:
        return TableServiceClient.from_connection_string(
            connection.connection_string, transport=transport, retry_total=3
        )
    url = connection.table_url
    credential = credential_for(url, connection.client_id)
    return TableServiceClient(
        endpoint=url, credential=credential, transport=transport, retry_total=3
    )
