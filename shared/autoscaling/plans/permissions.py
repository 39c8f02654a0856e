"""Asks Azure Resource Manager what the app's identity may do to a plan.

https://learn.microsoft.com/rest/api/authorization/permissions/list-for-resource
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from azure.core.pipeline.policies import AsyncRetryPolicy
from azure.core.rest import HttpRequest

from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import CapacityRefused
from shared.autoscaling.plans.app_service import plan_access, plan_id
from shared.azure.arm import arm_client, pages
from shared.azure.budget import ArmBudget
from shared.azure.refusals import Access
from shared.values.redaction import redacting

API_VERSION, PLANS_API_VERSION = "2022-04-01", "2024-04-01"
FORBIDDEN = 403
NEEDED = ("Microsoft.Web/serverfarms/read", "Microsoft.Web/serverfarms/write")
NEEDED_TO_JOIN = ("Microsoft.Web/hostingEnvironments/join/action",)
"""The permission to change a plan of an App Service Environment, on the environment."""

Permission = Mapping[str, Any]
"""A permission of a role, as Resource Manager lists it."""


def not_granted(granted: Sequence[Permission], needed: Sequence[str] = NEEDED) -> list[str]:
    """The needed actions that no permission allows, as Azure's role-based access control evaluates
    them: one role may allow what another excludes."""
    return [action for action in needed if not any(_allows(each, action) for each in granted)]


def _allows(permission: Permission, action: str) -> bool:
    excluded = _any(permission.get("notActions", ()), action)
    return _any(permission.get("actions", ()), action) and not excluded


def _any(patterns: Iterable[str], action: str) -> bool:
    """True if a pattern matches the action. ``*`` matches any text, and case is ignored."""
    return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns)


@redacting
class ArmPermissions:
    """See Permissions. Listing permissions requires a permission that scaling does not need."""

    def __init__(self, endpoint: str, budget: ArmBudget | None = None) -> None:
        self._endpoint = endpoint
        self._client = arm_client(endpoint, AsyncRetryPolicy(), budget=budget)

    async def lacking(self, target: AppServicePlan) -> Sequence[str]:
        """Raises CapacityRefused if the identity may not list its permissions."""
        return not_granted(await self._granted(plan_id(target), plan_access(target)))

    async def lacking_to_join(self, environment: str) -> Sequence[str]:
        access = Access(f"environment {environment}", f"with {NEEDED_TO_JOIN[0]}")
        return not_granted(await self._granted(environment, access), NEEDED_TO_JOIN)

    async def may_list(self, target: AppServicePlan) -> bool:
        plans, access = plan_id(target).rpartition("/")[0], plan_access(target)
        url = self._client.format_url(f"{plans}?api-version={PLANS_API_VERSION}")
        with access.explained():
            response = await self._client.send_request(HttpRequest("GET", url))
            if response.status_code != FORBIDDEN:
                response.raise_for_status()
        return bool(response.status_code != FORBIDDEN)

    async def _granted(self, scope: str, access: Access) -> list[Permission]:
        path = f"{scope}/providers/Microsoft.Authorization/permissions?api-version={API_VERSION}"
        granted: list[Permission] = []
        with access.explained():
            async for response in pages(self._client, self._endpoint, path):
                if response.status_code == FORBIDDEN:
                    raise CapacityRefused(
                        f"the permissions on {access.place} cannot be listed: either the identity "
                        "has no role on it, or its role lacks "
                        "Microsoft.Authorization/permissions/read (which scaling does not need)"
                    )
                response.raise_for_status()
                granted += response.json()["value"]
        return granted

    async def close(self) -> None:
        await self._client.close()
