"""Dead letters over HTTP: what is answered, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from shared.adapters.memory.ingestion import MemoryHubReader, MemoryIngestionStore
from shared.ingestion.dead_letters.ports import StoredDeadLetter
from shared.ingestion.errors import StoreUnavailable
from shared.ingestion.model import Effect, Event
from shared.web import dead_letters_http as http
from shared.web.dead_letters_http import DeadLetterService
from shared.web.http import Reply, Request
from tests.ingestion.test_redrive import FIRST, redriver, store_with, to_message

JSON_TYPE = {"content-type": "application/json"}


def one(partition: str, sequence: str) -> Request:
    return Request(route={"partition": partition, "sequence": sequence})


def fails(event: Event) -> Effect:
    raise ValueError("<script>alert(1)</script>")


async def dead_letter_service(handle: Any = to_message) -> DeadLetterService:
    store = await store_with(range(1, 7))

    async def sent(letters: Sequence[StoredDeadLetter]) -> None:
        for stream in {stored.stream for stored in letters}:
            await store.sent(stream, await store.outbox(stream, 100))

    return DeadLetterService(store, MemoryHubReader(), redriver(store, handle), sent)


def said(answer: Reply) -> Any:
    assert answer.content_type == "application/json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    return json.loads(answer.body)


async def test_the_list_is_bounded_and_goes_on_after_a_number() -> None:
    at = await dead_letter_service()
    shown = said(await http.list_letters(Request(query={"limit": "4"}), at))
    assert [letter["sequence"] for letter in shown["dead_letters"]] == [1, 2, 3, 4]
    assert shown["more"]
    shown = said(await http.list_letters(Request(query={"limit": "4", "after": "4"}), at))
    assert ([letter["sequence"] for letter in shown["dead_letters"]], shown["more"]) == (
        [5, 6],
        False,
    )
    shown = said(await http.list_letters(Request(query={"kind": "exhausted"}), at))
    assert [letter["sequence"] for letter in shown["dead_letters"]] == [3, 6]


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "201"}, {"limit": "x"}, {"after": "-1"}, {"kind": "odd"}]
)
async def test_a_query_out_of_bounds_is_refused(query: dict[str, str]) -> None:
    answer = await http.list_letters(Request(query=query), await dead_letter_service())
    assert answer.status == 400
    assert "is needed" in said(answer)["error"]


async def test_one_is_shown_whole_and_one_that_is_not_there_is_not_found() -> None:
    at = await dead_letter_service()
    shown = said(await http.show(one("0", "2"), at))
    assert (shown["error"], shown["body"]) == ("ValueError: 2", {"text": "x"})
    assert (await http.show(one("0", "99"), at)).status == 404
    assert (await http.show(one("0", "two"), at)).status == 400


async def test_redriving_does_it_once_and_its_message_leaves() -> None:
    at = await dead_letter_service()
    answer = await http.redrive(one("0", "2"), at)
    assert (answer.status, len(said(answer)["done"])) == (200, 1)
    assert isinstance(at.store, MemoryIngestionStore)
    assert await at.store.outbox(FIRST, 9) == []
    assert (await http.redrive(one("0", "2"), at)).status == 404


async def test_what_fails_again_says_why_as_json_and_not_as_a_page() -> None:
    answer = await http.redrive(one("0", "2"), await dead_letter_service(fails))
    assert answer.content_type == "application/json"
    assert "<script>" in said(answer)["failed"][0]["error"]


async def test_purging_takes_what_is_older_and_says_whether_there_is_more() -> None:
    at = await dead_letter_service()
    answer = await http.purge_older(
        Request(headers=JSON_TYPE, body=b'{"older_than_days": 0.125}'), at
    )
    assert [each["sequence"] for each in said(answer)["done"]] == [4, 5, 6]
    assert not said(answer)["more"]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"older_than_days": -1}', b'{"older_than_days": true}', b"[" * 10_000,
     b'{"older_than_days": NaN}', b'{"older_than_days": 30, "x": "' + b"x" * 20_000 + b'"}'],
)  # fmt: skip
async def test_purging_without_an_age_is_refused(body: bytes) -> None:
    at = await dead_letter_service()
    assert (await http.purge_older(Request(headers=JSON_TYPE, body=body), at)).status in (400, 413)
    assert len(said(await http.list_letters(Request(), at))["dead_letters"]) == 6


async def test_a_store_out_of_reach_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    at = await dead_letter_service()

    async def down() -> Any:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(at.store, "streams", down)
    answer = await http.list_letters(Request(), at)
    assert (answer.status, "no answer" in said(answer)["error"]) == (503, True)
