"""Checks the tokens of Microsoft Entra ID that a stand-in receives.

The audience and the expiry are checked, but not the signature: nobody on this machine has the keys
of Microsoft Entra ID. Azurite does the same with `--oauth basic`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

import jwt

SERVICE_BUS = "https://servicebus.azure.net"
EVENT_HUBS = "https://eventhubs.azure.net"
STORAGE = "https://storage.azure.com"
"""The audiences, which the clients write with and without a slash at the end."""


class TokenRefused(Exception):
    """A token is not accepted. The text says why, and does not repeat the token."""


@dataclass(frozen=True, slots=True)
class Token:
    """What a stand-in needs to know of a token."""

    audience: str
    expires_at: datetime


def read_token(encoded: str) -> Token:
    """The audience and the expiry of a JSON web token. Raises TokenRefused."""
    try:
        claims = jwt.decode(encoded, options={"verify_signature": False})
        expires_at = datetime.fromtimestamp(claims["exp"], UTC)
        return Token(str(claims["aud"]).rstrip("/"), expires_at)
    except (jwt.InvalidTokenError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise TokenRefused(f"the token cannot be read: {type(error).__name__}") from None


def accepted(encoded: str, audiences: Collection[str], now: datetime) -> Token:
    """The token, if it is for one of the audiences and has not expired. Raises TokenRefused."""
    token = read_token(encoded)
    if token.audience not in audiences:
        wanted = " or ".join(audiences)
        raise TokenRefused(f"the token is for {token.audience}, not for {wanted}")
    if token.expires_at <= now:
        raise TokenRefused("the token has expired")
    return token


def accepted_bearer(header: str, audience: str, now: datetime) -> Token:
    """The token of an Authorization header. Raises TokenRefused."""
    kind, _, encoded = header.partition(" ")
    if kind != "Bearer":
        raise TokenRefused(f"{kind or 'no token'} instead of a bearer token")
    return accepted(encoded, [audience], now)
