"""Connections to services: a connection string, or an address used with a managed identity.

They are looked up in the same way as by the Functions host: ``AzureWebJobs<name>`` before
``<name>``, and ``<name>__<suffix>`` for an address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from shared.settings.amqp_transport import OVER_TCP, AmqpTransport, amqp_transport

AZURITE_KEY = (  # published by Microsoft and the same for every user
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

HOST_STORAGE = "AzureWebJobsStorage"
SERVICES = ("queue", "table")
HOST_SERVICES = ("blob", *SERVICES)
"""The Functions host also keeps the leases of timers in blobs."""


@dataclass(frozen=True, slots=True)
class StorageConnection:
    """A storage account, by connection string or by the addresses of its services."""

    name: str
    connection_string: str = field(default="", repr=False)
    queue_url: str = ""
    table_url: str = ""
    client_id: str = ""
    """The client ID of a user-assigned identity; empty for the app's system-assigned identity."""


@dataclass(frozen=True, slots=True)
class ServiceBusConnection:
    """A Service Bus namespace, by connection string or by its fully qualified name."""

    name: str
    connection_string: str = field(default="", repr=False)
    namespace: str = ""
    client_id: str = ""
    """The client ID of a user-assigned identity; empty for the app's system-assigned identity."""
    transport: AmqpTransport = OVER_TCP

    @property
    def host(self) -> str:
        """The namespace's host name, without any secret."""
        return self.namespace or _host(dict(_pairs(self.connection_string))["endpoint"])


@dataclass(frozen=True, slots=True)
class EventHubConnection:
    """An event hub, by connection string or by the fully qualified name of its namespace."""

    name: str
    hub: str
    namespace: str
    """The host name of the namespace, in lower case."""
    connection_string: str = field(default="", repr=False)
    client_id: str = ""
    """The client ID of a user-assigned identity; empty for the app's system-assigned identity."""
    transport: AmqpTransport = OVER_TCP


Namespace = TypeVar("Namespace", ServiceBusConnection, EventHubConnection)


def storage_connection(environ: Mapping[str, str], name: str) -> StorageConnection | str:
    """The connection, or the problem with its settings."""
    prefix = _prefix(environ, name)
    if text := tidy(environ.get(prefix, "")):
        spelled_out = _spelled_out(text)
        keys = _keys(spelled_out)
        if {"accountname", "accountkey"} <= keys or keys & {"queueendpoint", "tableendpoint"}:
            return StorageConnection(name, spelled_out)
        return f"{prefix}: must be a storage connection string such as UseDevelopmentStorage=true"
    addresses = _addresses(environ, prefix)
    account = addresses.get("accountName")
    default = f"https://{account}.{{}}.core.windows.net" if account else ""
    services = HOST_SERVICES if name == HOST_STORAGE else SERVICES
    names = [f"{service}ServiceUri" for service in services]
    urls = [
        addresses.get(each, default.format(service))
        for each, service in zip(names, services, strict=True)
    ]
    if all(urls):
        *_, queue, table = urls
        return StorageConnection(name, "", queue, table, addresses.get("clientId", ""))
    return (
        f"{prefix} = '': set a storage connection string or, for managed identity, "
        f"{prefix}__accountName, or {' and '.join(f'{prefix}__{each}' for each in names)}"
    )


def service_bus_connection(environ: Mapping[str, str], name: str) -> ServiceBusConnection | str:
    """The connection, or the problem with its settings."""
    prefix = _prefix(environ, name)
    if text := tidy(environ.get(prefix, "")):
        if _is_namespace(text):
            found = ServiceBusConnection(name, text)
            return _reached(found, found.host, environ)
        return f"{prefix}: must be a Service Bus connection string: Endpoint=sb://…"
    addresses = _addresses(environ, prefix)
    if namespace := addresses.get("fullyQualifiedNamespace"):
        client_id = addresses.get("clientId", "")
        found = ServiceBusConnection(name, "", namespace, client_id)
        return _reached(found, namespace, environ)
    return (
        f"{prefix} = '': set a Service Bus connection string or, for managed identity, "
        f"{prefix}__fullyQualifiedNamespace"
    )


def event_hub_connection(
    environ: Mapping[str, str], name: str, hub: str
) -> EventHubConnection | str | None:
    """The connection, or the problem with its settings; None if no connection is set."""
    prefix = _prefix(environ, name)
    if text := tidy(environ.get(prefix, "")):
        if not _is_namespace(text):
            return f"{prefix}: must be an Event Hubs connection string: Endpoint=sb://…"
        fields = dict(_pairs(text))
        if fields.get("entitypath", hub).lower() != hub.lower():
            return (
                f"{prefix}: its EntityPath is {fields['entitypath']!r}, but EventHubName is {hub!r}"
            )
        host = _host(fields["endpoint"]).lower()
        return _reached(EventHubConnection(name, hub, host, text), host, environ)
    addresses = _addresses(environ, prefix)
    if namespace := addresses.get("fullyQualifiedNamespace"):
        host, client_id = namespace.lower(), addresses.get("clientId", "")
        return _reached(EventHubConnection(name, hub, host, "", client_id), host, environ)
    return None


def _reached(connection: Namespace, host: str, environ: Mapping[str, str]) -> Namespace | str:
    """The connection with its transport, or the problem with the settings of the transport."""
    transport = amqp_transport(environ, host)
    return transport if isinstance(transport, str) else replace(connection, transport=transport)


def account_of(connection: StorageConnection) -> str:
    """The name of the account in a connection string, without any secret; empty if it has none."""
    return dict(_pairs(connection.connection_string)).get("accountname", "")


def tidy(connection_string: str) -> str:
    """The connection string without white space around its parts, which the clients refuse. Parts
    may have any order and case.
    """
    parts = (part.partition("=") for part in connection_string.split(";") if part.strip())
    return ";".join(f"{key.strip()}{sign}{value.strip()}" for key, sign, value in parts)


def _is_namespace(connection_string: str) -> bool:
    return dict(_pairs(connection_string)).get("endpoint", "").lower().startswith("sb://")


def _host(endpoint: str) -> str:
    return endpoint.partition("//")[2].rstrip("/")


def _pairs(connection_string: str) -> list[tuple[str, str]]:
    parts = (part.partition("=") for part in connection_string.split(";"))
    return [(key.strip().lower(), value.strip()) for key, _, value in parts if value]


def _prefix(environ: Mapping[str, str], name: str) -> str:
    prefixed = f"AzureWebJobs{name}"
    taken = any(k == prefixed or k.startswith(f"{prefixed}__") for k, v in environ.items() if v)
    return prefixed if taken else name


def _addresses(environ: Mapping[str, str], prefix: str) -> dict[str, str]:
    start = f"{prefix}__"
    return {
        key.removeprefix(start): value.strip()
        for key, value in environ.items()
        if key.startswith(start) and value.strip()
    }


def _keys(connection_string: str) -> set[str]:
    return {key for key, _ in _pairs(connection_string)}


def _spelled_out(connection_string: str) -> str:
    """Expands the short form for Azurite, which the Python clients do not accept."""
    if connection_string.lower().rstrip(";") != "usedevelopmentstorage=true":
        return connection_string
    endpoints = "".join(
        f"{service}Endpoint=http://127.0.0.1:{port}/devstoreaccount1;"
        for service, port in (("Blob", 10000), ("Queue", 10001), ("Table", 10002))
    )
    account = (
        f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={AZURITE_KEY};"
    )
    return account + endpoints
