"""Opens a client of Azure Resource Manager for requests that no client library makes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from azure.core.exceptions import AzureError
from azure.core.pipeline.policies import AsyncBearerTokenCredentialPolicy, UserAgentPolicy
from azure.core.rest import HttpRequest
from azure.mgmt.core import AsyncARMPipelineClient

from shared.azure.budget import ArmBudget
from shared.azure.credentials import credential_for
from shared.azure.transport import transport_for

PAGES_MAX = 50

ArmClient = AsyncARMPipelineClient[Any, Any]


def arm_client(
    endpoint: str, *policies: Any, audience: str = "", budget: ArmBudget | None = None
) -> ArmClient:
    """A client with the app's login for the ``audience``, by default the endpoint. Without a
    budget, its requests are not limited."""
    limits = [budget.policy()] if budget else []
    scope = f"{audience or endpoint}/.default"
    token = AsyncBearerTokenCredentialPolicy(credential_for(endpoint), scope)
    return AsyncARMPipelineClient(
        endpoint,
        policies=[UserAgentPolicy(), *policies, *limits, token],
        transport=transport_for(endpoint),
    )


async def pages(client: Any, endpoint: str, path: str) -> AsyncIterator[Any]:
    """The answers with the pages of a list. The caller checks the status of each. Raises AzureError
    if the list is longer than PAGES_MAX, or goes on at another host, which gets no token."""
    url = f"{endpoint}{path}"
    for _ in range(PAGES_MAX):
        response = await client.send_request(HttpRequest("GET", url))
        yield response
        url = response.json().get("nextLink") or ""
        if not url:
            return
        if urlsplit(url).hostname != urlsplit(endpoint).hostname:
            break
    raise AzureError(f"the list at {path.partition('?')[0]} goes on after the last page to read")
