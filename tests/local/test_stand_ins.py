"""The stand-in for Azure Resource Manager refuses what Azure refuses, and fails if told to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import ClientSession
from azure.core.exceptions import HttpResponseError
from azure.mgmt.web.aio import WebSiteManagementClient

from local.azure_apis.arm import ArmStandIn, RoleScope
from local.azure_apis.plans import P1V3, Pieces, Plan, PlanId
from shared.azure.credentials import credential_for
from shared.azure.transport import transport_for
from tests.builders import NOW

PLAN = PlanId("11111111-2222-3333-4444-555555555555", "rg", "plan")
TOKEN = {"Authorization": "any"}


@pytest.fixture
async def arm() -> AsyncIterator[ArmStandIn]:
    async with ArmStandIn([Plan(PLAN, tags={"team": "blue"})]) as server:
        yield server


async def ask(
    arm: ArmStandIn, method: str, headers: dict[str, str], body: Any = None
) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{arm.port}{PLAN}"
    async with (
        ClientSession(headers=headers) as session,
        session.request(method, url, json=body) as reply,
    ):
        return reply.status, await reply.json()


async def get(arm: ArmStandIn) -> Any:
    return (await ask(arm, "GET", TOKEN))[1]


async def put(arm: ArmStandIn, capacity: Any, sku: str = "S1", **properties: Any) -> int:
    body = {
        "location": "West Europe",
        "sku": {"name": sku, "capacity": capacity},
        "properties": properties,
    }
    return (await ask(arm, "PUT", TOKEN, body))[0]


async def test_a_put_removes_tags_that_it_omits(arm: ArmStandIn) -> None:
    """As in Azure, a PUT with only a SKU removes the other properties."""
    assert await put(arm, 2) == 200
    assert arm.plan(PLAN).tags == {}


@pytest.mark.parametrize(
    ("capacity", "status"),
    [(0, 400), (-1, 400), (11, 409), (None, 400), ("three", 400), (True, 400)],
)
async def test_a_capacity_that_the_plan_cannot_have_is_refused(
    arm: ArmStandIn, capacity: Any, status: int
) -> None:
    assert await put(arm, capacity) == status
    assert arm.plan(PLAN).capacity == 1


async def test_conflicts_occur_at_random_and_are_repeatable_by_seed() -> None:
    async def statuses(seed: int) -> list[int]:
        async with ArmStandIn([Plan(PLAN)], conflict_probability=0.5, seed=seed) as arm:
            return [await put(arm, 2) for _ in range(12)]

    first = await statuses(1)
    assert set(first) == {200, 409}
    assert await statuses(1) == first
    assert await statuses(2) != first


@pytest.mark.parametrize(
    ("pieces", "during", "after"),
    [
        ({}, (9, 9, 15, "InProgress"), (15, 15, 0, "Succeeded")),
        ({"shows_ordered": True}, (15, 9, 15, "InProgress"), (15, 15, 0, "Succeeded")),
        ({"keeps_target": True}, (9, 9, 15, "InProgress"), (15, 15, 15, "Succeeded")),
        ({"most": 2}, (9, 9, 15, "InProgress"), (9, 9, 15, "InProgress")),
        ({"most": 3, "ends_short": True}, (9, 9, 15, "InProgress"), (12, 12, 0, "Succeeded")),
    ],
)
async def test_a_plan_fills_in_pieces_stands_still_or_ends_short(
    pieces: dict[str, Any], during: tuple[Any, ...], after: tuple[Any, ...]
) -> None:
    """Forms of which Azure's documentation promises some and leaves the others open."""
    now = NOW
    plan = Plan(PLAN, 3, P1V3, properties={"asyncScalingEnabled": True})
    async with ArmStandIn([plan], clock=lambda: now) as arm:
        arm.pieces = Pieces(3, 60, **pieces)
        assert await put(arm, 15, "P1v3", asyncScalingEnabled=True) == 202
        for seconds, expected in ((125, during), (600, after)):
            now += timedelta(seconds=seconds)
            shown = await get(arm)
            found = shown["properties"]
            assert expected == (
                shown["sku"]["capacity"],
                found["numberOfWorkers"],
                found["targetWorkerCount"],
                found["provisioningState"],
            )


async def test_a_region_without_enough_free_instances_names_their_number(arm: ArmStandIn) -> None:
    arm.free = 2
    assert [await put(arm, capacity) for capacity in (4, 3, 4, 2, 3)] == [429, 200, 429, 200, 200]


@pytest.mark.parametrize(
    ("method", "headers", "expected"), [("GET", {}, 401), ("PATCH", TOKEN, 405)]
)
async def test_unsupported_requests_are_refused(
    arm: ArmStandIn, method: str, headers: dict[str, str], expected: int
) -> None:
    assert (await ask(arm, method, headers))[0] == expected


@pytest.mark.parametrize(
    ("kind", "method", "size", "per_second"),
    [("reads", "GET", 250, 25), ("writes", "PUT", 200, 10)],
)
async def test_a_subscription_accepts_as_many_requests_as_azure_allows(
    kind: str, method: str, size: int, per_second: int
) -> None:
    now = NOW
    body = {"location": "West Europe", "sku": {"name": "S1", "capacity": 1}}
    async with ArmStandIn([Plan(PLAN)], clock=lambda: now) as arm, ClientSession() as session:

        async def answers(count: int, plan: PlanId = PLAN) -> list[tuple[int, str]]:
            url, found = f"http://127.0.0.1:{arm.port}{plan}", []
            for _ in range(count):
                async with session.request(method, url, json=body, headers=TOKEN) as reply:
                    left = reply.headers[f"x-ms-ratelimit-remaining-subscription-{kind}"]
                    assert reply.status != 429 or (
                        "SubscriptionRequestsThrottled" in await reply.text()
                        and reply.headers["Retry-After"] == "1"
                    )
                    found.append((reply.status, left))
            return found

        burst = await answers(size + 2)
        assert [left for _, left in burst[:2]] == [str(size - 1), str(size - 2)]
        assert [status == 429 for status, _ in burst] == [False] * size + [True] * 2
        assert burst[-1][1] == "0"
        assert (await answers(1, PlanId("another", "rg", "plan")))[0][0] != 429
        now += timedelta(seconds=1)
        assert [status for status, _ in await answers(per_second + 1)].count(429) == 1
        now -= timedelta(seconds=60)
        assert (await answers(1))[0][0] == 429
        assert arm.answered[method, 429] == 4


async def test_plans_are_listed_in_pages_as_far_as_the_role_reaches() -> None:
    plans = [PlanId(PLAN.subscription, "rg", f"plan-{n:03}") for n in range(150)]
    others = [PlanId(PLAN.subscription, "rg2", "p"), PlanId("another", "rg", "p")]
    async with ArmStandIn([Plan(each, 2) for each in plans + others]) as arm:
        arm.left_out_of_lists = {plans[7]}
        client = WebSiteManagementClient(
            credential_for(arm.base_url),
            PLAN.subscription,
            base_url=arm.base_url,
            transport=transport_for(arm.base_url),
        )
        async with client:
            listing = client.app_service_plans
            group = [each async for each in listing.list_by_resource_group("RG")]
            assert [each.name for each in group] == [p.name for p in plans if p != plans[7]]
            assert {each.sku.capacity for each in group if each.sku} == {2}
            assert len([each async for each in listing.list()]) == 150
            assert arm.answered["GET", 200] == 4
            for scope, allowed in (
                (RoleScope.SUBSCRIPTION, [True, True]),
                (RoleScope.RESOURCE_GROUP, [True, False]),
                (RoleScope.PLAN, [False, False]),
            ):
                arm.role_scope = scope
                for may, pages in zip(
                    allowed, (listing.list_by_resource_group("rg"), listing.list()), strict=True
                ):
                    with (
                        nullcontext()
                        if may
                        else pytest.raises(HttpResponseError, match="list plans")
                    ):
                        assert [each async for each in pages]
