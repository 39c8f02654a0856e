"""Reads the plans of a resource group with one list, where that is allowed and saves requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial

from azure.core.exceptions import AzureError
from azure.mgmt.web.models import AppServicePlan as ArmPlan

from shared.autoscaling.declaring import AppServicePlan
from shared.azure.budget import ROUTINE_SECONDS_MAX, BudgetSpent
from shared.azure.transport import server_time
from shared.values.concurrency import AskedTogether

PAGES_SECONDS_MAX = ROUTINE_SECONDS_MAX + 1
"""Longer than a list may wait for its turn: one that does not get it has not failed."""
FAILED_AGAIN_SECONDS = 300
AGAIN_SECONDS = {403: 3600, 429: 0}
"""How long plans are read singly after a list was refused, by its status."""
NEEDED = (
    "maximum_number_of_workers",
    "zone_redundant",
    "per_site_scaling",
    "elastic_scale_enabled",
)
"""A plan whose entry leaves one of these properties out is read singly."""

Listed = tuple[ArmPlan, datetime]
Pages = AsyncIterator[AsyncIterator[ArmPlan]]


class PlanLists:
    """Finds plans that are wanted at the same time in the lists of their resource groups."""

    def __init__(
        self,
        pages: Callable[[AppServicePlan], Pages],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pages, self._monotonic = pages, monotonic
        self._groups: dict[str, AskedTogether[AppServicePlan, Listed]] = {}
        self._singly_until: dict[str, float] = {}
        self._page_counts: dict[str, int] = {}
        """How many requests a list takes. For no more plans than that, it saves nothing."""

    async def find(self, target: AppServicePlan) -> Listed | None:
        """The plan and the time of the answer; None if the plan must be read singly."""
        group = f"{target.subscription_id}/{target.resource_group}".lower()
        if self._monotonic() < self._singly_until.get(group, 0):
            return None
        if group not in self._groups:
            self._groups[group] = AskedTogether(partial(self._list, group))
        return await self._groups[group].ask(target)

    async def _list(
        self, group: str, targets: Sequence[AppServicePlan]
    ) -> Mapping[AppServicePlan, Listed]:
        wanted = {each.name.lower(): each for each in targets}
        found: dict[AppServicePlan, Listed] = {}
        if len(wanted) <= self._page_counts.get(group, 1):
            return found
        again, pages = FAILED_AGAIN_SECONDS, 0
        self._singly_until[group] = self._monotonic() + again  # even if this one hangs
        try:
            async with asyncio.timeout(PAGES_SECONDS_MAX):
                async for page in self._pages(targets[0]):
                    pages += 1
                    async for plan in page:
                        target = wanted.get(str(plan.name).lower())
                        if target is not None and _is_whole(plan):
                            found[target] = plan, server_time()
                    if len(found) == len(wanted) or pages == len(wanted):
                        break
            again, self._page_counts[group] = 0, pages
        except BudgetSpent:
            del self._singly_until[group]
            raise
        except (AzureError, TimeoutError, AttributeError, TypeError, ValueError) as error:
            again = AGAIN_SECONDS.get(getattr(error, "status_code", 0), FAILED_AGAIN_SECONDS)
        self._singly_until[group] = self._monotonic() + again
        return found


def _is_whole(plan: ArmPlan) -> bool:
    """Whether the entry says all that an answer about the plan itself would say."""
    sku, stated = plan.sku, [getattr(plan.properties, each, None) for each in NEEDED]
    if sku is None or not (sku.tier or sku.name) or None in stated:
        return False
    return type(sku.capacity) is type(stated[0]) is int and 0 < sku.capacity <= stated[0]
