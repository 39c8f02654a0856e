"""The names of a stream that differ by case: the checkpoint that is furthest counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from local.twins.ingestion import MemoryIngestionStore
from shared.ingestion.errors import StoreUnavailable
from shared.ingestion.events.stored_streams import StoredStreams, furthest
from shared.ingestion.model import Stream
from shared.ingestion.store.events import StoredCheckpoint
from tests.builders import NOW
from tests.ingestion.commits import checkpoint, commit


@pytest.mark.parametrize("behind", [None, -1, 3])
@pytest.mark.parametrize("ahead", [-1, 0, 4])
def test_a_checkpoint_counts_more_than_none_and_a_further_one_more(
    behind: int | None, ahead: int
) -> None:
    """A checkpoint of -1 has no event yet, but was written."""
    if behind is not None and behind >= ahead:
        return
    names = [Stream("ns", hub, "$Default", "0") for hub in ("hub", "HUB")]
    before = None if behind is None else checkpoint(behind)
    for one, other in (names, reversed(names)):
        assert furthest({one: before, other: checkpoint(ahead)}) == other


async def test_names_that_could_not_be_compared_are_read_again_with_those_that_came_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryIngestionStore(lambda: NOW)
    lower = Stream("ns", "hub", "$Default", "0")
    for hub, last in (("hub", 3), ("HUB", 5)):
        each = replace(lower, hub=hub)
        await store.commit(each, await store.load(each), commit(None, last))
    streams, load = StoredStreams(store), store.load

    async def fail(_stream: Stream) -> StoredCheckpoint:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(store, "load", fail)
    with pytest.raises(StoreUnavailable):
        await streams.find(lower)
    monkeypatch.setattr(store, "load", load)
    third = replace(lower, hub="Hub")
    await store.commit(third, await store.load(third), commit(None, 9))
    await streams.find(replace(lower, hub="other"))
    assert await streams.find(lower) == third
