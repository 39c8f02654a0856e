"""The stand-in for Azure Resource Manager refuses what Azure refuses, and fails if told to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import ClientSession

from local.azure_apis.arm import ArmStandIn
from local.azure_apis.plans import P1V3, Pieces, Plan, PlanId
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
