"""Stops and starts a function by an app setting, which restarts the app. Azure replaces all
settings without a condition, so the switch reads them again around its write."""

from __future__ import annotations

from collections.abc import Mapping

from azure.core.exceptions import AzureError
from azure.mgmt.web.aio import WebSiteManagementClient
from azure.mgmt.web.models import StringDictionary

from shared.azure.budget import ArmBudget
from shared.azure.credentials import credential_for
from shared.azure.refusals import Access
from shared.azure.transport import transport_for
from shared.ingestion.errors import DependencyDown
from shared.values.redaction import redacting
from shared.values.text import one_line
from shared.values.urgency import urgent

TRIES_MAX = 5


@redacting
class AppSettingSwitch:
    """Sets or removes ``AzureWebJobs.<function>.Disabled`` of one Function App."""

    def __init__(
        self, resource_id: str, function: str, endpoint: str, budget: ArmBudget | None = None
    ) -> None:
        _, _, subscription, _, self._group, *_, self._name = resource_id.split("/")
        self._key = f"AzureWebJobs.{function}.Disabled"
        self._client = WebSiteManagementClient(
            credential_for(endpoint),
            subscription,
            base_url=endpoint,
            credential_scopes=[f"{endpoint}/.default"],
            transport=transport_for(endpoint),
            per_retry_policies=[budget.policy()] if budget else [],
        )

    async def turn(self, *, on: bool) -> None:
        try:
            with urgent():
                for _ in range(TRIES_MAX):
                    if await self._tried(on=on):
                        return
        except AzureError as error:
            access = Access(f"app settings of {self._name}", "Website Contributor")
            told = access.refusal(error) or f"{type(error).__name__}: {one_line(error)}"
            raise DependencyDown(
                f"{self._name}: its app settings could not be changed: {told}"
            ) from error
        raise DependencyDown(
            f"{self._name}: its app settings could not be changed: something else changed them "
            f"during each of {TRIES_MAX} attempts"
        )

    async def close(self) -> None:
        await self._client.close()

    async def _tried(self, *, on: bool) -> bool:
        """Try once. Returns False if the settings changed between two of its reads."""
        before = await self._read()
        after = merged(before, self._key, on=on)
        if after == before:
            return True
        if await self._read() != before:
            return False
        await self._client.web_apps.update_application_settings(
            self._group, self._name, StringDictionary(properties=after)
        )
        return await self._read() == after

    async def _read(self) -> dict[str, str]:
        settings = await self._client.web_apps.list_application_settings(self._group, self._name)
        if settings.properties is None:  # such as a proxy's answer: writing would delete them all
            raise DependencyDown(f"{self._name}: the answer contains no app settings")
        return dict(settings.properties)


def merged(settings: Mapping[str, str], key: str, *, on: bool) -> dict[str, str]:
    """The settings without ``key`` if the delivery is on; otherwise with ``key`` set to true."""
    others = {name: value for name, value in settings.items() if name != key}
    return others if on else {**others, key: "true"}
