"""What every operation of the HTTP API keeps to: how it reads a request, and how it refuses one."""

from __future__ import annotations

import gzip
import json
import logging
from typing import Any

import pytest
from pydantic import Field

from local.openapi import FUNCTIONS
from shared.autoscaling.errors import StateConflict, StateUnreadable
from shared.ingestion.errors import (
    AccountingBroken,
    DependencyDown,
    NotFound,
    RowUnreadable,
    StoreUnavailable,
)
from shared.web.board import HistoryHours, OverrideGiven
from shared.web.dead_letters_http import OfPage, Older, Place
from shared.web.given import Given, in_body, in_path, in_query
from shared.web.http import Refused, Reply, Request, encoded
from shared.web.operation import Operation, operation
from shared.web.page import OfDashboard
from tests.builders import NOW


def in_json(fields: Any) -> Request:
    body = json.dumps(fields).encode()
    return Request(headers={"content-type": "application/json"}, body=body)


@pytest.mark.parametrize(
    ("accepted", "length", "compressed"),
    [
        ("gzip, deflate, br", 5000, True),
        ("br;q=1.0, GZIP;q=0.8", 5000, True),
        ("gzip", 500, False),
        ("", 5000, False),
        ("deflate, br", 5000, False),
        ("gzip;q=0", 5000, False),
        ("gzip; q=0.0, br", 5000, False),
        ("gzip;q=0.5", 5000, True),
    ],
)
def test_a_long_reply_is_compressed_for_a_caller_that_accepts_it(
    accepted: str, length: int, compressed: bool
) -> None:
    reply = Reply(200, "ü" * length)
    body, headers = encoded(reply, accepted)
    assert ("Content-Encoding" in headers, len(body) < length) == (compressed, compressed)
    assert (gzip.decompress(body) if compressed else body).decode() == reply.body
    assert headers["Vary"] == "Accept-Encoding"
    assert headers.items() >= reply.headers.items()


def refusal(read: Any, request: Request, model: type[Given]) -> str:
    with pytest.raises(Refused) as refused:
        read(request, model)
    return str(refused.value)


@pytest.mark.parametrize(
    ("read", "request_", "model", "said"),
    [
        (
            in_query,
            Request(query={"limit": "0", "kind": "odd", "partion": "1", "code": "key"}),
            OfPage,
            "kind = 'odd': must be one of poison, exhausted, too_large, not_bytes, unreadable; "
            "limit = '0': must be a whole number from 1 to 200; "
            "unknown parameter 'partion'; "
            "known: hub, group, kind, partition, limit, after",
        ),
        (
            in_path,
            Request(route={"sequence": "-1"}),
            Place,
            "partition: is missing; must be 1 to 500 characters in one line; sequence = '-1': must "
            "be a whole number from 0 to 999,999,999,999,999,999",
        ),
        (
            in_body,
            in_json({"older_than_days": float("nan"), "b": 1, "a": 2}),
            Older,
            "older_than_days = nan: must be a number from 0 to 36,500; "
            "unknown field 'a', 'b'; known: older_than_days, limit, by",
        ),
        (
            in_body,
            in_json({"for": "ever", "floor": True, "exact": None, "by": "a\u202eb"}),
            OverrideGiven,
            "exact = None: must be a whole number from 0 to 100; floor = True: must be a whole "
            "number from 0 to 100; for = 'ever': must be 1 to 30 characters in one line, such as "
            "90m, 2h or 1d12h; by = 'a\\u202eb': must be 1 to 500 characters in one line: "
            "character 2 is U+202E (RIGHT-TO-LEFT OVERRIDE)",
        ),
    ],
)
def test_every_problem_of_a_request_is_named_at_once_with_its_value_and_its_rule(
    read: Any, request_: Request, model: type[Given], said: str
) -> None:
    assert refusal(read, request_, model) == said


def test_a_whole_number_in_json_may_have_a_decimal_point() -> None:
    given = in_body(in_json({"older_than_days": 0.5, "limit": 2.0}), Older)
    assert (given.older_than_days, given.limit) == (0.5, 2)
    for limit in (2.5, 1e300, 1e999):
        assert "limit = " in refusal(
            in_body, in_json({"older_than_days": 1, "limit": limit}), Older
        )


def test_a_text_in_an_address_states_a_value_only_in_one_plain_form() -> None:
    for text, value in (("5", 5), ("005", 5), ("200", 200)):
        assert in_query(Request(query={"limit": text}), OfPage).limit == value
    for text in ("+5", " 5", "5 ", "5.0", "5e0", "1_0", "0x5", "\u0665", "", "true", "9" * 5000):
        assert "limit = " in refusal(in_query, Request(query={"limit": text}), OfPage)
    for text, hours in (("1", 1), ("0.25", 0.25), ("1e1", 10), ("2.5E-1", 0.25)):
        assert in_query(Request(query={"hours": text}), HistoryHours).hours == hours
    for text in (".5", "5.", "1,5", "inf", "nan", "1e999", "\u0665", "true"):
        assert "hours = " in refusal(in_query, Request(query={"hours": text}), HistoryHours)
    assert in_query(Request(query={"live": "true"}), OfDashboard).live is True
    assert in_query(Request(query={"live": "false"}), OfDashboard).live is False
    for text in ("True", "1", "yes", "on", ""):
        assert "live = " in refusal(in_query, Request(query={"live": text}), OfDashboard)


class Cut(Given):
    size: int = Field(1, ge=0, le=9, description="a size")


def failing(error: Exception, *refusals: int, change: str = "") -> Operation:
    @operation("GET", "x", *refusals, change=change)
    async def x(_part: None, query: Cut) -> None:
        raise error

    return x


LOST = "; it is not known whether it was cut"
LATE = "no answer within 8 s"


@pytest.mark.parametrize(
    ("error", "statuses", "read", "changed"),
    [
        (NotFound("no x"), (503, 404), "no x", "no x"),
        (StateConflict("again"), (503, 409), "StateConflict", f"StateConflict{LOST}"),
        (DependencyDown("down"), (503,), "down", "down"),
        (AccountingBroken("gap"), (503, 500), "gap", "gap"),
        (StoreUnavailable("x"), (503,), "x", f"x{LOST}"),
        (KeyError("x"), (503,), "KeyError", f"KeyError{LOST}"),
        (TimeoutError("x"), (503,), LATE, f"{LATE}{LOST}"),
        (RowUnreadable("row 7"), (503, 500), None, "row 7"),
        (StateUnreadable("row 7", NOW), (503,), None, "row 7"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_an_error_is_answered_with_a_status_that_the_operation_has_and_with_its_outcome(
    error: Exception, statuses: tuple[int, ...], read: str | None, changed: str
) -> None:
    shown = f"cannot be shown now: {read}" if read else changed
    for change, text in (("", shown), ("it was cut", changed)):
        answer = await failing(error, change=change)(Request(), None)
        assert (answer.status, json.loads(answer.body)) == (503, {"error": text})
    has = failing(error, 404, 409, 500)
    answer = await has(Request(), None)
    assert answer.status == statuses[-1]
    if answer.status < 500:
        assert json.loads(answer.body) == {"error": str(error)}


async def test_a_secret_in_an_error_is_neither_told_nor_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    secret = "AccountKey=aHVudGVyMmh1bnRlcjI="
    answer = await failing(StoreUnavailable(f"cannot open {secret}"))(Request(), None)
    assert answer.status == 503
    for text in (answer.body, caplog.text):
        assert "cannot open" in text
        assert secret not in text


def test_every_operation_can_be_refused_for_what_it_reads() -> None:
    for function in FUNCTIONS:
        for each in function.forms or (function,):
            reads = set(each.hints)
            assert 503 in each.statuses
            reads |= {"body"} if each.document else set()
            assert (400 in each.statuses) is bool(reads & {"query", "body"}), each.name
            if "body" in each.given:
                assert each.statuses >= {411, 413}, each.name
            if each.method == "POST":
                assert each.change, f"{each.name}: what may have happened if no answer comes?"
