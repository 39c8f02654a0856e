"""What the identity may do to a plan, asked of Azure Resource Manager.

https://learn.microsoft.com/rest/api/authorization/permissions/list-for-resource
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from azure.core.pipeline.policies import (
    AsyncBearerTokenCredentialPolicy,
    AsyncRetryPolicy,
    UserAgentPolicy,
)
from azure.core.rest import HttpRequest
from azure.mgmt.core import AsyncARMPipelineClient

from shared.adapters.azure.credentials import credential_for
from shared.adapters.azure.transport import transport_for
from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import CapacityRefused
from shared.autoscaling.operating.permissions import grants, lacking
from shared.values.redaction import redacting

API_VERSION = "2022-04-01"
FORBIDDEN = 403


@redacting
class ArmPermissions:
    """See Permissions. Listing them is a permission too, which scaling does not need."""

    def __init__(self, endpoint: str) -> None:
        token = AsyncBearerTokenCredentialPolicy(credential_for(endpoint), f"{endpoint}/.default")
        self._client: AsyncARMPipelineClient[Any, Any] = AsyncARMPipelineClient(
            endpoint,
            policies=[UserAgentPolicy(), AsyncRetryPolicy(), token],
            transport=transport_for(endpoint),
        )

    async def lacking(self, target: AppServicePlan) -> Sequence[str]:
        """Raises CapacityRefused where they may not be listed."""
        url: str | None = (
            f"/subscriptions/{target.subscription_id}/resourceGroups/{target.resource_group}"
            f"/providers/Microsoft.Web/serverfarms/{target.name}"
            f"/providers/Microsoft.Authorization/permissions?api-version={API_VERSION}"
        )
        granted = []
        while url:
            response = await self._client.send_request(
                HttpRequest("GET", self._client.format_url(url))
            )
            if response.status_code == FORBIDDEN:
                raise CapacityRefused(
                    "not known: to list permissions takes Microsoft.Authorization/permissions/read "
                    "(scaling does not), or the identity has no role on the plan at all"
                )
            response.raise_for_status()
            page = response.json()
            granted += grants(page["value"])
            url = page.get("nextLink")
        return lacking(granted)

    async def close(self) -> None:
        await self._client.close()
