"""The tokens that a client has sent to `$cbs` on one connection, and what they allow.

Source: OASIS AMQP Claims-based Security 1.0, and the section "Claims-based authorization" of
learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-protocol-guide.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Protocol

from local.amqp_broker import addresses
from local.amqp_broker.broker import Broker
from local.amqp_broker.model.errors import Unauthorized
from local.amqp_broker.requests import ManagementAnswer, ManagementRequest
from local.clock import Clock
from local.tokens import EVENT_HUBS, SERVICE_BUS, TokenRefused, accepted

ENTRA_TOKEN = "jwt"  # noqa: S105  the type of a token
UNAUTHORIZED = 401
ACCEPTED = ManagementAnswer(202, None, "Accepted")


class Authorization(Protocol):
    """Decides which links of one connection may be open."""

    def put_token(self, request: ManagementRequest, /) -> ManagementAnswer: ...

    def check(self, path: str) -> None:
        """Raises Unauthorized if no token allows a link to this path now."""
        ...


class AnyToken:
    """Accepts every token, like an emulator."""

    def put_token(self, _request: ManagementRequest) -> ManagementAnswer:
        return ACCEPTED

    def check(self, path: str) -> None: ...


class EntraTokens:
    """Accepts only tokens of Microsoft Entra ID for this service, until they expire.

    Shared access keys are refused, as by a namespace with `disableLocalAuth`. A token allows links
    to the entity in its `name`, and to what lies below. Any identity may do everything.
    """

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._expiry: dict[str, datetime] = {}

    def put_token(self, request: ManagementRequest) -> ManagementAnswer:
        path = addresses.path_of(str(request.properties["name"])).lower()
        kind = str(request.properties.get("type"))
        if kind != ENTRA_TOKEN:
            return _refused(f"LocalAuthDisabled: a token of the type {kind} is not accepted")
        try:
            token = accepted(request.text, self._audiences(path), self._clock())
        except TokenRefused as error:
            return _refused(f"InvalidToken: {error}")
        self._expiry[path] = token.expires_at
        return ACCEPTED

    def check(self, path: str) -> None:
        now = self._clock()
        valid = [name for name, expires_at in self._expiry.items() if now < expires_at]
        if path.lower() == addresses.MANAGEMENT:  # of Event Hubs: each request names a hub
            allowed = bool(valid)
        else:
            allowed = any(f"{path.lower()}/".startswith(f"{name}/") for name in valid)
        if not allowed:
            raise Unauthorized(f"Unauthorized access: no valid token for '{path}' was sent.")

    def _audiences(self, path: str) -> Collection[str]:
        is_hub = self._broker.find_hub(path.partition("/")[0]) is not None
        return (EVENT_HUBS, SERVICE_BUS) if is_hub else (SERVICE_BUS,)


def _refused(reason: str) -> ManagementAnswer:
    return ManagementAnswer(UNAUTHORIZED, None, reason)
