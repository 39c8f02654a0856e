"""A checkpoint store for the client library's own balancing: zombies move nothing."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from azure.eventhub import LoadBalancingStrategy
from azure.eventhub.aio._eventprocessor._ownership_manager import OwnershipManager
from azure.eventhub.exceptions import OwnershipLostError

from shared.adapters.event_hubs.checkpoints import (
    FencedCheckpointStore,
    Group,
    PartitionRow,
    PartitionRows,
    SeenRows,
)
from shared.adapters.memory.checkpoints import MemoryPartitionRows
from shared.ingestion.errors import StoreUnavailable
from tests.builders import NOW
from tests.contract.conftest import Backend

NAMESPACE, CONSUMER_GROUP = "NS.servicebus.windows.net", "$Default"


@dataclass
class Rig:
    """One hub and the stores of several clients that read it."""

    rows: PartitionRows
    hub: str = field(default_factory=lambda: uuid.uuid4().hex)
    partition_count: int = 4

    def client(self) -> Client:
        return Client(self, FencedCheckpointStore(self.rows), str(uuid.uuid4()))

    @property
    def names(self) -> dict[str, Any]:
        return {
            "fully_qualified_namespace": NAMESPACE,
            "eventhub_name": self.hub,
            "consumer_group": CONSUMER_GROUP,
        }


@dataclass
class Client:
    """What the client library does with a store: list, claim what it lists, write checkpoints."""

    rig: Rig
    store: FencedCheckpointStore
    owner: str

    async def claim(self, partition_id: str = "0", owner: str | None = None) -> bool:
        listed = {each["partition_id"]: each for each in await self.list()}
        found = listed.get(partition_id, {**self.rig.names, "partition_id": partition_id})
        return await self.claim_listed({**found, "owner_id": owner or self.owner})

    async def claim_listed(self, ownership: dict[str, Any]) -> bool:
        claimed = list(await self.store.claim_ownership([ownership]))
        assert all(each["owner_id"] == ownership["owner_id"] for each in claimed)
        return bool(claimed)

    async def list(self) -> list[dict[str, Any]]:
        return list(await self.store.list_ownership(**self.rig.names))

    async def checkpoint(self, sequence: int, partition_id: str = "0") -> None:
        position = {"sequence_number": sequence, "offset": f"@{sequence}"}
        await self.store.update_checkpoint(
            {**self.rig.names, "partition_id": partition_id, **position}
        )

    async def checkpoints(self) -> dict[str, tuple[int, str]]:
        found = await self.store.list_checkpoints(**self.rig.names)
        return {each["partition_id"]: (each["sequence_number"], each["offset"]) for each in found}


@pytest.fixture
def rig(backend: Backend) -> Rig:
    return Rig(backend.partition_rows())


async def test_what_is_claimed_is_listed_by_all(rig: Rig) -> None:
    mine, yours = rig.client(), rig.client()
    assert await mine.list() == []
    assert await mine.claim()
    (listed,) = await yours.list()
    assert listed == {
        **rig.names,
        "partition_id": "0",
        "owner_id": mine.owner,
        "etag": listed["etag"],
        "last_modified_time": listed["last_modified_time"],
    }
    assert abs(listed["last_modified_time"] - time.time()) < 3
    assert await mine.checkpoints() == {}


async def test_of_two_who_saw_the_same_one_claims(rig: Rig) -> None:
    mine, yours = rig.client(), rig.client()
    free = {**rig.names, "partition_id": "0"}
    assert await mine.claim_listed({**free, "owner_id": mine.owner})
    assert not await yours.claim_listed({**free, "owner_id": yours.owner})
    (listed,) = await yours.list()
    assert await mine.claim(), "a renewal"
    assert not await yours.claim_listed({**listed, "owner_id": yours.owner})
    assert await yours.claim(), "stolen, knowing of the renewal"
    assert not await mine.claim_listed({**listed, "owner_id": mine.owner})


async def test_a_checkpoint_is_where_the_next_owner_begins(rig: Rig) -> None:
    mine, yours = rig.client(), rig.client()
    await mine.claim()
    await mine.checkpoint(2**40)
    assert await yours.checkpoints() == {"0": (2**40, f"@{2**40}")}
    assert await yours.claim()
    assert await yours.checkpoints() == {"0": (2**40, f"@{2**40}")}


async def test_a_zombie_moves_no_checkpoint(rig: Rig) -> None:
    zombie, owner = rig.client(), rig.client()
    await zombie.claim()
    await zombie.checkpoint(10)
    await owner.claim()
    await owner.checkpoint(900)
    for sequence in (11, 900, 901):
        with pytest.raises(OwnershipLostError):
            await zombie.checkpoint(sequence)
    assert await owner.checkpoints() == {"0": (900, "@900")}


async def test_a_zombie_is_refused_before_the_new_owner_wrote_anything(rig: Rig) -> None:
    zombie, owner = rig.client(), rig.client()
    await zombie.claim()
    await owner.claim()
    with pytest.raises(OwnershipLostError):
        await zombie.checkpoint(11)
    assert await owner.checkpoints() == {}


async def test_who_came_back_may_write_again(rig: Rig) -> None:
    first, second = rig.client(), rig.client()
    for client in (first, second, first):
        await client.claim()
    with pytest.raises(OwnershipLostError):
        await second.checkpoint(1)
    await first.checkpoint(2)
    assert await first.checkpoints() == {"0": (2, "@2")}


async def test_an_owners_own_checkpoint_does_not_go_back(rig: Rig) -> None:
    client = rig.client()
    await client.claim()
    for sequence in (5, 3, 5, 7, 6):
        await client.checkpoint(sequence)
    assert await client.checkpoints() == {"0": (7, "@7")}


async def test_checkpoints_and_renewals_do_not_get_in_each_others_way(rig: Rig) -> None:
    client = rig.client()
    await client.claim()
    (listed,) = await client.list()
    await client.checkpoint(1)
    assert await client.claim_listed(listed), "the client compares what it listed before"
    done = await asyncio.gather(client.claim(), *[client.checkpoint(n) for n in range(2, 6)])
    assert done[0] is True
    assert await client.checkpoints() == {"0": (5, "@5")}


async def test_what_is_given_up_is_free_and_fenced(rig: Rig) -> None:
    mine, yours = rig.client(), rig.client()
    await mine.claim()
    await mine.checkpoint(1)
    (listed,) = await mine.list()
    await mine.store.claim_ownership([{**listed, "owner_id": ""}])
    assert [each["owner_id"] for each in await yours.list()] == [""]
    assert await yours.claim()
    with pytest.raises(OwnershipLostError):
        await mine.checkpoint(2)


async def test_a_reader_of_one_fixed_partition_needs_no_claim(rig: Rig) -> None:
    reader, balanced = rig.client(), rig.client()
    await reader.checkpoint(5, "3")
    await reader.checkpoint(6, "3")
    assert await reader.checkpoints() == {"3": (6, "@6")}
    assert await balanced.list() == [], "it owns nothing"
    assert await balanced.claim("3")
    with pytest.raises(OwnershipLostError):
        await reader.checkpoint(7, "3")


async def test_names_are_compared_as_the_service_does(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    await client.claim()
    await client.checkpoint(1)
    shouted = replace(rig, hub=rig.hub.upper())
    found = list(await other.store.list_checkpoints(**shouted.names))
    assert [each["sequence_number"] for each in found] == [1]
    assert found[0]["eventhub_name"] == rig.hub.upper(), "as it was asked for"


class Failing:
    """Rows whose writes fail, before or after they took effect."""

    def __init__(self, rows: PartitionRows, *, applied: bool) -> None:
        self._rows = rows
        self._applied = applied
        self.failing = True

    async def rows(self, group: Group) -> SeenRows:
        return await self._rows.rows(group)

    async def row(self, group: Group, partition_id: str) -> PartitionRow | None:
        return await self._rows.row(group, partition_id)

    async def write(self, group: Group, row: PartitionRow) -> PartitionRow:
        if not self.failing:
            return await self._rows.write(group, row)
        if self._applied:
            await self._rows.write(group, row)
        raise StoreUnavailable("the reply was lost")


@pytest.mark.parametrize("applied", [False, True])
async def test_a_claim_that_fails_is_no_claim(rig: Rig, applied: bool) -> None:
    failing = Failing(rig.rows, applied=applied)
    client = Client(rig, FencedCheckpointStore(failing), "me")
    assert not await client.claim()
    with pytest.raises((StoreUnavailable, OwnershipLostError)):
        await client.checkpoint(1)
    failing.failing = False
    assert await client.claim(), "found or made in the next cycle"
    await client.checkpoint(2)
    assert await client.checkpoints() == {"0": (2, "@2")}


@pytest.mark.parametrize("applied", [False, True])
async def test_a_checkpoint_whose_reply_was_lost_can_be_written_again(
    rig: Rig, applied: bool
) -> None:
    failing = Failing(rig.rows, applied=applied)
    client = Client(rig, FencedCheckpointStore(failing), "me")
    failing.failing = False
    await client.claim()
    failing.failing = True
    with pytest.raises(StoreUnavailable):
        await client.checkpoint(1)
    failing.failing = False
    await client.checkpoint(1)
    assert await client.checkpoints() == {"0": (1, "@1")}


async def test_an_age_is_by_the_stores_clock_whatever_the_clients_says(rig: Rig) -> None:
    slow = FencedCheckpointStore(rig.rows, local_time=lambda: 1000.0)
    await rig.client().claim()
    (listed,) = await slow.list_ownership(**rig.names)
    assert 995 < listed["last_modified_time"] <= 1002


async def test_a_checkpoint_renews_the_ownership_too() -> None:
    now = [NOW]
    rows = MemoryPartitionRows(lambda: now[0])
    client = Client(Rig(rows), FencedCheckpointStore(rows, local_time=lambda: 1000.0), "me")
    await client.claim()
    now[0] += timedelta(seconds=20)
    assert [each["last_modified_time"] for each in await client.list()] == [980]
    await client.checkpoint(1)
    assert [each["last_modified_time"] for each in await client.list()] == [1000]


# --- with the client library's own balancing --------------------------------------------------


class _Hub:
    """As much of a client as the library's balancer asks."""

    def __init__(self, rig: Rig) -> None:
        self.eventhub_name = rig.hub
        self._address = type("Address", (), {"hostname": NAMESPACE})()
        self._partition_ids = [str(n) for n in range(rig.partition_count)]

    async def get_partition_ids(self) -> list[str]:
        return self._partition_ids


def balancer(rig: Rig, client: Client, ownership_timeout: float = 60) -> OwnershipManager:
    hub: Any = _Hub(rig)
    return OwnershipManager(
        hub,
        CONSUMER_GROUP,
        client.owner,
        client.store,
        ownership_timeout,
        LoadBalancingStrategy.GREEDY,
        None,
    )


async def test_the_librarys_balancer_shares_partitions_out(rig: Rig) -> None:
    clients = [rig.client(), rig.client()]
    first, second = [balancer(rig, client) for client in clients]
    assert len(await first.claim_ownership()) == 4
    for _cycle in range(3):
        theirs = set(await second.claim_ownership())
        ours = set(await first.claim_ownership())
    assert len(ours) == len(theirs) == 2
    assert not ours & theirs
    for partition_id in theirs:
        await clients[1].checkpoint(7, partition_id)
        with pytest.raises(OwnershipLostError):
            await clients[0].checkpoint(8, partition_id)
    assert {each["sequence_number"] for each in (await second.get_checkpoints()).values()} == {7}


async def test_the_library_takes_over_from_who_is_silent(rig: Rig) -> None:
    silent, living = rig.client(), rig.client()
    assert len(await balancer(rig, silent).claim_ownership()) == 4
    patient = balancer(rig, living, ownership_timeout=-1)  # all that was ever written is too old
    assert len(await patient.claim_ownership()) == 4
    with pytest.raises(OwnershipLostError):
        await silent.checkpoint(1)
