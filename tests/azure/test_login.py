"""An operator without a login to Azure gets one line that says what to do."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.identity import CredentialUnavailableError
from azure.identity.aio import ChainedTokenCredential

from shared.azure.credentials import Login

REMEDY = "Run `az login` on your machine; in Azure, give the Function App a managed identity"


class Credential:
    """A login that fails. The client library names it by its class."""

    error: Exception

    async def get_token(self, *_scopes: str, **_options: Any) -> Any:
        raise self.error

    get_token_info = get_token

    async def close(self) -> None: ...


def unavailable(name: str, reason: str) -> Any:
    return type(name, (Credential,), {"error": CredentialUnavailableError(reason)})()


def refused(name: str, reason: str) -> Any:
    return type(name, (Credential,), {"error": ClientAuthenticationError(reason)})()


NOTHING = (
    unavailable("EnvironmentCredential", "not configured.\nVisit https://aka.ms/x"),
    unavailable("ManagedIdentityCredential", "no identity\nwas found."),
    unavailable("AzureCliCredential", "Please run 'az login' to set up an account"),
    unavailable("AzureDeveloperCliCredential", "azd was not found"),
)
WRONG = (NOTHING[0], NOTHING[1], refused("SharedTokenCacheCredential", "AADSTS700082: expired"))


@pytest.mark.parametrize(
    ("credentials", "reasons"),
    [
        (
            NOTHING,
            "ManagedIdentityCredential: no identity was found; AzureCliCredential: Please run "
            "'az login' to set up an account",
        ),
        (
            WRONG,
            "ManagedIdentityCredential: no identity was found; SharedTokenCacheCredential: "
            "AADSTS700082: expired",
        ),
        ((refused("EnvironmentCredential", "x" * 999),), "EnvironmentCredential: " + "x" * 177),
    ],
)
async def test_without_a_login_the_error_is_one_line_with_the_remedy(
    credentials: tuple[Any, ...], reasons: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Login() as login:
        monkeypatch.setattr(login, "_chain", ChainedTokenCredential(*credentials))
        for ask in (login.get_token, login.get_token_info):
            with pytest.raises(ClientAuthenticationError) as raised:
                await ask("https://storage.azure.com/.default")
            assert str(raised.value) == f"no login to Azure works ({reasons}). {REMEDY}"


async def test_the_client_library_does_not_log_the_error_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Login():
        assert not logging.getLogger("azure.identity.aio").isEnabledFor(logging.WARNING)
