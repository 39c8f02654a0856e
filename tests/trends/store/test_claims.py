"""The contract of Claims, tested on the in-memory adapter and on Azure Tables (Azurite)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from local.twins.datasets import MemoryClaims
from shared.settings.connections import StorageConnection
from shared.storage.tables import key
from shared.trends.datasets.flows import Claims
from shared.trends.datasets.processing import DatasetWork
from shared.trends.store.claims import TableClaims
from tests.builders import NOW, ago

LABEL = "2026-03-01T02:00Z/PT2H"


@pytest.fixture(params=["memory", "tables"])
async def claims(request: pytest.FixtureRequest) -> AsyncIterator[Claims]:
    if request.param == "memory":
        yield MemoryClaims(lambda: datetime.now(UTC))
        return
    string = request.getfixturevalue("azurite").connection_string
    store = TableClaims(StorageConnection("Storage", string))
    yield store
    await store.close()


@pytest.fixture
def work() -> DatasetWork:
    return DatasetWork(f"sales-{uuid.uuid4().hex[:8]}", LABEL, ago(7200), NOW)


async def test_work_is_done_once_a_message_has_finished_it(
    claims: Claims, work: DatasetWork
) -> None:
    assert await claims.done(work) == ""
    for message in ("m1", "m2"):  # the newer one stays, if two were processed at the same time
        await claims.finish(work, message)
        at, _, by = (await claims.done(work)).partition(" for message ")
        assert by == message
        assert abs(datetime.fromisoformat(at) - datetime.now(UTC)) < timedelta(minutes=1)


async def test_each_round_period_and_data_set_has_its_own_claim(
    claims: Claims, work: DatasetWork
) -> None:
    others = [replace(work, late=1), replace(work, label="2026-03-01")]
    others.append(replace(work, dataset=f"{work.dataset}/ü#?"))
    for each in (work, *others):
        assert await claims.done(each) == ""
        await claims.finish(each, each.message_id)
    for each in (work, *others):
        assert (await claims.done(each)).endswith(f" for message {each.message_id}")


def test_keys_are_readable_and_distinct() -> None:
    assert key(LABEL) == "2026-03-01T02:00Z=2FPT2H"
    assert key("a=2Fb") != key("a/b")


@pytest.mark.parametrize(("done_at", "done"), [("", False), ("soon", True)])
async def test_a_claim_without_an_end_is_not_done(
    claims: TableClaims, work: DatasetWork, done_at: str, done: bool
) -> None:
    """Such as one that an operator has written by hand, in any form."""
    keys = {"PartitionKey": key(work.dataset), "RowKey": key(work.round_label)}
    await claims._table.overwrite({**keys, "holder": "m1", "done_at": done_at})
    assert bool(await claims.done(work)) is done
