"""How local hosts share the partitions of a hub, with a balancer that is not the app's own."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from local.functions_host import event_hub_balancer
from local.functions_host.event_hub_balancer import HostBalancer, Lifetime
from local.twins.ingestion import MemoryOwnershipStore

NOW = datetime(2026, 3, 1, tzinfo=UTC)
IDS = tuple(str(number) for number in range(8))
LIFETIME = Lifetime(30)


class World:
    """Hosts with one store and one clock."""

    def __init__(self) -> None:
        self.now = NOW
        self.store = MemoryOwnershipStore(lambda: self.now)

    def host(self, name: str) -> HostBalancer:
        return HostBalancer(name, self.store, LIFETIME)

    async def settle(self, hosts: Sequence[HostBalancer], rounds: int = 20) -> list[int]:
        """The number of partitions of each host after some cycles, a second apart."""
        for _ in range(rounds):
            shares = [await each.cycle(IDS) for each in hosts]
            self.now += timedelta(seconds=1)
        partitions = [each for mine, _ in shares for each in mine]
        assert len(partitions) == len(set(partitions)), "no partition has two owners"
        return sorted(len(mine) for mine, _ in shares)


@pytest.mark.parametrize(("count", "shares"), [(1, [8]), (2, [4, 4]), (3, [2, 3, 3]), (9, None)])
async def test_hosts_settle_on_equal_shares(count: int, shares: list[int] | None) -> None:
    world = World()
    hosts = [world.host(str(number)) for number in range(count)]
    assert await world.settle(hosts, 30) == (shares or [0] + [1] * 8)


async def test_a_host_that_joins_takes_from_the_others_and_one_that_dies_is_replaced() -> None:
    world = World()
    first, second = world.host("first"), world.host("second")
    assert await world.settle([first]) == [8]
    assert await world.settle([first, second]) == [4, 4]
    epochs = {row.partition_id: row.epoch for row in (await world.store.owners()).rows}
    assert Counter(epochs.values()) == {1: 4, 2: 4}
    assert await world.settle([second], rounds=18) == [4], "the rows of the first are still valid"
    assert await world.settle([second]) == [8]


async def test_a_host_that_wakes_after_its_rows_expired_has_lost_its_partitions() -> None:
    world = World()
    frozen, other = world.host("frozen"), world.host("other")
    await world.settle([frozen])
    world.now += timedelta(seconds=31)
    assert await world.settle([other]) == [8]
    mine, _ = await frozen.cycle(IDS)
    assert len(mine) <= 1


def test_the_balancer_uses_none_of_the_apps_own_decisions() -> None:
    tree = ast.parse(Path(str(event_hub_balancer.__file__)).read_text(encoding="utf-8"))
    modules = {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("shared.ingestion.")
    }
    assert modules - {"shared.ingestion.errors"} == {
        "shared.ingestion.model",
        "shared.ingestion.store.owners",
    }
