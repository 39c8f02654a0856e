"""The HTTP endpoints of the dead letters: replies, and refused requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from local.twins.ingestion import MemoryIngestionStore
from shared.ingestion.dead_letters.redrive import Redriver
from shared.ingestion.model import Effect, Event, OutboxMessage
from shared.web import dead_letters_http as http
from shared.web.http import Reply, Request
from tests.ingestion.dead_letters.test_redrive import (
    FIRST,
    SECOND,
    redriver,
    store_with,
    to_message,
)

THIRD = replace(FIRST, partition_id="2")
JSON_TYPE = {"content-type": "application/json"}


def request_for(partition: str, sequence: str) -> Request:
    return Request(route={"partition": partition, "sequence": sequence})


def fails(event: Event) -> Effect:
    raise ValueError("<script>alert(1)</script>")


async def dead_letter_service(handle: Any = to_message) -> Redriver:
    async def send(_messages: Sequence[OutboxMessage]) -> None: ...

    return replace(redriver(await store_with(range(1, 7)), handle), send=send)


def json_of(answer: Reply) -> Any:
    assert answer.content_type == "application/json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    return json.loads(answer.body)


async def test_the_list_is_paged_by_sequence_number_and_filtered_by_kind() -> None:
    at = await dead_letter_service()
    shown = json_of(await http.dead_letters(Request(query={"limit": "4"}), at))
    assert [letter["sequence"] for letter in shown["dead_letters"]] == [1, 2, 3, 4]
    assert shown["more"]
    shown = json_of(await http.dead_letters(Request(query={"limit": "4", "after": "4"}), at))
    assert ([letter["sequence"] for letter in shown["dead_letters"]], shown["more"]) == (
        [5, 6],
        False,
    )
    shown = json_of(await http.dead_letters(Request(query={"kind": "exhausted"}), at))
    assert [letter["sequence"] for letter in shown["dead_letters"]] == [3, 6]


async def test_a_dead_letter_is_shown_with_its_body_and_an_unknown_one_is_not_found() -> None:
    at = await dead_letter_service()
    shown = json_of(await http.dead_letter(request_for("0", "2"), at))
    assert (shown["error"], shown["body"]) == ("ValueError: 2", {"text": "x"})
    assert (await http.dead_letter(request_for("0", "99"), at)).status == 404
    assert (await http.dead_letter(request_for("0", "two"), at)).status == 400


async def test_a_dead_letter_is_redriven_once_and_its_message_is_sent() -> None:
    at = await dead_letter_service()
    answer = await http.dead_letter_redrive(request_for("0", "2"), at)
    assert (answer.status, len(json_of(answer)["done"])) == (200, 1)
    assert isinstance(at.store, MemoryIngestionStore)
    assert await at.store.outbox(FIRST, 9) == []
    assert (await http.dead_letter_redrive(request_for("0", "2"), at)).status == 404


async def test_the_error_of_a_failed_redrive_is_json_and_never_html() -> None:
    answer = await http.dead_letter_redrive(request_for("0", "2"), await dead_letter_service(fails))
    assert answer.content_type == "application/json"
    assert "<script>" in json_of(answer)["failed"][0]["error"]


async def test_purging_deletes_older_letters_and_reports_whether_more_remain() -> None:
    at = await dead_letter_service()
    answer = await http.dead_letters_purge(
        Request(headers=JSON_TYPE, body=b'{"older_than_days": 0.125}'), at
    )
    assert [each["sequence"] for each in json_of(answer)["done"]] == [4, 5, 6]
    assert not json_of(answer)["more"]


async def test_who_redrives_or_deletes_dead_letters_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    at = await dead_letter_service()
    signed_in = {"x-ms-client-principal-name": "carla@example.org"}
    redrive = replace(request_for("0", "2"), query={"by": "anna"})
    await http.dead_letter_redrive(redrive, at)
    body = b'{"older_than_days": 0, "limit": 1, "by": "anna"}'
    answer = await http.dead_letters_purge(Request(headers=JSON_TYPE | signed_in, body=body), at)
    assert (len(json_of(answer)["done"]), json_of(answer)["more"]) == (1, True)
    assert [record.getMessage() for record in caplog.records] == [
        "[dead_letters_redriven] 1 done, 0 failed, event 2 of 0, by anna",
        "[dead_letters_purged] 1 done, 0 failed, older than 0 days, by carla@example.org",
    ]


@pytest.mark.parametrize(
    ("letters", "more"),
    [(99, [False]), (100, [True, False]), (101, [True, False]), (200, [True, True, False])],
)
async def test_a_purge_of_a_whole_page_asks_to_be_repeated(letters: int, more: list[bool]) -> None:
    store = await store_with(range(1, 100))
    if letters > 99:
        await store_with(range(100, min(letters, 150) + 1), SECOND, store)
    if letters > 150:
        await store_with(range(151, letters + 1), THIRD, store)
    at = replace(await dead_letter_service(), store=store)
    request = Request(headers=JSON_TYPE, body=b'{"older_than_days": 0}')
    answers = [json_of(await http.dead_letters_purge(request, at)) for _ in more]
    assert [answer["more"] for answer in answers] == more
    assert sum(len(answer["done"]) for answer in answers) == letters


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"older_than_days": -1}', b'{"older_than_days": true}', b"[" * 10_000,
     b'{"older_than_days": NaN}', b'{"older_than_days": 30, "x": "' + b"x" * 20_000 + b'"}'],
)  # fmt: skip
async def test_purging_without_a_valid_age_is_refused(body: bytes) -> None:
    at = await dead_letter_service()
    headers = JSON_TYPE | {"content-length": str(len(body))}
    assert (await http.dead_letters_purge(Request(headers=headers, body=body), at)).status in (
        400,
        413,
    )
    assert len(json_of(await http.dead_letters(Request(), at))["dead_letters"]) == 6
