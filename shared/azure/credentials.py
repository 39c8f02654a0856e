"""Credentials of the app: its managed identity in Azure, the developer's login elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, TypeVar

from azure.core.credentials import AccessToken, AccessTokenInfo, TokenRequestOptions
from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import ClientAuthenticationError

from shared.azure.transport import is_loopback
from shared.settings import has_managed_identity
from shared.settings.connections import SYSTEM_ASSIGNED, Identity
from shared.values.redaction import redacting

T = TypeVar("T")

REASON_CHARACTERS_MAX = 200
OF_OPERATORS = ("ManagedIdentityCredential", "AzureCliCredential")
"""The logins that operators use. The client library tries others as well."""


class _Closing(AbstractAsyncContextManager[Any]):
    """A credential that is closed at the end of its context, as the clients expect."""

    async def close(self) -> None: ...

    async def __aexit__(self, *_details: object) -> None:
        await self.close()


class LoopbackCredential(_Closing):
    """A worthless token for stand-ins on this machine, which are reached over plain HTTP."""

    async def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        return AccessToken("loopback", 2**33)


class NoLogin(ClientAuthenticationError):
    """No login works. The text says what to do; ``reasons`` is the part that says why."""

    def __init__(self, text: str) -> None:
        self.reasons = no_login_reasons(text)
        super().__init__(
            f"no login to Azure works ({self.reasons}). Run `az login` on your machine; in Azure, "
            "give the Function App a managed identity"
        )


@redacting
class Login(_Closing):
    """The managed identity in Azure, the login of the developer elsewhere; or the app registration
    that a connection names. Raises NoLogin, which is shorter than the error of the client library.
    """

    def __init__(self, identity: Identity = SYSTEM_ASSIGNED) -> None:
        logging.getLogger("azure.identity").setLevel(logging.ERROR)  # it logs what it also raises
        if not has_managed_identity():  # a command with the settings of a deployed app
            identity = replace(identity, only_managed=False)
        self._chain = chain_of(identity)

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return await _explained(self._chain.get_token(*scopes, **options))

    async def get_token_info(
        self, *scopes: str, options: TokenRequestOptions | None = None
    ) -> AccessTokenInfo:
        return await _explained(self._chain.get_token_info(*scopes, options=options))

    async def close(self) -> None:
        await self._chain.close()


async def _explained(token: Awaitable[T]) -> T:
    try:
        return await token
    except ClientAuthenticationError as error:
        raise NoLogin(str(error)) from error


def no_login_reasons(text: str) -> str:
    """The reasons that matter in the text of an error of DefaultAzureCredential, in one line."""
    tried = text.partition("\nTo mitigate")[0].split("\n\t")
    reasons = [each for each in tried if each.startswith(OF_OPERATORS)]
    if not tried[-1].startswith("AzureDeveloperCli") and tried[-1] not in reasons:
        reasons.append(tried[-1])  # a login that was refused, so that no other was tried
    shown = [" ".join(each.split())[:REASON_CHARACTERS_MAX].rstrip(". ") for each in reasons]
    return "; ".join(shown)


def chain_of(identity: Identity) -> Any:
    """The logins of the client library that are tried for an identity, as the host tries them."""
    from azure.identity.aio import (  # noqa: PLC0415  heavy to import
        ChainedTokenCredential,
        ClientSecretCredential,
        DefaultAzureCredential,
        ManagedIdentityCredential,
    )

    if secret := identity.client_secret:
        return ClientSecretCredential(identity.tenant_id, identity.client_id, secret)
    resource = {"identity_config": {"resource_id": identity.resource_id}}
    chosen: Any = resource if identity.resource_id else {"client_id": identity.client_id or None}
    if identity.only_managed:
        return ManagedIdentityCredential(**chosen)
    if identity.resource_id:
        others = DefaultAzureCredential(exclude_managed_identity_credential=True)
        return ChainedTokenCredential(ManagedIdentityCredential(**chosen), others)
    client = {"managed_identity_client_id": identity.client_id} if identity.client_id else {}
    return DefaultAzureCredential(**client)


def credential_for(url: str, identity: Identity = SYSTEM_ASSIGNED) -> AsyncTokenCredential:
    """The credential for a service at ``url``, which all clients of an identity share."""
    if is_loopback(url):
        return LoopbackCredential()
    if identity not in _opened:
        _opened[identity] = Login(identity)
    return _opened[identity]


async def close() -> None:
    """Close all credentials. A later call of ``credential_for`` opens new ones."""
    while _opened:
        await _opened.popitem()[1].close()


_opened: dict[Identity, Login] = {}
