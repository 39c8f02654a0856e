"""The accounts of streams, as pages and programs show them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from local.twins.ingestion import MemoryIngestionStore
from shared.cli import tables
from shared.ingestion.model import COMPACTED, Gap
from shared.ingestion.operating import event_news
from shared.ingestion.operating import presenting as view
from shared.ingestion.operating import stream_account as account
from tests.builders import NOW
from tests.ingestion.commits import commit, effect, gap, letter, new_stream


async def test_the_account_of_a_stream_lists_its_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    store, stream = MemoryIngestionStore(lambda: NOW), new_stream("3")
    compacted = replace(gap(8, 8), reason=COMPACTED)
    made = commit(None, 9, [effect(stream, 0)], [letter(9)], [gap(1, 7), compacted])
    made = replace(made, checkpoint=replace(made.checkpoint, set_aside=4))
    await store.commit(stream, await store.load(stream), made)
    shown = view.accounts(await account.stream_accounts(store))
    (stream_account,) = shown["streams"]
    assert (
        stream_account["first"],
        stream_account["last"],
        stream_account["epoch"],
        stream_account["gone"],
        stream_account["set_aside"],
    ) == (0, 9, 1, 7, 4)
    assert await account.set_aside(store) == [(stream, 4)]
    assert [(each["first"], each["last"]) for each in stream_account["gaps"]] == [(1, 7), (8, 8)]
    tables.accounts(shown)
    out = " ".join(capsys.readouterr().out.split())
    assert f"{stream.hub}/$Default/3" in out
    assert "1 to 7 are missing" in out
    assert f"8 to 8 detected {stream_account['gaps'][1]['found_at']}: replaced by newer" in out
    reported = await event_news.news_since(store, NOW)
    assert [news.kind for news in reported] == ["dead.letters.growing", "events.gone"]
    tables.accounts(view.accounts([]))
    assert "no events were processed yet" in capsys.readouterr().out


async def test_more_gaps_than_fit_into_a_page_are_all_read() -> None:
    store, stream = MemoryIngestionStore(lambda: NOW), new_stream()
    many = {n: Gap(n, n, NOW, "skipped") for n in range(0, 5000, 2)}
    store.rows[stream].gaps.update(many)
    assert await account.all_gaps(store, stream) == list(many.values())
