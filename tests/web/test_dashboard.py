"""The page and the JSON endpoints: replies, refused requests, and escaping of hostile text."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling import Mode, QueueAge, Throughput
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.flows import notify, scaling_logic
from shared.autoscaling.flows.status import AT_ONCE_MAX
from shared.autoscaling.policy import Recommendation, Resource
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import Override
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.web.board import Board, HistoryWanted, card, override, overview, resources
from shared.web.given import BODY_BYTES_MAX
from shared.web.http import Reply, Request
from shared.web.page import dashboard
from tests.builders import NOW, as_message, resource

HOSTILE = """</script><script>alert(1)</script><img src=x onerror=alert(1)>"'&"""
JSON_TYPE = {"content-type": "application/json"}


class Counting(MemoryStateStore):
    """A store that counts the reads of states and logs, and how many lines of the log are read."""

    lines_read = states_read = logs_read = 0

    async def load(self, resource_name: str) -> Snapshot:
        self.states_read += 1
        return await super().load(resource_name)

    async def log(self, *args: Any, **kwargs: Any) -> list[LogEntry]:
        self.logs_read += 1
        lines = await super().log(*args, **kwargs)
        self.lines_read += len(lines)
        return lines


def request_for(path: str, **query: str) -> Request:
    """The request that the host makes of an address below ``resources``."""
    _, *parts = path.split("/")
    return Request(query=query, route=dict(zip(("name", "view"), parts, strict=False)))


class World:
    def __init__(self) -> None:
        self.now = NOW
        self.store = Counting(lambda: self.now)
        self.resource = resource()
        self.board = Board({"plan-1": self.resource}, self.store, 30)

    async def fleet(self, count: int) -> dict[str, Resource]:
        """Declare resources that have decided a few times."""
        several = {name: resource(name) for name in (f"plan-{n}" for n in range(1, count + 1))}
        self.board = replace(self.board, resources=several)
        for _ in range(5):
            self.now += timedelta(minutes=1)
            await self.decide(list(several))
        return several

    async def decide(self, names: Sequence[str]) -> None:
        for name in names:
            read = {CAPACITY_METRIC: 2.0, "backlog": 50.0}
            sent = [Metric(name, each, MetricValue(self.now, read[each])) for each in read]
            await scaling_logic.process_samples(as_message(*sent), self.board.resources, self.store)

    async def minute(self, backlog: float = 200) -> None:
        self.now += timedelta(minutes=1)
        for name, value in ((CAPACITY_METRIC, 2.0), ("backlog", backlog)):
            sent = Metric("plan-1", name, MetricValue(self.now, value))
            await scaling_logic.process_samples(
                as_message(sent), {"plan-1": self.resource}, self.store
            )

    async def get(self, path: str, **query: str) -> Any:
        reply = await resources(request_for(path, **query), self.board)
        return (
            json.loads(reply.body) | {"status": reply.status}
            if reply.status != 200
            else (json.loads(reply.body))
        )

    async def post(self, fields: Any, headers: dict[str, str] | None = None) -> Reply:
        body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
        sent = JSON_TYPE if headers is None else headers
        request = Request(route={"name": "plan-1"}, headers=sent, body=body)
        return await override(request, self.board)


@pytest.fixture
def world() -> World:
    return World()


async def test_resources_decisions_and_history_are_served_as_json(world: World) -> None:
    for _ in range(8):
        await world.minute()
    (status,) = await world.get("resources")
    assert status["name"] == "plan-1"
    assert status == await world.get("resources/plan-1")
    decisions = await world.get("resources/plan-1/decisions", limit="3")
    assert [d["metric"] for d in decisions] == ["backlog"] * 3
    second, first = decisions[1]["time"], decisions[2]["time"]
    part = await world.get("resources/plan-1/decisions", since=first, before=second)
    assert [d["time"] for d in part] == [first]
    changes = await world.get("resources/plan-1/decisions", changes="true")
    assert {d["applies"] for d in changes} == {True}
    (found,) = await world.get("resources/plan-1/decisions", text="ALREADY_requested", limit="1")
    assert found["limited_by"] == ["already_requested"]
    assert await world.get("resources/plan-1/decisions", text="no such text") == []
    history = await world.get("resources/plan-1/history", hours="0.05")
    assert [p["metrics"] for p in history["points"]] == [{"backlog": 200.0}] * 4
    assert {event["applies"] for event in history["events"]} <= {True}


async def test_a_point_has_the_highest_value_of_its_step_and_every_change_has_a_point(
    world: World,
) -> None:
    for backlog in (5, 5, 5, 5, 300, 400, 7):
        await world.minute(backlog)
    for hours in ("3", "336"):  # a long time is read as courses
        history = await world.get("resources/plan-1/history", hours=hours)
        assert {(p["capacity"], p["desired"]) for p in history["points"]} == {(2, 2), (2, 3)}
        for name, value in (("metrics", 400), ("lowest", 5), ("last", 7)):
            best = min if value == 5 else max
            found = [p[name]["backlog"] for p in history["points"]]
            assert (found[-1] if name == "last" else best(found)) == value


async def test_a_long_time_is_shown_without_reading_decisions_that_request_nothing(
    world: World,
) -> None:
    for backlog in (*[5] * 90, *[300] * 8, *[5] * 400):
        await world.minute(backlog)
    for query, most in (({"hours": "336"}, 20), ({"hours": "336", "kind": "every"}, 800)):
        world.store.lines_read = 0
        body = (await dashboard(Request(query=query), world.board)).body
        assert 0 < world.store.lines_read <= most
        assert json.loads(marks_of(body))["marks"]


async def test_a_past_time_shows_its_own_changes_and_the_rest_is_found_page_by_page(
    world: World,
) -> None:
    for hour in range(60):
        line = LogEntry("plan-1", NOW + timedelta(hours=hour), EntryKind.DECISION, f"d-{hour}",
                        f"because of {hour}", 2, 3, hour, applies=True)  # fmt: skip
        confirmed = replace(line, kind=EntryKind.CONFIRMED, entry_id=f"c-{hour}", applies=False,
                            time=line.time + timedelta(seconds=140))  # fmt: skip
        for each in (line, confirmed):
            await world.store.record(each)
    world.now += timedelta(hours=61)
    query = {"hours": "3", "before": (NOW + timedelta(hours=12)).isoformat(), "live": "true"}
    body = (await dashboard(Request(query=query), world.board)).body
    assert re.findall(r'<details id="plan-1/([^"]+)"', body) == ["d-11", "d-10", "d-9"]
    assert body.count("confirmed after 140 s") == 3, "a change and its outcome are one row"
    query = {"hours": "336", "live": "true"}
    found = list[str]()
    while query.get("until", "first"):
        body = (await dashboard(Request(query=query), world.board)).body
        assert len(json.loads(marks_of(body))["marks"]) == 60, "every change is marked"
        found += re.findall(r'<details id="plan-1/([^"]+)"', body)
        older = re.search(r'href="\?until=([^"]+)">Older', body)
        query["until"] = unquote(older[1]) if older else ""
    assert found == [f"d-{hour}" for hour in reversed(range(60))]


def marks_of(body: str) -> str:
    return body.partition('data-live="history-plan-1">')[2].partition("</script>")[0]


async def test_entries_are_found_by_kind_guard_and_text(world: World) -> None:
    await world.fleet(1)
    for number, (kind, guard, text) in enumerate([
        (EntryKind.DECISION, "bounds", "much to do"), (EntryKind.OVERRIDE, "", "sale by Anna"),
        (EntryKind.FAILED, "", "no quota"), (EntryKind.DECISION, "already_requested", "more"),
    ]):  # fmt: skip
        line = LogEntry("plan-1", world.now, kind, f"e-{number}", text, 2, 3, number, guard != "")
        await world.store.record(replace(line, limited_by=(guard,) if guard else ()))
    for query, wanted in (
        ({}, {"e-0", "e-1", "e-2", "e-3"}),
        ({"kind": "every"}, {"e-0", "e-1", "e-2", "e-3"}),
        ({"kind": "override"}, {"e-1"}),
        ({"guard": "bounds"}, {"e-0"}),
        ({"text": "ANNA"}, {"e-1"}),
        ({"text": "nothing like it"}, set()),
        ({"guard": "bounds", "text": "more"}, set()),
    ):
        body = (await dashboard(Request(query={**query, "live": "true"}), world.board)).body
        found = set(re.findall(r'<details id="plan-1/([^"]+)"', body))
        assert {each for each in found if each.startswith("e-")} == wanted
        assert (found > wanted) == ("every" in query.values()), "decisions that request nothing"


async def test_the_page_and_the_status_say_what_was_spent(world: World) -> None:
    for _ in range(31):
        await world.minute(50)
    for price, said in ((None, "≈ 1.00 instance-hours today, 1.00 instance-hours this month"),
                        (0.5, "≈ 0.50 today, 0.50 this month")):  # fmt: skip
        world.board = replace(world.board, price=price)
        (status,) = await world.get("resources")
        spent = status["spent"]
        figures = (spent["today"], spent["month"], spent["month_at_maximum"])
        assert figures == pytest.approx((1.0, 1.0, 2.5))
        assert spent["said"].startswith(said)
        assert spent["said"] in (await dashboard(Request(), world.board)).body
    world.now += timedelta(hours=5)  # nothing was decided, so what ran is not known
    for _ in range(2):
        await world.minute(50)
    (status,) = await world.get("resources")
    assert status["spent"]["month"] == pytest.approx(1 + 2 / 60, abs=1e-5)


@pytest.mark.parametrize(
    ("path", "query", "status", "error"),
    [
        ("resources/plan-9", {}, 404, "declared: plan-1"),
        ("resources/plan-1/secrets", {}, 404, "known: decisions, history"),
        ("resources/plan-1/decisions", {"limit": "many"}, 400, "a whole number from 1 to 1,000"),
        (
            "resources/plan-1/decisions",
            {"since": "noon"},
            400,
            "an ISO 8601 time, such as 2026-03-01T12:00:00Z",
        ),
        ("resources/plan-1/history", {"hours": "nan"}, 400, "a number from 0.01 to 336"),
    ],
)
async def test_an_invalid_request_is_answered_with_what_would_be_valid(
    world: World, path: str, query: dict[str, str], status: int, error: str
) -> None:
    answer = await world.get(path, **query)
    assert answer["status"] == status
    assert error in answer["error"]


async def test_the_page_ignores_parameters_that_other_programs_add_to_a_link(world: World) -> None:
    assert (await dashboard(Request(query={"utm_source": "mail"}), world.board)).status == 200


async def test_a_refresh_of_the_page_reads_each_state_and_each_log_once(world: World) -> None:
    several = await world.fleet(2)
    for query in ({}, {"live": "true"}):
        world.store.states_read = world.store.logs_read = 0
        text = (await dashboard(Request(query=query), world.board)).body
        assert (world.store.states_read, world.store.logs_read) == (2, 2)
        assert all(f'data-resource="{name}"' in text for name in several)
        assert '<h2 id="all">' not in text


async def test_from_three_resources_on_a_table_shows_them_and_only_the_chosen_one_in_detail(
    world: World,
) -> None:
    for count, cards in ((2, 2), (3, 0)):
        await world.fleet(count)
        body = (await dashboard(Request(query={"live": "true"}), world.board)).body
        assert (body.count("data-resource"), body.count('<form class="override"')) == (cards, cards)
        assert ('<h2 id="all">3 resources' in body) == (cards == 0)
    row = body.partition('id="row-plan-2"')[2].partition("</tr>")[0]
    _state, instances, load, *_ = (re.sub("<[^>]+>", "", each) for each in row.split("<td")[1:])
    assert instances.strip() == ">2 of 1\N{EN DASH}5"
    assert load.strip() == 'title="backlog">50'


async def test_of_many_resources_only_the_log_of_the_chosen_one_is_read(
    world: World,
) -> None:
    several = await world.fleet(30)
    for number in (7, 20, 21, 22, 23, 24, 25):  # each is wrong
        world.store.override(f"plan-{number}", Override(Mode.PAUSED, "x"))
    world.now += timedelta(minutes=4)
    await world.decide([name for name in several if name not in ("plan-9", "plan-8")])
    shown: list[tuple[dict[str, str], list[str], int]] = [
        ({}, [], 30), ({"resource": "plan-17"}, ["plan-17"], 1),
        ({"resource": ""}, [], 0),
    ]  # fmt: skip
    for query, cards, states_read in shown:
        world.store.states_read = world.store.logs_read = 0
        body = (await dashboard(Request(query={**query, "live": "true"}), world.board)).body
        found = re.findall(r'data-resource="([^"]+)"', body)
        assert found == cards
        assert (world.store.states_read, world.store.logs_read) == (states_read, len(found))
        assert '<h2 id="all">30 resources' in body
        rows = re.findall(r'<a id="row-[^"]+" href="\?resource=([^"]+)"', body)
        assert sorted(rows) == sorted(several)
        assert rows[:3] == ["plan-8", "plan-9", "plan-7"], "the most severe first"
    for serve in (resources, dashboard):
        world.store.states_read = world.store.logs_read = 0
        answer = await serve(Request(query={"resource": "plan-99"}), world.board)
        assert ("and 10 more" in answer.body) == (serve is dashboard)
        assert (answer.status, world.store.logs_read) == (
            (200, 0) if serve is resources else (404, 0)
        )


async def test_each_refresh_of_many_resources_reads_those_that_are_left_or_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.fleet(30)
    clock = [1000.0]
    monkeypatch.setattr("shared.web.board.time.monotonic", lambda: clock[0])
    slow, load = {"plan-3", "plan-4"}, world.store.load

    async def loaded(resource_name: str) -> Snapshot:
        if resource_name in slow:
            raise TimeoutError
        return await load(resource_name)

    world.store.load = loaded  # type: ignore[method-assign]

    async def refreshed(seconds: float) -> int:
        clock[0] += seconds
        world.store.states_read = 0
        await dashboard(Request(query={"live": "true"}), world.board)
        return world.store.states_read

    assert await refreshed(0) == 28
    slow.clear()
    assert await refreshed(10) == 2
    assert await refreshed(10) == 0
    await world.post({"mode": "paused", "reason": "x"})
    assert await refreshed(0) == 1
    assert await refreshed(11) == 27


async def test_a_link_leads_to_the_resource_whatever_its_name(world: World) -> None:
    several = [*[f"plan-{number}" for number in range(20)], "a&b +c%41 ü'\""]
    world.board = replace(world.board, resources={name: resource(name) for name in several})
    await world.decide(several)
    world.now += timedelta(minutes=4)
    await world.decide(several[:-1])
    body = (await dashboard(Request(query={"resource": "plan-1"}), world.board)).body
    links = [unescape(link) for link in re.findall(r'href="\?(resource=[^"]+)"', body)]
    named = [parse_qs(urlsplit(f"?{link}").query)["resource"][0] for link in links]
    assert {*named} == {*several}
    assert named.count(several[-1]) > 1, "in the table, and at what is wrong"


async def test_no_more_than_a_few_resources_are_read_at_a_time(world: World) -> None:
    several = await world.fleet(100)
    waiting, most = 0, 0
    load = world.store.load

    async def slow(resource_name: str) -> Snapshot:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0)
        waiting -= 1
        return await load(resource_name)

    world.store.load = slow  # type: ignore[method-assign]
    for read in (
        dashboard(Request(), world.board),
        resources(Request(), world.board),
        notify.collect_news(several.values(), world.store, NOW, world.now, 30),
    ):
        most = 0
        await read
        assert 1 < most <= AT_ONCE_MAX


async def test_the_notifier_reads_each_state_once_and_of_the_logs_only_changes(
    world: World,
) -> None:
    several = await world.fleet(30)
    world.store.states_read = world.store.lines_read = 0
    await notify.collect_news(several.values(), world.store, NOW, world.now, 30)
    assert (world.store.states_read, world.store.lines_read) == (30, 0)


async def test_the_page_and_the_json_show_the_same_status_however_old_the_newest_decision_is(
    world: World,
) -> None:
    for kinds in ((), (EntryKind.CONFIRMED,), (EntryKind.DECISION, EntryKind.CONFIRMED)):
        for number, kind in enumerate(kinds):
            line = LogEntry("plan-1", world.now, kind, f"e-{number}-{kind}", f"why {kind}")
            await world.store.record(line)
        for age in (timedelta(minutes=1), timedelta(days=9), timedelta(minutes=-20_000)):
            world.now += age  # the last one sets the clock of the store back
            seen = await overview(world.board, world.resource)
            shown = await card(world.board, world.resource, seen, HistoryWanted.model_validate({}))
            assert shown.content["status"] == await world.get("resources/plan-1")


async def test_an_override_is_set_and_cleared(world: World) -> None:
    fields = {"floor": 3, "freeze_scale_in": True, "reason": "sale", "for": "2h", "by": "anna"}
    reply = await world.post(fields)
    assert reply.status == 200
    override = (await world.store.load("plan-1")).state.override
    assert override == Override(
        reason="sale", floor=3, freeze_scale_in=True, expires_at=NOW + timedelta(hours=2)
    )
    world.now += timedelta(seconds=1)
    assert (await world.post({"clear": True, "by": "ben"})).status == 200
    assert (await world.store.load("plan-1")).state.override is None


async def test_the_signed_in_user_is_logged_as_author_whatever_the_body_says(world: World) -> None:
    headers = {**JSON_TYPE, "x-ms-client-principal-name": "carla@example.org"}
    await world.post({"mode": "paused", "reason": "x", "by": "anna"}, headers)
    assert "by carla@example.org" in (await world.store.log("plan-1"))[0].reason
    override = (await world.store.load("plan-1")).state.override
    assert override
    assert override.mode is Mode.PAUSED


@pytest.mark.parametrize(
    ("fields", "headers", "status", "error"),
    [
        ({"mode": "paused", "reason": "x", "by": "a"}, {}, 415, "application/json"),
        (b"", None, 411, "content-length: is missing. Send the body with its length"),
        (b"", {**JSON_TYPE, "content-length": "0"}, 400, "JSON object"),
        (b"{", None, 400, "JSON object"),
        (b" " * (BODY_BYTES_MAX + 1), None, 413, "at most"),
        ({"clear": True, "floor": 3, "by": "a"}, None, 400, "floor: is not allowed beside clear"),
        ({"exact": 50, "reason": "x", "by": "a"}, None, 400, "must be 1 to 5"),
        ({"exact": 2, "reason": "x", "by": "a", "for": "ever"}, None, 400, "90m, 2h"),
    ],
)
async def test_an_invalid_override_is_refused_and_changes_nothing(
    world: World, fields: Any, headers: dict[str, str] | None, status: int, error: str
) -> None:
    reply = await world.post(fields, headers)
    assert reply.status == status
    assert error in json.loads(reply.body)["error"]
    assert (await world.store.load("plan-1")).state.override is None


async def test_hostile_text_in_the_log_and_in_overrides_is_escaped(world: World) -> None:
    await world.minute()
    candidate = Recommendation(3, HOSTILE, HOSTILE, {HOSTILE: HOSTILE})
    line = LogEntry(
        "plan-1", NOW, EntryKind.DECISION, HOSTILE, HOSTILE, 2, 3, 1, applies=True,
        limited_by=(HOSTILE,), candidates=(candidate,), evidence={HOSTILE: HOSTILE},
        counterfactual=HOSTILE, metric=HOSTILE, value=1.0,
    )  # fmt: skip
    await world.store.record(line)
    world.store.override("plan-1", Override(Mode.PAUSED, HOSTILE))
    reply = await dashboard(Request(), world.board)
    text = reply.body
    assert reply.status == 200
    assert "alert(1)" in text
    assert "<img src=x" not in text
    assert "<script>alert" not in text
    policy = reply.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


async def test_a_page_without_any_decision_names_the_functions_to_check(world: World) -> None:
    reply = await dashboard(Request(), world.board)
    assert "Check that the functions <code>metric_collector</code>" in reply.body
    assert (await dashboard(Request(query={"hours": "x"}), world.board)).status == 400


async def test_the_page_shows_the_throughput_and_where_it_comes_from(world: World) -> None:
    await world.minute()
    assert "rate per instance" not in (await dashboard(Request(), world.board)).body
    world.resource = resource(throughput=Throughput(rate_per_instance_minute=41.5))
    world.board = replace(world.board, resources={"plan-1": world.resource})
    html = (await dashboard(Request(), world.board)).body
    assert "rate per instance</dt><dd>41.5 <small>a minute, given in settings</small>" in html


@pytest.mark.parametrize("hours", ["1", "336"])
async def test_the_age_beside_the_newest_reason_is_that_of_its_decision(
    world: World, hours: str
) -> None:
    policy = QueueAge("backlog", lambda seen: Recommendation(seen.capacity, "not known yet"))
    declared = replace(world.resource, policy=policy, throughput=Throughput(100, 3))
    world.resource = declared
    world.board = replace(world.board, resources={"plan-1": declared})
    for backlog in (400, 390, 380, 300):
        await world.minute(backlog)
    page = (await dashboard(Request(query={"hours": hours}), world.board)).body
    (shown,) = re.findall("age of the oldest item</dt><dd>≈ ([0-9.]+) min", page)
    (told,) = re.findall("oldest about ([0-9.]+) min of 5 min", page)
    assert shown == told


async def test_a_time_of_another_day_is_shown_with_its_date(world: World) -> None:
    await world.minute()
    decided_at = f"{world.now:%H:%M:%S}"
    assert f"<time>{decided_at}</time>" in (await dashboard(Request(), world.board)).body
    world.now += timedelta(days=1)
    text = (await dashboard(Request(), world.board)).body
    assert f"<time>{NOW:%m-%d} {decided_at}</time>" in text
    assert text.count(f"as of {NOW:%m-%d} {decided_at}") == 2  # the capacity, and the backlog


async def test_nan_and_infinity_never_appear_in_the_json(world: World) -> None:
    evidence = {"backlog": float("nan"), "arrivals_per_minute": 2.0, "age": float("inf")}
    candidate = Recommendation(2, "because", "rule", evidence)
    line = LogEntry("plan-1", NOW, EntryKind.DECISION, "d-1", "because", current=2, desired=2)
    line = replace(line, metric="backlog", value=1, evidence=evidence, candidates=(candidate,))
    await world.store.record(line)
    for path in ("resources", "resources/plan-1/decisions", "resources/plan-1/history"):
        text = (await resources(request_for(path), world.board)).body
        assert "NaN" not in text
        assert "Infinity" not in text
    assert "NaN" not in (await dashboard(Request(), world.board)).body
