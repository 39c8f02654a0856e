"""The page and its JSON while a store or the plan is unavailable, hangs, or has no effect."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling.operating.conditions import conditions
from shared.autoscaling.ports import Snapshot, StateStore
from shared.autoscaling.sources import HubMetric
from shared.autoscaling.state import ScalingState
from shared.autoscaling.store.tables import TableStateStore
from shared.settings.connections import StorageConnection
from shared.values.measurements import CAPACITY_METRIC, Window
from shared.web import http
from shared.web.board import Board, Shown
from shared.web.http import Request
from shared.web.page import dashboard
from tests.builders import NOW, SOURCE, resource, sample, state

SECONDS_MAX = 60.0
GONE = (
    "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=aGVsbG8=;"
    "TableEndpoint=http://127.0.0.1:1/a"
)


class Failing(MemoryStateStore):
    """Fails or hangs when one of the named resources is loaded."""

    def __init__(self, broken: set[str], *, hangs: bool) -> None:
        super().__init__(lambda: NOW)
        self._broken = broken
        self._hangs = hangs

    async def load(self, resource_name: str) -> Snapshot:
        if resource_name in self._broken and self._hangs:
            await asyncio.sleep(3600)
        if resource_name in self._broken:
            raise OSError("connection string hunter2 does not work")
        return await super().load(resource_name)


def board(store: StateStore, *names: str) -> Board:
    return Board({name: resource(name) for name in names}, store, 30)


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_SECONDS_MAX", 0.2)


@pytest.mark.parametrize(
    ("hangs", "why"),
    [(False, "cannot be shown now: OSError"), (True, "no answer within 0.2 s")],
)
async def test_a_resource_that_cannot_be_read_shows_the_reason_and_hides_no_other(
    hangs: bool, why: str
) -> None:
    shown = board(Failing({"plan-1"}, hangs=hangs), "plan-1", "plan-2")
    async with asyncio.timeout(SECONDS_MAX):
        reply = await dashboard(Request(), shown)
    assert reply.status == 200
    assert reply.body.count(why) == 2, "once in its card and once in the list of problems"
    assert 'data-resource="plan-2"' in reply.body
    assert "Nothing needs attention" not in reply.body
    assert "hunter2" not in reply.body


@pytest.mark.parametrize("hangs", [False, True])
async def test_an_outage_of_all_resources_is_told_once_on_the_page_and_in_the_log(
    hangs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"plan-{number}" for number in range(200)]
    async with asyncio.timeout(SECONDS_MAX):
        reply = await dashboard(Request(), board(Failing(set(names), hangs=hangs), *names))
    assert reply.status == 503
    assert reply.body.count("200 resources: cannot be shown now: ") == 1
    (line,) = [text for text in caplog.messages if "request_failed" in text]
    assert line.startswith("[request_failed] several resources: 200 resources: ")


@pytest.mark.parametrize("query", [{}, {"live": "true"}])
async def test_without_storage_the_page_is_a_503_with_the_reason_within_a_bounded_time(
    query: dict[str, str],
) -> None:
    store = TableStateStore(StorageConnection("Storage", GONE))
    shown = board(store, "plan-1")
    with_panel = replace(shown, panels={"trends": lambda: asyncio.sleep(3600, Shown([]))})
    async with asyncio.timeout(SECONDS_MAX):
        reply = await dashboard(Request(query=query), with_panel)
    await store.close()
    assert reply.status == 503
    assert reply.body.count("cannot be shown now") == 4
    assert "Needs attention" in reply.body


def problems_of(of: ScalingState, **declared: Any) -> list[tuple[str, str]]:
    found = conditions(resource(**declared), Snapshot("plan-1", of, NOW), 30)
    return [(each.severity, each.what) for each in found]


def test_a_plan_that_was_not_read_twice_is_reported_if_the_other_sources_were_read() -> None:
    fresh = state([5, 5])
    not_read = "plan-1: no sample of capacity for"
    for silent, expected in (
        (115, []),
        (125, [("warning", f"{not_read} 2 min")]),
        (200, [("warning", f"{not_read} 3 min")]),
    ):
        of = fresh.with_history(CAPACITY_METRIC, Window((sample(2, silent),)))
        assert problems_of(of) == expected
    pushed = {"backlog": HubMetric()}  # arrives whether or not the collector runs
    of = fresh.with_history(CAPACITY_METRIC, Window((sample(2, 135),)))
    assert problems_of(of, metrics=pushed) == []
    both = {"backlog": SOURCE, "other": SOURCE}
    late = of.with_history("backlog", Window((sample(5, 130),)))
    assert [severity for severity, _ in problems_of(late, metrics=both)] == ["warning"]
