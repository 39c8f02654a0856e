"""Connections of bindings: a connection string, or addresses that are used with an identity.

Source: learn.microsoft.com/azure/azure-functions/functions-reference, section "Configure an
identity-based connection", and the pages of the bindings.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, ParamSpec, TypeVar

from local.functions_host.errors import HostStartFailed
from shared.azure.credentials import chain_of
from shared.settings import connections
from shared.settings.connections import ConnectionSection, Identity

DEFAULT_CONNECTION = "AzureWebJobsStorage"
NAMESPACE = connections.NAMESPACE
ADDRESSES = (*connections.ACCOUNT, NAMESPACE)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Connection:
    """The settings of one connection: a connection string, or an address and an identity."""

    setting: str
    function: str = field(compare=False)
    """The function whose binding names the connection, for errors."""
    connection_string: str = field(default="", repr=False)
    section: ConnectionSection = field(default=ConnectionSection(""), compare=False, repr=False)
    identity: Identity = connections.SYSTEM_ASSIGNED

    def storage_url(self, service: str) -> str:
        """The address of `blob`, `queue` or `table`. Raises HostStartFailed."""
        url = _read(self.function, connections.service_url, self.section, service)
        return url or self._missing(f"{service}ServiceUri", "accountName")

    @property
    def namespace(self) -> str:
        """The host name of a namespace. Raises HostStartFailed."""
        namespace = _read(self.function, connections.namespace_of, self.section)
        return namespace or self._missing(NAMESPACE)

    def _missing(self, *suffixes: str) -> NoReturn:
        names = " or ".join(self.section.name_of(suffix) for suffix in suffixes)
        raise HostStartFailed(
            f"function {self.function}: connection {self.setting} is identity-based, but {names} "
            "is missing"
        )


def find_connection(settings: Mapping[str, str], name: str, function: str) -> Connection:
    """The connection for a binding, looked up as the host does. Raises HostStartFailed."""
    found = _read(function, connections.section_of, settings, name or DEFAULT_CONNECTION)
    if connections.is_emulator(found):
        return Connection(found.name, function, _read(function, connections.emulator_string, found))
    if found.text:
        return Connection(found.name, function, found.text)
    if found.properties:
        identity = _read(function, connections.identity_of, found, ADDRESSES)
        return Connection(found.name, function, "", found, identity)
    raise HostStartFailed(
        f"function {function}: setting {found.name} is missing: a connection string, or settings "
        f"of an identity-based connection ({found.name}__…)"
    )


def _read(function: str, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return read(*args, **kwargs)
    except ValueError as error:
        raise HostStartFailed(f"function {function}: {error}") from error


class Identities:
    """The credentials of the host. Connections of one identity share its tokens."""

    def __init__(self) -> None:
        self._credentials: dict[Identity, Any] = {}

    def credential(self, connection: Connection) -> Any:
        identity = connection.identity
        if identity not in self._credentials:
            self._credentials[identity] = chain_of(identity)
        return self._credentials[identity]

    async def close(self) -> None:
        for credential in self._credentials.values():
            await credential.close()
        self._credentials.clear()
