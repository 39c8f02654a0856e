"""Credentials of the app: its managed identity in Azure, the developer's login elsewhere."""

from __future__ import annotations

from functools import cache
from typing import Any

from azure.core.credentials import AccessToken
from azure.core.credentials_async import AsyncTokenCredential

from shared.adapters.azure.transport import is_loopback


class LoopbackCredential:
    """A credential with a worthless token, for stand-ins on this machine.

    Stand-ins are reached over plain HTTP, so they must never receive a real token.
    """

    async def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        return AccessToken("loopback", 2**33)

    async def close(self) -> None: ...

    async def __aenter__(self) -> LoopbackCredential:
        return self

    async def __aexit__(self, *details: object) -> None: ...


def credential_for(url: str, client_id: str = "") -> AsyncTokenCredential:
    """The credential for a service at ``url``. All clients of an identity share one credential, and
    therefore its cached tokens.
    """
    return LoopbackCredential() if is_loopback(url) else _identity(client_id)


async def close() -> None:
    """Close all credentials. A later call of ``credential_for`` opens new ones."""
    for credential in _opened:
        await credential.close()
    _opened.clear()
    _identity.cache_clear()


_opened: list[AsyncTokenCredential] = []


@cache
def _identity(client_id: str) -> AsyncTokenCredential:
    from azure.identity.aio import DefaultAzureCredential  # noqa: PLC0415  heavy to import

    chosen = {"managed_identity_client_id": client_id} if client_id else {}
    _opened.append(DefaultAzureCredential(**chosen))
    return _opened[-1]
