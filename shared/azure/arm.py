"""Opens a client of Azure Resource Manager for requests that no client library makes."""

from __future__ import annotations

from typing import Any

from azure.core.pipeline.policies import AsyncBearerTokenCredentialPolicy, UserAgentPolicy
from azure.mgmt.core import AsyncARMPipelineClient

from shared.azure.budget import ArmBudget
from shared.azure.credentials import credential_for
from shared.azure.transport import transport_for

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
