"""Starts and stops the delivery of events to a function by its app setting.

A change of app settings restarts the whole app. Azure Resource Manager takes them as a whole and
fences nobody: they are read, merged and written, and read again, both before and after.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from azure.core.exceptions import AzureError
from azure.mgmt.web.aio import WebSiteManagementClient
from azure.mgmt.web.models import StringDictionary

from shared.adapters.azure.credentials import credential_for
from shared.adapters.azure.transport import transport_for
from shared.ingestion.breaker.breaker import Breaker
from shared.ingestion.breaker.ports import Announcer, ConsumptionSwitch
from shared.ingestion.errors import DependencyDown
from shared.values.redaction import redacting

log = logging.getLogger(__name__)

TRIES_MAX = 5


@redacting
class AppSettingSwitch:
    """Sets ``AzureWebJobs.<function>.Disabled`` of one Function App, or takes it away."""

    def __init__(self, resource_id: str, function: str, endpoint: str) -> None:
        _, _, subscription, _, self._group, *_, self._name = resource_id.split("/")
        self._key = f"AzureWebJobs.{function}.Disabled"
        self._client = WebSiteManagementClient(
            credential_for(endpoint),
            subscription,
            base_url=endpoint,
            credential_scopes=[f"{endpoint}/.default"],
            transport=transport_for(endpoint),
        )

    async def turn(self, *, on: bool) -> None:
        try:
            for _ in range(TRIES_MAX):
                if await self._tried(on=on):
                    return
        except AzureError as error:
            raise DependencyDown(f"{self._name}: {type(error).__name__}: {error}") from error
        raise DependencyDown(f"{self._name}: somebody else changes its app settings all the time")

    async def close(self) -> None:
        await self._client.close()

    async def _tried(self, *, on: bool) -> bool:
        """False where somebody else was seen to write at the same time."""
        before = await self._read()
        wanted = merged(before, self._key, on=on)
        if wanted == before:
            return True
        if await self._read() != before:
            return False
        await self._client.web_apps.update_application_settings(
            self._group, self._name, StringDictionary(properties=wanted)
        )
        return await self._read() == wanted

    async def _read(self) -> dict[str, str]:
        settings = await self._client.web_apps.list_application_settings(self._group, self._name)
        return dict(settings.properties or {})


def merged(settings: Mapping[str, str], key: str, *, on: bool) -> dict[str, str]:
    """The settings with the function disabled, or as if it had never been."""
    others = {name: value for name, value in settings.items() if name != key}
    return others if on else {**others, key: "true"}


@redacting
class SwitchingAnnouncer:
    """Tells of an opening, then stops the delivery: the stop restarts whoever would tell.

    Where it cannot be stopped the breaker holds the events all the same.
    """

    def __init__(self, then: Announcer, switch: ConsumptionSwitch) -> None:
        self._then, self._switch = then, switch

    async def announce(self, breaker: Breaker) -> None:
        await self._then.announce(breaker)
        try:
            await self._switch.turn(on=False)
        except DependencyDown as error:
            log.error("[not_disabled] %s", error)
