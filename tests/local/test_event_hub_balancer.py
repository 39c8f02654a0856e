"""How local hosts share the partitions of a hub, with a balancer that is not the app's own."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from local.functions_host.event_hub_balancer import HostBalancer, Lifetime
from local.twins.ingestion import MemoryOwnershipStore

IDS = tuple(str(number) for number in range(8))


class World:
    """Hosts with one store and one clock."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, tzinfo=UTC)
        self.store = MemoryOwnershipStore(lambda: self.now)

    def host(self, name: str) -> HostBalancer:
        return HostBalancer(name, self.store, Lifetime(30))

    async def settle(self, hosts: Sequence[HostBalancer], rounds: int = 20) -> list[int]:
        """The number of partitions of each host after some cycles, a second apart."""
        for _ in range(rounds):
            shares = [await each.cycle(IDS) for each in hosts]
            self.now += timedelta(seconds=1)
        partitions = [each for mine, _ in shares for each in mine]
        assert len(partitions) == len(set(partitions)), "no partition has two owners"
        return sorted(len(mine) for mine, _ in shares)


@pytest.mark.parametrize("shares", [[2, 3, 3], [0, *[1] * 8]])
async def test_hosts_settle_on_equal_shares(shares: list[int]) -> None:
    world = World()
    assert await world.settle([world.host(str(n)) for n, _ in enumerate(shares)], 30) == shares


async def test_a_host_that_joins_takes_from_the_others_and_one_that_dies_is_replaced() -> None:
    world = World()
    first, second = world.host("first"), world.host("second")
    assert await world.settle([first]) == [8]
    assert await world.settle([first, second]) == [4, 4]
    epochs = [row.epoch for row in (await world.store.owners()).rows]
    assert sorted(epochs) == [1] * 4 + [2] * 4
    assert await world.settle([second], rounds=18) == [4], "the rows of the first are still valid"
    assert await world.settle([second]) == [8]
    assert len((await first.cycle(IDS))[0]) <= 1, "it has lost its partitions"
