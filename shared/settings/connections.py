"""Connections to services: a connection string, or an address used with an identity.

They are looked up as by the Functions host: ``AzureWebJobs<name>`` before ``<name>``, and
``<name>__<property>`` for an address and its identity, without regard to case.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from urllib.parse import urlsplit

from shared.settings.amqp_transport import OVER_TCP, STAND_INS, AmqpTransport, amqp_transport
from shared.settings.fields import HTTPS, LOOPBACK
from shared.settings.variables import QUOTED, UNRESOLVED, is_quoted, is_unresolved, same_name

AZURITE_KEY = (  # published by Microsoft and the same for every user
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

HOST_STORAGE = "AzureWebJobsStorage"
SERVICES = ("queue", "table")
HOST_SERVICES = ("blob", *SERVICES)
"""The Functions host also keeps the leases of timers in blobs."""

PORTS = {"Blob": 10000, "Queue": 10001, "Table": 10002}
MANAGED_IDENTITY = "managedidentity"
IDENTITY = ("credential", "clientId", "managedIdentityResourceId", "tenantId", "clientSecret")
NAMESPACE = "fullyQualifiedNamespace"
ACCOUNT = ("accountName", *(f"{service}ServiceUri" for service in HOST_SERVICES))
ACCOUNT_NAME = re.compile("[A-Za-z0-9]{3,24}")
HOST = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*(:[0-9]{1,5})?")
IDENTITY_ID = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/"
    r"Microsoft\.ManagedIdentity/userAssignedIdentities/[^/]+",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who logs in: by default the app's system-assigned identity, or the login of the developer
    elsewhere. ``client_id`` or ``resource_id`` names a user-assigned identity; ``client_secret``,
    ``client_id`` and ``tenant_id`` name an app registration."""

    client_id: str = ""
    resource_id: str = ""
    tenant_id: str = ""
    client_secret: str = field(default="", repr=False)
    only_managed: bool = False
    """Whether no other login is tried than the managed identity."""

    def __str__(self) -> str:
        name = self.client_id or self.resource_id
        kind = "client ID" if self.client_id else "resource ID"
        return f"the app's identity{name and f' ({kind} {name})'}"


SYSTEM_ASSIGNED = Identity()


@dataclass(frozen=True, slots=True)
class StorageConnection:
    """A storage account, by connection string or by the addresses of its services."""

    name: str
    connection_string: str = field(default="", repr=False)
    queue_url: str = ""
    table_url: str = ""
    identity: Identity = SYSTEM_ASSIGNED


@dataclass(frozen=True, slots=True)
class ServiceBusConnection:
    """A Service Bus namespace, by connection string or by its fully qualified name."""

    name: str
    connection_string: str = field(default="", repr=False)
    namespace: str = ""
    identity: Identity = SYSTEM_ASSIGNED
    transport: AmqpTransport = OVER_TCP

    @property
    def entity(self) -> str:
        """The only entity that the key allows; empty if it allows all."""
        return _parts(self.connection_string).get("entitypath", "")

    @property
    def host(self) -> str:
        """The namespace's host name, without any secret."""
        return self.namespace or _host(_parts(self.connection_string)["endpoint"])


class ArmNamespace(NamedTuple):
    """A Service Bus namespace that is read through Azure Resource Manager."""

    endpoint: str
    namespace_id: str


@dataclass(frozen=True, slots=True)
class EventHubConnection:
    """An event hub, by connection string or by the fully qualified name of its namespace."""

    name: str
    hub: str
    namespace: str
    """The host name of the namespace, in lower case."""
    connection_string: str = field(default="", repr=False)
    identity: Identity = SYSTEM_ASSIGNED
    transport: AmqpTransport = OVER_TCP


def storage_connection(environ: Mapping[str, str], name: str) -> StorageConnection:
    """The connection. Raises ValueError for the problem with its settings."""
    found = section_of(environ, name)
    if found.text:
        return StorageConnection(name, _storage_string(found))
    identity = identity_of(found, ACCOUNT)
    services = HOST_SERVICES if name == HOST_STORAGE else SERVICES
    urls = [service_url(found, service) for service in services]
    if all(urls):
        *_, queue, table = urls
        return StorageConnection(name, "", queue, table, identity)
    addresses = " and ".join(found.name_of(f"{service}ServiceUri") for service in services)
    raise ValueError(
        f"{found.name} = '': set a storage connection string or, for managed identity, "
        f"{found.name_of('accountName')}, or {addresses}"
    )


def service_bus_connection(environ: Mapping[str, str], name: str) -> ServiceBusConnection:
    """The connection. Raises ValueError for the problem with its settings."""
    found, host, identity = _namespace(environ, name, "a Service Bus")
    if not host:
        raise ValueError(
            f"{found.name} = '': set a Service Bus connection string or, for managed identity, "
            f"{found.name_of(NAMESPACE)}"
        )
    namespace, transport = "" if found.text else host, amqp_transport(environ, host)
    return ServiceBusConnection(name, found.text, namespace, identity, transport)


def event_hub_connection(
    environ: Mapping[str, str], name: str, hub: str
) -> EventHubConnection | None:
    """The connection; None if none is set. Raises ValueError for the problem with its settings."""
    found, host, identity = _namespace(environ, name, "an Event Hubs")
    if not host and found.properties:
        raise ValueError(f"{found.name_of(NAMESPACE)} = '': must be set with the other settings")
    if not host:
        return None
    entity = _parts(found.text).get("entitypath", hub)
    if entity.lower() != hub.lower():
        raise ValueError(f"{found.name}: its EntityPath is {entity!r}, but EventHubName is {hub!r}")
    host, transport = host.lower(), amqp_transport(environ, host)
    return EventHubConnection(name, hub, host, found.text, identity, transport)


def _namespace(
    environ: Mapping[str, str], name: str, kind: str
) -> tuple[ConnectionSection, str, Identity]:
    """The settings, the host name, empty if none is set, and who logs in. Raises ValueError."""
    found = section_of(environ, name)
    if not found.text:
        identity = identity_of(found, (NAMESPACE,))
        return found, namespace_of(found), identity
    _check_namespace_string(found, kind)
    return found, _host(_parts(found.text)["endpoint"]), SYSTEM_ASSIGNED


@dataclass(frozen=True, slots=True)
class ConnectionSection:
    """The settings of a connection: the connection string, or the properties by name."""

    name: str
    text: str = field(default="", repr=False)
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def get(self, name: str) -> str:
        return self.properties.get(same_name(name), "")

    def name_of(self, name: str) -> str:
        return f"{self.name}__{name}"


def section_of(environ: Mapping[str, str], name: str) -> ConnectionSection:
    """The section of that name, or with the prefix of the host. Raises ValueError."""
    section = ConnectionSection(name)
    given = {same_name(key): value.strip() for key, value in environ.items() if value.strip()}
    for prefix in (f"AzureWebJobs{name}", name):
        start = f"{same_name(prefix)}:"
        properties = {k.removeprefix(start): v for k, v in given.items() if k.startswith(start)}
        section = ConnectionSection(prefix, environ.get(prefix, "").strip(), properties)
        if section.text or properties:
            break
    for key, value in {"": section.text, **section.properties}.items():
        place = section.name_of(key) if key else section.name
        if is_unresolved(value):
            raise ValueError(f"{place}: {UNRESOLVED}")
        if is_quoted(value):
            raise ValueError(f"{place}: {QUOTED}")
    return replace(section, text=tidy(section.text))


def identity_of(section: ConnectionSection, addresses: Collection[str]) -> Identity:
    """Who logs in to the connection, which may have these addresses. Raises ValueError."""
    known = {same_name(name): name for name in (*addresses, *IDENTITY)}
    for name in section.properties:
        if name not in known:
            raise ValueError(f"{section.name_of(name)}: must be one of {', '.join(known.values())}")
    credential, client, resource, tenant, secret = map(section.get, IDENTITY)
    named = [section.name_of(name) for name in IDENTITY]
    if credential.lower() not in ("", MANAGED_IDENTITY):
        raise ValueError(f"{named[0]} = {credential!r}: must be {MANAGED_IDENTITY} or empty")
    if client and resource:
        raise ValueError(f"{named[1]} and {named[2]}: only one of them may be set")
    if client.startswith("/"):
        raise ValueError(f"{named[1]} = {client!r}: must be only the ID; see {named[2]}")
    if resource and not IDENTITY_ID.fullmatch(resource):
        raise ValueError(
            f"{named[2]} = {resource!r}: must be the resource ID of a user-assigned identity"
        )
    if (tenant or secret) and (credential or not (tenant and client and secret)):
        raise ValueError(
            f"{named[3]}, {named[1]} and {named[4]}: must be set together, and without {named[0]}"
        )
    return Identity(client, resource, tenant, secret, bool(credential))


def namespace_of(section: ConnectionSection) -> str:
    """The host name of the namespace, also of a URL; empty if it is not set. Raises ValueError."""
    given, place = section.get(NAMESPACE), section.name_of(NAMESPACE)
    if not given:
        return ""
    url = urlsplit(given if "://" in given else f"sb://{given}")
    if url.scheme not in ("https", "sb") or not HOST.fullmatch(url.netloc) or url.path.strip("/"):
        such = "must be only the host name of the namespace, such as NAME.servicebus.windows.net"
        raise ValueError(f"{place}: {such}")
    host = str(url.hostname)
    if "." not in host and host not in STAND_INS:
        whole = f"must be the whole host name, such as {host}.servicebus.windows.net"
        raise ValueError(f"{place} = {given!r}: {whole}")
    return host if "://" in given and host not in STAND_INS else url.netloc


def service_url(section: ConnectionSection, service: str) -> str:
    """The address of ``blob``, ``queue`` or ``table``; else empty. Raises ValueError."""
    name = f"{service}ServiceUri"
    if url := section.get(name):
        others = [each for each in HOST_SERVICES if f".{each}." in url and each != service]
        if not re.fullmatch(rf"(?i:{HTTPS}|{LOOPBACK})(/[^\s?#]*)?", url) or others:
            such = f"must be an address such as https://ACCOUNT.{service}.core.windows.net"
            raise ValueError(f"{section.name_of(name)}: {such}")
        return url
    account = section.get("accountName")
    if account and not ACCOUNT_NAME.fullmatch(account):
        place = section.name_of("accountName")
        raise ValueError(f"{place}: must be only the name of the storage account, not its address")
    return account and f"https://{account}.{service}.core.windows.net"


def account_of(connection: StorageConnection) -> str:
    """The name of the account in a connection string, without any secret; empty if it has none."""
    return _parts(connection.connection_string).get("accountname", "")


def tidy(connection_string: str) -> str:
    """The connection string without white space around its parts, which the clients refuse."""
    parts = (part.partition("=") for part in connection_string.split(";") if part.strip())
    return ";".join(f"{key.strip()}{sign}{value.strip()}" for key, sign, value in parts)


def _check_namespace_string(section: ConnectionSection, kind: str) -> None:
    parts = _parts(section.text)
    endpoint = parts.get("endpoint", "")
    if not endpoint.lower().startswith("sb://") or not HOST.fullmatch(_host(endpoint)):
        raise ValueError(f"{section.name}: must be {kind} connection string: Endpoint=sb://…")
    keys = ("SharedAccessKeyName", "SharedAccessKey")
    missing = [key for key in keys if key.lower() not in parts]
    if missing and "sharedaccesssignature" not in parts:
        raise ValueError(
            f"{section.name}: has no {' and no '.join(missing)}. Copy the whole connection string "
            f"or, for managed identity, set {section.name_of(NAMESPACE)} instead"
        )


def _host(endpoint: str) -> str:
    return endpoint.partition("//")[2].rstrip("/")


def _parts(connection_string: str) -> dict[str, str]:
    parts = (part.partition("=") for part in connection_string.split(";"))
    return {key.strip().lower(): value.strip() for key, _, value in parts if value}


def _storage_string(section: ConnectionSection) -> str:
    """The string, with the short form for Azurite spelled out. Raises ValueError."""
    if is_emulator(section):
        return emulator_string(section)
    parts = _parts(section.text)
    endpoints = {"queueendpoint", "tableendpoint"} & parts.keys()
    if not endpoints and "accountname" not in parts:
        such = "must be a storage connection string such as UseDevelopmentStorage=true"
        raise ValueError(f"{section.name}: {such}")
    if "sharedaccesssignature" not in parts and not {"accountname", "accountkey"} <= parts.keys():
        missing = "AccountKey" if "accountname" in parts else "AccountName"
        raise ValueError(
            f"{section.name}: has no {missing}. Copy the whole storage connection string or, for "
            f"managed identity, set {section.name_of('accountName')} instead"
        )
    try:
        b64decode(parts.get("accountkey", ""), validate=True)
    except ValueError:
        whole = "Copy the whole storage connection string, with the = at the end of the key"
        raise ValueError(f"{section.name}: its AccountKey is incomplete. {whole}") from None
    return section.text


def is_emulator(section: ConnectionSection) -> bool:
    return _parts(section.text).get("usedevelopmentstorage", "").lower() == "true"


def emulator_string(section: ConnectionSection) -> str:
    """The full form of ``UseDevelopmentStorage=true``, which the Python clients do not accept, with
    the host of ``DevelopmentStorageProxyUri`` if there is one. Raises ValueError."""
    given = _parts(section.text).get("developmentstorageproxyuri", "http://127.0.0.1")
    proxy = urlsplit(given)
    if proxy.scheme not in ("http", "https") or not HOST.fullmatch(proxy.netloc):
        such = "must be an address such as http://azurite"
        raise ValueError(f"{section.name}: its DevelopmentStorageProxyUri {such}")
    endpoints = "".join(
        f"{service}Endpoint={proxy.scheme}://{proxy.hostname}:{port}/devstoreaccount1;"
        for service, port in PORTS.items()
    )
    return (
        f"DefaultEndpointsProtocol={proxy.scheme};AccountName=devstoreaccount1;"
        f"AccountKey={AZURITE_KEY};{endpoints}"
    )
