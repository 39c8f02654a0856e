"""Says in one line that a service refused access: to what, for which reason, and what to do.

Services refuse with HTTP status 401 or 403, or with an error of AMQP. Without a token, a client
does not even send the request.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from urllib.parse import urlsplit

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError

from shared.azure.credentials import NoLogin
from shared.settings.connections import (
    SYSTEM_ASSIGNED,
    EventHubConnection,
    Identity,
    ServiceBusConnection,
    StorageConnection,
    account_of,
)
from shared.values.text import one_line

TEXT_LENGTH_MAX = 700
DETAIL_LENGTH_MAX = 160
REFUSED = (401, 403)
AMQP_REFUSALS = (
    "AuthenticationError",
    "ServiceBusAuthenticationError",
    "ServiceBusAuthorizationError",
)
"""Error classes of azure-eventhub and azure-servicebus, by name: importing them is slow."""
NETWORK = "AuthorizationFailure"
"""The code with which storage refuses a network. It also refuses some missing roles with it."""
DISABLED = "AccountIsDisabled"
"""The code with which storage refuses everything. No role helps against it."""
ERRORS_MAX = 20


class AccessRefused(ClientAuthenticationError):
    """A service refused the identity or key, or there was no token. The text says what to do."""


@dataclass(frozen=True, slots=True)
class Access:
    """What an adapter accesses, and what the app's identity needs for that: ``place`` is accessed,
    ``role`` allows it, and ``setting`` names the connection."""

    place: str
    role: str
    setting: str = ""
    identity: Identity = SYSTEM_ASSIGNED
    has_key: bool = False

    def refusal(self, error: BaseException) -> str | None:
        """One line about an error that means a refusal; None for any other error."""
        if isinstance(error, AccessRefused):
            return str(error)
        reason = _reason(error)
        if reason is None:
            return None
        detail = one_line(reason.detail, DETAIL_LENGTH_MAX)
        if reason.had_token:
            text = f"{self.place}: access was refused ({detail}). {self._advice(detail)}"
        else:
            text = f"{self.place}: no token was obtained ({detail}). {self._no_token}"
        return one_line(text, TEXT_LENGTH_MAX)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raises a refusal as AccessRefused, without the client's own error, which says no more."""
        try:
            yield
        except AzureError as error:
            text = self.refusal(error)
            if text is None or isinstance(error, AccessRefused):
                raise
            refused = AccessRefused(text)
            refused.status_code = getattr(error, "status_code", None)
            raise refused from None

    def _advice(self, detail: str) -> str:
        if detail.endswith(DISABLED):
            return "The account is disabled: its owner must enable it again"
        if self.has_key:
            return (
                f"Check the connection string in {self.setting}: its key is wrong or was renewed, "
                "or the resource allows no keys"
            )
        network = " Check the network rules of the resource, too." if NETWORK in detail else ""
        return (
            f"Check that {self.identity} has the role {self.role} on it and belongs to the same "
            f"tenant.{network} A new role takes effect within about ten minutes"
        )

    @property
    def _no_token(self) -> str:
        own = f"{self.setting}__clientId or " if self.setting else ""
        return (
            f"In Azure, check that {own}AZURE_CLIENT_ID names an identity that is assigned to the "
            "app. Elsewhere, log in with `az login`"
        )


def table_access(connection: StorageConnection, table: str) -> Access:
    place = f"table {table} of {_account(connection, connection.table_url)}"
    return _access(connection, place, "Storage Table Data Contributor")


def queue_access(connection: StorageConnection, queue: str) -> Access:
    place = f"queue {queue} of {_account(connection, connection.queue_url)}"
    return _access(connection, place, "Storage Queue Data Contributor")


def service_bus_access(connection: ServiceBusConnection, entity: str, right: str) -> Access:
    """``right`` is Owner, Sender or Receiver."""
    place = f"{entity} of Service Bus namespace {connection.host}"
    return _access(connection, place, f"Azure Service Bus Data {right}")


def event_hub_access(connection: EventHubConnection, right: str) -> Access:
    """``right`` is Receiver or Sender."""
    place = f"event hub {connection.hub} of namespace {connection.namespace}"
    return _access(connection, place, f"Azure Event Hubs Data {right}")


def _access(
    connection: StorageConnection | ServiceBusConnection | EventHubConnection, place: str, role: str
) -> Access:
    has_key = bool(connection.connection_string)
    return Access(place, role, connection.name, connection.identity, has_key)


def _account(connection: StorageConnection, url: str) -> str:
    name = account_of(connection) or urlsplit(url).hostname
    return f"storage account {name} ({connection.name})"


@dataclass(frozen=True, slots=True)
class _Reason:
    detail: str
    had_token: bool = True


def _reason(error: BaseException) -> _Reason | None:
    """Why access was refused; None if the error means something else."""
    if isinstance(error, HttpResponseError) and error.status_code is not None:
        refused = error.status_code in REFUSED
        return _Reason(f"{error.status_code} {_code(error)}") if refused else None
    if isinstance(error, NoLogin):
        return _Reason(error.reasons, had_token=False)
    if isinstance(error, ClientAuthenticationError):
        return _Reason(str(error.message).partition("\n")[0], had_token=False)
    for each in islice(_causes(error), ERRORS_MAX):
        if isinstance(each, ClientAuthenticationError):
            return _reason(each)
        if description := getattr(each, "status_description", None):  # of the token, over AMQP
            return _Reason(f"{getattr(each, 'status_code', '')} {_decoded(description)}")
    return _Reason(str(error)) if type(error).__name__ in AMQP_REFUSALS else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What led to the error. The clients of AMQP hide the original error."""
    cause = error.__cause__ or error.__context__
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _code(error: HttpResponseError) -> str:
    """The error code of the service, or else the reason phrase."""
    code = getattr(error, "error_code", None)
    if code is None and error.error is not None:
        code = error.error.code
    return str(code.value if isinstance(code, Enum) else code or error.reason or "")


def _decoded(text: str | bytes) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text
