"""A source of the user's own class is read like the app's, and affects no other one."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web

from backtest.arena import Arena
from backtest.replay import feeds, not_in_a_trace
from local.twins.autoscaling import MemoryCapacityControl, MemoryReader
from local.twins.platform_metrics import MemoryPlatformMetrics
from shared.autoscaling import (
    AzureMonitorMetric,
    HttpJson,
    MetricValue,
    Reading,
    Source,
    StorageQueue,
    Threshold,
)
from shared.autoscaling.deciding.validation import problems
from shared.autoscaling.errors import ReadFailed
from shared.autoscaling.flows import metric_collector
from shared.autoscaling.flows.check_connections import check_all
from shared.autoscaling.flows.metric_collector import Collection
from shared.autoscaling.flows.reading import OwnReads, read_source
from shared.autoscaling.operating.first_hour import first_hour
from shared.autoscaling.operating.presenting import _source as shown
from shared.autoscaling.services.clients import AzureReader
from shared.autoscaling.sources import Services
from shared.autoscaling.testing import decision_for
from tests.builders import NOW, SOURCE, not_asked, resource

DEAD_LETTERS = replace(SOURCE, count="dead_letter")
PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
SECRET = "api_key=" + "s3cr3t" * 4
SERVER_TIME = datetime(2026, 3, 1, 11, 59, 30, tzinfo=UTC)
DATE = {"Date": "Sun, 01 Mar 2026 11:59:30 GMT"}


def of_the_page() -> Any:
    """The ten-line source of the page."""
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "(Source)" in b)
    names: dict[str, Any] = {"__name__": __name__}
    exec(block, names)
    return names["OpenJobs"]


class Server:
    """A web server on loopback. ``answers`` maps a path to the response."""

    def __init__(self) -> None:
        self.answers: dict[str, web.Response] = {}
        self.asked: list[tuple[str, Mapping[str, str]]] = []
        self.url = ""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append((request.path, dict(request.headers)))
        answer = self.answers[request.path]  # a response can be sent once only
        return web.Response(body=answer.body, status=answer.status, headers=answer.headers)

    def json(self, path: str, document: object, **headers: str) -> str:
        body = document if isinstance(document, str) else json.dumps(document)
        self.answers[path] = web.Response(text=body, headers=headers)
        return self.url + path


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    runner = web.ServerRunner(web.Server(found.handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    control = MemoryCapacityControl(lambda: NOW, {"plan-1": 2})
    found = AzureReader(
        lambda _: not_asked(), lambda _: not_asked(), control, not_asked, not_asked, lambda: NOW
    )
    yield found
    await found.close()


def memory() -> MemoryReader:
    control = MemoryCapacityControl(lambda: NOW, {"plan-1": 2, "plan-2": 3})
    return MemoryReader(lambda: NOW, {SOURCE: 42.0}, control)


async def collected(services: Services, seconds: float = 5, **sources: Any) -> Collection:
    read = [resource(metrics=sources)]
    return await metric_collector.collect(read, services, seconds, own=OwnReads())


async def test_the_source_of_the_page_is_read_from_a_web_server_by_the_collector(
    server: Server, services: Services
) -> None:
    source = of_the_page()(server.json("/state", {"open": 12}, **DATE))
    declared = resource(metrics={"open_jobs": source}, policy=Threshold("open_jobs", 10, 1))
    assert problems([declared]) == []
    collection = await metric_collector.collect([declared], services, 5)
    assert [(m.name, m.value) for m in collection.metrics[1:]] == [
        ("open_jobs", MetricValue(SERVER_TIME, 12.0))
    ]
    checks = await check_all([declared], services, AsyncNothing(), AsyncNothing(), 5)
    assert [c["told"] for c in checks if c["what"] == "metric open_jobs"] == ["reads 12"]
    assert declared.backlog_metric == "open_jobs"
    assert "Azure Monitor has no such counts of OpenJobs" in first_hour(declared)
    assert decision_for(declared, {"open_jobs": [20] * 5}, capacity=2).desired == 3
    assert shown(source) == f"OpenJobs {server.url}/state"


class AsyncNothing:
    """Every method returns nothing."""

    def __getattr__(self, _name: str) -> Any:
        async def nothing(*_: object) -> tuple[()]:
            return ()

        return nothing


@dataclass(frozen=True)
class Own(Source):
    """Does what a test wants it to do."""

    does: Any = field(compare=False)

    async def read(self, at: Reading) -> Any:
        found = self.does(at)
        return await found if asyncio.iscoroutine(found) else found


def raises(error: BaseException) -> Any:
    def does(_: Reading) -> float:
        raise error

    return does


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError


FAILURES: list[tuple[Any, str]] = [
    (raises(RuntimeError(f"no answer of https://x/?{SECRET}")), "RuntimeError: no answer of"),
    (raises(NoText()), "NoText: its text cannot be shown"),
    (raises(SystemExit(1)), "SystemExit: 1"),
    (raises(KeyboardInterrupt()), "KeyboardInterrupt"),
    (raises(asyncio.CancelledError()), "CancelledError"),
    (raises(TimeoutError()), "a time limit of the source itself has passed"),
    (lambda _: asyncio.Event().wait(), "no answer within 0.3 s"),
    *[
        (lambda _, value=value: value, f"returned {told}: must be a number from 0 to 1e+15")
        for value, told in [
            (float("nan"), "nan"), (float("inf"), "inf"), (-1, "-1"), ("12", "'12'"),
            (None, "None"), (True, "True"), (1e16, "1e+16"), ({"open": 1}, "{'open': 1}"),
        ]
    ],
    (lambda _: 10**400, "must be a number from 0 to 1e+15"),
    (lambda _: [1.0], "returned 1.0 among its samples: must be a MetricValue"),
    (lambda _: MetricValue(datetime(2026, 1, 1), 1.0), "must be a time in UTC"),  # noqa: DTZ001
    (lambda _: MetricValue(NOW, float("nan")), "returned nan"),
    (lambda _: [MetricValue(NOW, 1.0)] * 1001, "returned 1001 samples: must be at most 1000"),
]  # fmt: skip


async def test_one_cause_for_which_many_sources_cannot_be_read_is_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def throttled(number: int) -> Any:
        raise ReadFailed(f"429: queue q-{number:04} is throttled, {uuid4()}, wait {number} s")

    control = MemoryCapacityControl(lambda: NOW, {f"plan-{n}": 2 for n in range(200)})
    declared = [
        resource(f"plan-{n}", metrics={"backlog": Own(lambda _, n=n: throttled(n))})
        for n in range(200)
    ]
    reader = MemoryReader(lambda: NOW, {}, control)
    with caplog.at_level(logging.WARNING, "shared"):
        found = await metric_collector.collect(declared, reader, 30, own=OwnReads())
    assert len(found.failures) == 200
    (line,) = caplog.messages
    assert line.startswith("[source_failed] several resources: 200 resources: backlog could not be")
    assert line.endswith("wait 0 to 199 s: plan-0, plan-1, plan-2 and 197 more")


@pytest.mark.parametrize(("does", "told"), FAILURES)
async def test_a_read_that_gives_no_value_is_missing_and_says_why(
    does: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "shared"):
        collection = await collected(memory(), 0.3, mine=Own(does), backlog=SOURCE)
    assert {m.name for m in collection.metrics} == {"capacity", "backlog"}
    ((failed, reason),) = [(f.metric_name, f.reason) for f in collection.failures]
    assert failed == "mine"
    assert told in reason
    assert "s3cr3t" not in reason + caplog.text
    assert caplog.messages == [
        f"[source_failed] plan-1: mine could not be read, so it is skipped: {reason}"
    ]


async def test_a_value_of_any_class_of_real_numbers_counts() -> None:
    (_, sample) = (await collected(memory(), mine=Own(lambda _: Fraction(5, 2)))).metrics
    assert (type(sample.value.value), sample.value.value) == (float, 2.5)


async def test_a_source_that_blocks_delays_nothing_and_is_not_read_again_before_it_ends() -> None:
    release, reads, own = threading.Event(), list[float](), OwnReads()

    def block(_: Reading) -> float:
        reads.append(1)
        release.wait(30)
        return 7.0

    declared = [resource(metrics={"mine": Own(block), "backlog": SOURCE})]

    async def failures() -> list[str]:
        found = await metric_collector.collect(declared, memory(), 0.2, own=own)
        assert "backlog" in {m.name for m in found.metrics}
        return [each.reason for each in found.failures]

    assert await failures() == ["no answer within 0.2 s"]
    (again,) = await failures()
    assert "an earlier read has not ended" in again
    assert len(reads) == 1
    release.set()
    while await failures():
        pass
    assert len(reads) == 2


async def test_sources_that_are_equal_or_have_no_hash_each_get_their_own_value() -> None:
    """Only the class knows whether two equal objects read the same."""
    assert Own(1) == Own(2)
    own: dict[str, Any] = {"one": Own(lambda _: 1), "two": Own(lambda _: 2), "three": NoHash(3)}
    found = await collected(memory(), **own, same=SOURCE, backlog=SOURCE)
    assert {m.name: m.value.value for m in found.metrics} == {
        "capacity": 2, "one": 1, "two": 2, "three": 3, "same": 42, "backlog": 42,
    }  # fmt: skip


async def test_an_own_kind_of_a_source_of_the_app_without_a_hash_fails_alone() -> None:
    @dataclass(frozen=True)
    class Tagged(AzureMonitorMetric):
        tags: list[str] = field(default_factory=list)

    plain = AzureMonitorMetric("/subscriptions/1", "CpuPercentage")
    platform = MemoryPlatformMetrics(lambda: NOW, timedelta(minutes=1))
    platform.points[plain] = {NOW - timedelta(minutes=1): 50.0}
    reader = MemoryReader(lambda: NOW, {}, MemoryCapacityControl(lambda: NOW, {}), platform)
    found = await collected(reader, tagged=Tagged("/subscriptions/1", "m"), cpu=plain)
    assert [(m.name, m.value.value) for m in found.metrics] == [("cpu", 50.0)]
    assert (
        "TypeError: unhashable type" in {f.metric_name: f.reason for f in found.failures}["tagged"]
    )


class NoHash(Source):  # noqa: PLW1641  a mistake that a user may make
    def __init__(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    async def read(self, _at: Reading) -> float:
        return self.value


async def test_a_value_without_a_time_gets_the_clock_of_a_server_where_there_is_one() -> None:
    reader = memory()
    reader.now = lambda: NOW + timedelta(hours=1)  # type: ignore[method-assign]
    beside = await collected(reader, mine=Own(lambda _: 1))
    assert [m.value.time for m in beside.metrics] == [NOW, NOW]
    lonely = await metric_collector.collect(
        [resource("plan-9", metrics={"mine": Own(lambda _: 1)})], reader, 5
    )
    assert [m.value.time for m in lonely.metrics] == [NOW + timedelta(hours=1)]


async def test_own_code_reads_documents_in_the_loop_of_the_clients(
    server: Server, services: Services
) -> None:
    loops = []

    async def sums(at: Reading) -> float:
        loops.append(asyncio.get_running_loop())
        first, second = await asyncio.gather(*(at.get_json(url) for url in urls))
        return float(first["n"] + second["n"])

    urls = [server.json("/a", {"n": 1}), server.json("/b", {"n": 2})]
    collection = await collected(services, mine=Own(sums))
    assert collection.metrics[1].value.value == 3
    assert loops != [asyncio.get_running_loop()]


REDIRECT = {"Location": "http://other.example/x"}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (web.Response(text="<html>"), "the answer is not JSON"),
        (web.Response(text="[" * 100_000), "the answer is not JSON"),
        (web.Response(body=b"\xff\xfe\xfa"), "the answer is not JSON"),
        (web.Response(text="1" * 1_048_577), "the answer has more than 1,048,576 bytes"),
        (web.Response(status=503), "answered 503 Service Unavailable"),
        (web.Response(status=302, headers=REDIRECT), "redirects to another server or scheme"),
        (web.Response(status=302, headers={"Location": "file:///etc/passwd"}), "another server"),
        (web.Response(status=302, headers={"Location": "/x"}), "redirects more than 3 times"),
        (web.json_response({"a": {}}), "the answer has no 'b' of a.b"),
        (web.json_response({"a": {"b": None}}), "a.b is None: must be a number"),
        (web.json_response({"a": {"b": "soon"}}), "'soon' is not a number"),
        (web.json_response({"a": {"b": "NaN"}}), "returned nan"),
        (web.json_response({"a": {"b": -1}}), "returned -1"),
    ],
)
async def test_an_answer_without_a_number_is_told_without_the_address(
    server: Server, services: Services, answer: web.Response, told: str
) -> None:
    server.answers["/x"] = answer
    source = HttpJson(f"{server.url}/x?{SECRET}", "a.b", headers={"Authorization": "Bearer s3cr3t"})
    reason = await read_source(source, services, 5)
    assert isinstance(reason, str)
    assert told in reason
    assert "s3cr3t" not in reason


async def test_a_number_in_a_document_is_found_by_its_path(
    server: Server, services: Services
) -> None:
    answer = {"data": {"result": [{"value": [1.5, "70"]}]}}
    headers = {"Authorization": "Bearer x"}
    url = server.json("/moved", answer, **DATE)
    server.answers["/old"] = web.Response(status=307, headers={"Location": "/moved"})
    source = HttpJson(f"{server.url}/old", "data.result.0.value.1", True, headers)
    assert await read_source(source, services, 5) == (MetricValue(SERVER_TIME, 70.0),)
    assert [(path, sent["Authorization"]) for path, sent in server.asked] == [
        ("/old", "Bearer x"), ("/moved", "Bearer x"),
    ]  # fmt: skip
    assert shown(replace(source, url=f"{url}?{SECRET}")) == f"HttpJson {url}?api_key=***"
    lost = await read_source(HttpJson("http://127.0.0.1:9/x", "a"), services, 5)
    assert str(lost).startswith("ReadFailed: 127.0.0.1:9: ClientConnectorError")


class Wrong(Source):
    service = "jobs"  # type: ignore[assignment]

    async def read(self, _at: Reading) -> float:
        return 1.0


class Broken(Source):
    async def read(self, _at: Reading) -> float:
        return 1.0

    def problems(self) -> list[str]:
        raise RuntimeError(f"no {SECRET}")


class Late(Source):
    usual_lag_seconds = "soon"
    counts_backlog = 1

    async def read(self, _at: Reading) -> float:
        return 1.0


@dataclass(frozen=True)
class Telling(Own):
    """Tells about itself in each way that a type checker accepts without a remark."""

    counts_backlog = True
    usual_lag_seconds: float = 30
    highest: float = 9

    @property
    def roles(self) -> tuple[str, ...]:
        return ("Reader of jobs",)


def test_a_fact_may_be_an_attribute_a_field_or_a_property() -> None:
    declared = resource(metrics={"backlog": SOURCE, "mine": Telling(not_asked)})
    told = declared.source("mine")
    assert problems([declared]) == []
    assert (told.counts_backlog, told.usual_lag_seconds, told.highest) == (True, 30, 9)
    assert told.roles == ("Reader of jobs",)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (Source(), ".read: must be defined as async def read(self, at)"),
        (of_the_page(), "must be a metric source such as ServiceBusQueue('orders')"),
        (Wrong(), ".service: Source uses this name itself. Choose another one"),
        (Broken(), ": cannot be checked: RuntimeError: no api_key=***"),
        (Late(), ".usual_lag_seconds = 'soon': must be a number"),
        (Late(), ".counts_backlog = 1: must be True or False"),
        (HttpJson("ftp://x/", "a"), ".url: must be an address such as https://"),
        (HttpJson("https://x/", "a..b"), ".path = 'a..b': must be keys and positions"),
        (HttpJson("https://x/", "a", headers={"a": 1}), ".headers: must be a dict of texts"),  # type: ignore[dict-item]
    ],
)
def test_a_source_that_cannot_work_is_a_problem_of_its_metric(source: Any, told: str) -> None:
    found = problems([resource(metrics={"mine": source, "backlog": SOURCE})])
    place = "resource 'plan-1': metrics['mine']"
    assert any(each.startswith(place) and told in each for each in found), found


async def test_a_failed_check_of_an_own_source_names_the_roles_that_it_needs() -> None:
    class Guarded(Own):
        roles = ("Reader of jobs",)

    declared = resource(metrics={"mine": Guarded(raises(ReadFailed("403")))})
    checks = await check_all([declared], memory(), AsyncNothing(), AsyncNothing(), 5)
    assert {"ReadFailed: 403. The app's identity needs Reader of jobs"} < {
        c["told"] for c in checks
    }


def test_the_backtest_replays_the_backlog_of_an_own_source_and_knows_no_other_value() -> None:
    counting, other = of_the_page()("https://x/"), Own(not_asked)
    declared = resource(metrics={"jobs": counting, "other": other, "dead": DEAD_LETTERS})
    arena = Arena(1.0)
    assert feeds(declared, arena) == {"jobs": "backlog", "other": "0", "dead": "0"}
    assert not_in_a_trace(declared, arena) == ["other"]
    assert not_in_a_trace(declared, replace(arena, cpu=True)) == ["jobs", "other", "dead"]


@pytest.mark.parametrize(
    "source", [SOURCE, StorageQueue("jobs"), AzureMonitorMetric("/subscriptions/1", "m")]
)
def test_the_roles_that_a_source_needs_stand_on_the_page_of_several_plans(source: Source) -> None:
    page = (Path(__file__).parents[2] / "docs" / "several-plans.md").read_text(encoding="utf-8")
    assert source.roles
    assert [role for role in source.roles if f"*{role}*" not in page] == []
