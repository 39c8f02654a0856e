"""The stand-in for Azure Resource Manager refuses what Azure refuses, and fails if told to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession

from local.azure_apis.arm import ArmStandIn
from local.azure_apis.plans import Plan, PlanId

PLAN = PlanId("11111111-2222-3333-4444-555555555555", "rg", "plan")
TOKEN = {"Authorization": "any"}


@pytest.fixture
async def arm() -> AsyncIterator[ArmStandIn]:
    async with ArmStandIn([Plan(PLAN, tags={"team": "blue"})]) as server:
        yield server


async def ask(arm: ArmStandIn, method: str, headers: dict[str, str], body: Any = None) -> int:
    url = f"http://127.0.0.1:{arm.port}{PLAN}"
    async with (
        ClientSession(headers=headers) as session,
        session.request(method, url, json=body) as reply,
    ):
        return reply.status


async def put(arm: ArmStandIn, capacity: Any) -> int:
    body = {"location": "West Europe", "sku": {"name": "S1", "capacity": capacity}}
    return await ask(arm, "PUT", TOKEN, body)


async def test_a_put_removes_tags_that_it_omits(arm: ArmStandIn) -> None:
    """As in Azure, a PUT with only a SKU removes the other properties."""
    assert await put(arm, 2) == 202
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
    assert set(first) == {202, 409}
    assert await statuses(1) == first
    assert await statuses(2) != first


@pytest.mark.parametrize(
    ("method", "headers", "expected"), [("GET", {}, 401), ("PATCH", TOKEN, 405)]
)
async def test_unsupported_requests_are_refused(
    arm: ArmStandIn, method: str, headers: dict[str, str], expected: int
) -> None:
    assert await ask(arm, method, headers) == expected
