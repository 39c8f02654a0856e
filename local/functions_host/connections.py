"""Connections of bindings: a connection string, or addresses that are used with an identity.

Source: learn.microsoft.com/azure/azure-functions/functions-reference, section "Configure an
identity-based connection", and the pages of the bindings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from local.azurite import USUAL_PORTS, connection_string
from local.functions_host.errors import HostStartFailed
from shared.settings.connections import tidy

DEFAULT_CONNECTION = "AzureWebJobsStorage"
MANAGED_IDENTITY = "managedidentity"
NAMESPACE = "fullyQualifiedNamespace"
# The Python SDK does not accept the short form that the host accepts for an emulator.
_EMULATOR_SHORT_FORM = "usedevelopmentstorage=true"
_EMULATOR = connection_string(USUAL_PORTS)


@dataclass(frozen=True, slots=True)
class Connection:
    """The settings of one connection. Without a connection string, `properties` are the settings
    whose names begin with `<setting>__`, by the rest of their names.
    """

    setting: str
    function: str = field(compare=False)
    """The function whose binding names the connection, for errors."""
    connection_string: str = field(default="", repr=False)
    properties: tuple[tuple[str, str], ...] = ()

    def storage_url(self, service: str) -> str:
        """The address of `blob`, `queue` or `table`. Raises HostStartFailed."""
        suffix = f"{service}ServiceUri"
        if url := self._get(suffix):
            return url
        if account := self._get("accountName"):
            return f"https://{account}.{service}.core.windows.net"
        raise self._missing(suffix, "accountName")

    @property
    def namespace(self) -> str:
        """The host name of a namespace. Raises HostStartFailed."""
        if namespace := self._get(NAMESPACE):
            return namespace
        raise self._missing(NAMESPACE)

    @property
    def client_id(self) -> str:
        return self._get("clientId")

    @property
    def identity(self) -> tuple[bool, str]:
        """Whether only a managed identity may be used, and the client ID of the identity."""
        credential = self._get("credential").lower()
        if credential not in ("", MANAGED_IDENTITY):
            raise HostStartFailed(
                f"function {self.function}: {self.setting}__credential = {credential!r}: this host "
                f"supports only {MANAGED_IDENTITY}"
            )
        return credential == MANAGED_IDENTITY, self.client_id

    def _get(self, name: str) -> str:
        return dict(self.properties).get(name, "")

    def _missing(self, *suffixes: str) -> HostStartFailed:
        names = " or ".join(f"{self.setting}__{suffix}" for suffix in suffixes)
        return HostStartFailed(
            f"function {self.function}: connection {self.setting} is identity-based, but {names} "
            "is missing"
        )


def find_connection(settings: Mapping[str, str], name: str, function: str) -> Connection:
    """The connection for a binding, looked up as the host does. Raises HostStartFailed."""
    name = name or DEFAULT_CONNECTION
    for setting in (f"AzureWebJobs{name}", name):
        value = tidy(settings.get(setting, ""))
        if value.lower() == _EMULATOR_SHORT_FORM:
            return Connection(setting, function, _EMULATOR)
        if value:
            return Connection(setting, function, value)
        start = f"{setting}__"
        properties = [
            (key.removeprefix(start), text)
            for key, text in sorted(settings.items())
            if key.startswith(start) and text
        ]
        if properties:
            return Connection(setting, function, properties=tuple(properties))
    raise HostStartFailed(
        f"function {function}: setting {name} is missing: a connection string, or settings of an "
        f"identity-based connection ({name}__…)"
    )


class Identities:
    """The credentials of the host. Connections of one identity share its tokens."""

    def __init__(self) -> None:
        self._credentials: dict[tuple[bool, str], Any] = {}

    def credential(self, connection: Connection) -> Any:
        key = only_managed, client_id = connection.identity
        if key not in self._credentials:
            self._credentials[key] = _credential(client_id, only_managed=only_managed)
        return self._credentials[key]

    async def close(self) -> None:
        for credential in self._credentials.values():
            await credential.close()
        self._credentials.clear()


def _credential(client_id: str, *, only_managed: bool) -> Any:
    from azure.identity.aio import DefaultAzureCredential, ManagedIdentityCredential  # noqa: PLC0415  heavy

    if only_managed:
        return ManagedIdentityCredential(client_id=client_id or None)
    chosen = {"managed_identity_client_id": client_id} if client_id else {}
    return DefaultAzureCredential(**chosen)
