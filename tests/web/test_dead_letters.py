"""The page shows the dead letters that failed last, across all partitions."""

from __future__ import annotations

from datetime import timedelta

from local.twins.ingestion import MemoryIngestionStore
from shared.ingestion.model import DeadLetter, FailureKind, Stream
from shared.wiring.app import App
from tests.builders import NOW


async def test_only_the_50_newest_dead_letters_of_all_partitions_are_shown() -> None:
    store = MemoryIngestionStore(lambda: NOW)
    for partition in range(3):
        stream = Stream("bus", "metrics", "$Default", str(partition))
        for number in range(200):
            at = NOW + timedelta(minutes=3 * number + partition)
            error = f"{partition}/{number}"
            letter = DeadLetter(number, "", NOW, at, FailureKind.POISON, error)
            store.rows[stream].dead_letters[number] = letter
    app = App()
    app.ingestion.store = store
    shown = await app.web.dead_letters()
    newest = [f"{partition}/{number}" for number in range(199, 0, -1) for partition in (2, 1, 0)]
    assert [letter["error"] for letter in shown.content] == newest[:50]
    (found,) = shown.conditions
    assert (found.what, found.meaning) == ("dead letters: 50 or more", "The newest: 2/199")
