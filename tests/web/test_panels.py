"""The panels of the page: breakers, dead letters, and trends, with escaping of hostile text."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest

from local.twins.autoscaling import MemoryStateStore
from local.twins.ingestion import MemoryIngestionStore
from shared.ingestion.breaker.announcement import open_breaker
from shared.ingestion.breaker.state import Breaker, BreakerMode
from shared.ingestion.model import DeadLetter, FailureKind, Stream
from shared.ingestion.operating.breaker_controller import BreakerView
from shared.ingestion.store.events import StoredDeadLetter
from shared.sampling.trend_rows import Trend
from shared.web import http, panels
from shared.web.board import Board, Shown, cached
from shared.web.breaker_http import breakers
from shared.web.http import Request
from shared.web.page import dashboard
from shared.wiring.app import App
from tests.builders import NOW

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
OPEN = Breaker(
    BreakerMode.OPEN, 3, NOW, "101 failures in 30 s", retry_at=NOW + timedelta(seconds=30)
)
STREAM = Stream("bus", "metrics", "$Default", "2")
LETTER = DeadLetter(41, "4096", NOW, NOW, FailureKind.POISON, "no JSON", body=b"\xffabc")
FIRST = date(2026, 2, 1)


def days(count: int = 30, **changes: Any) -> list[Trend]:
    ordinary = [
        Trend(
            (FIRST + timedelta(days=n)).isoformat(),
            "checkout",
            "AppEvents",
            records=100 - 2 * n,
            sampling_rate=100 - 2 * n,
            adjusted_count=100 + n % 7,
            adjusted_count_low=90 + n % 7,
            adjusted_count_high=110 + n % 7,
            verdict="normal",
            reason="as on other days",
        )
        for n in range(count)
    ]
    return [*ordinary[:-1], replace(ordinary[-1], **changes)]


def shown_letter(**changes: Any) -> dict[str, Any]:
    return panels.dead_letter(StoredDeadLetter(STREAM, replace(LETTER, **changes), None))


def board(**shown: Any) -> Board:
    async def answer(value: Any) -> Shown:
        if isinstance(value, Exception):
            raise value
        return Shown(value)

    store = MemoryStateStore(lambda: NOW)
    named = {name.replace("_", "-"): (lambda v=value: answer(v)) for name, value in shown.items()}
    return Board({}, store, 30, named)


def test_only_a_breaker_that_is_not_closed_has_a_link() -> None:
    shown = panels.breaker("metric_ingest", OPEN, "https://app/x")
    assert (shown["mode"], shown["link"]) == ("open", "https://app/x")
    closed = replace(OPEN, mode=BreakerMode.CLOSED, retry_at=None)
    assert panels.breaker("metric_ingest", closed, "https://app/x")["link"] == ""


async def test_a_state_is_the_same_word_in_all_json_and_has_spaces_on_pages() -> None:
    probing = replace(OPEN, mode=BreakerMode.HALF_OPEN)
    summary = panels.breaker("metric_ingest", probing, "")
    status = panels.status_of(BreakerView("metric_ingest", probing, NOW, (), ()))
    assert summary["mode"] == status["mode"] == "half_open"
    (condition,) = open_breaker("metric_ingest", probing)
    assert "Circuit breaker metric_ingest is half open" in condition.what
    letter = shown_letter(kind=FailureKind.TOO_LARGE)
    text = (await dashboard(Request(), board(breakers=[summary], dead_letters=[letter]))).body
    assert ">half open</span>" in text
    assert ">too large</b>" in text
    assert "half_open" not in text
    assert "too_large" not in text


def test_a_body_that_is_not_text_is_shown_in_base64_and_a_missing_one_as_none() -> None:
    assert shown_letter()["body"] == "/2FiYw=="
    assert shown_letter(body=b"{}")["body"] == "{}"
    assert shown_letter(body=None)["body"] is None


@pytest.mark.parametrize("before", range(197, 201))
@pytest.mark.parametrize("character", ["ü", "€", "🚀"])
def test_a_long_body_is_not_cut_inside_a_character(before: int, character: str) -> None:
    text = "x" * before + character * 300
    shown = shown_letter(body=text.encode())["body"]
    assert text.startswith(shown)
    assert 200 - 4 < len(shown.encode()) <= 200
    whole = "x" * (200 - 2) + "\xc3"
    assert shown_letter(body=whole.encode("latin-1"))["body"] != whole


def test_series_with_an_alarm_come_first_and_their_days_are_in_order() -> None:
    other = [replace(day, event="a") for day in days()]
    lost = days(verdict="events_lost")
    shown = panels.trends([*other, *reversed(lost)])
    assert [series["event"] for series in shown] == ["checkout", "a"]
    dates = [day["date"] for day in shown[0]["days"]]
    assert dates == sorted(dates)
    assert shown[0]["days"][0] == {
        "date": "2026-02-01", "raw": 100, "adjusted": 100, "low": 90, "high": 110,
        "sampling_rate": 100, "verdict": "normal", "figure": "count", "reason": "as on other days",
        "complete": True,
    }  # fmt: skip


def test_sums_are_shown_where_there_is_a_measurement() -> None:
    measured = [
        replace(day, measurement="Amount", raw_sum=5.0, adjusted_sum=12.5) for day in days()
    ]
    (series,) = panels.trends(measured)
    assert (series["days"][0]["raw"], series["days"][0]["adjusted"]) == (5, 12.5)


async def test_series_of_one_event_are_distinguished_by_their_dimensions() -> None:
    both = [replace(day, dimensions={"country": c}) for c in ("CH", "DE") for day in days()]
    text = (await dashboard(Request(), board(trends=panels.trends(both)))).body
    for country in ("CH", "DE"):
        assert text.count(f'data-live="trend-AppEvents-checkout country={country}"') == 1
        assert f"<h3>checkout country={country}" in text


async def test_a_panel_that_fails_or_hangs_hides_no_other_panel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "ANSWER_SECONDS_MAX", 0.01)
    shown = board(breakers=OSError("hunter2"), trends=[])
    hanging = replace(
        shown, panels={**shown.panels, "dead-letters": lambda: asyncio.sleep(60, Shown([]))}
    )
    text = (await dashboard(Request(), hanging)).body
    assert text.count("cannot be shown now") == 4, "once in each panel and once each among problems"
    assert "hunter2" not in text
    reply = await breakers(Request(), hanging)
    assert json.loads(reply.body) == {"error": "cannot be shown now: OSError"}


async def test_hostile_text_in_panels_is_escaped() -> None:
    shown = board(
        breakers=[panels.breaker(HOSTILE, replace(OPEN, reason=HOSTILE), "https://app/x")],
        dead_letters=[
            panels.dead_letter(
                StoredDeadLetter(
                    replace(STREAM, hub=HOSTILE),
                    replace(LETTER, error=HOSTILE, body=HOSTILE.encode()),
                    None,
                )
            )
        ],
        trends=panels.trends(
            [replace(day, event=HOSTILE, reason=HOSTILE, verdict=HOSTILE) for day in days()]
        ),
    )
    text = (await dashboard(Request(), shown)).body
    assert text.count("alert(1)") >= 6
    assert "<img src=x" not in text
    assert "<script>alert" not in text


async def test_the_page_shows_how_many_events_were_set_aside() -> None:
    shown = board(dead_letters=[], set_aside=[{**STREAM.names, "events": 41}])
    text = (await dashboard(Request(), shown)).body
    assert "metrics 2 ($Default): 41 events are not metrics and were set aside." in text


async def test_a_cached_panel_is_read_again_only_after_its_lifetime() -> None:
    reads, clock = [], {"now": 0.0}

    async def panel() -> Shown:
        reads.append(clock["now"])
        return Shown(len(reads))

    cached_panel = cached(panel, 300, lambda: clock["now"])
    assert [await cached_panel() for _ in range(5)] == [Shown(1)] * 5
    clock["now"] = 300.0
    assert await cached_panel() == Shown(2)


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
