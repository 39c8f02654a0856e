"""Counts of many Service Bus entities: few requests, and within a share of the credits."""

from __future__ import annotations

import asyncio
import json
import selectors
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from local.azure_apis.arm import ArmStandIn
from local.azure_apis.entities import EntityCounts
from local.azure_apis.loopback_server import LoopbackServer, Reply, Request
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn, refusal
from local.clock import utc_now
from local.twins.autoscaling import MemoryCapacityControl
from shared import settings
from shared.autoscaling import ServiceBusQueue, ServiceBusSubscription, StorageQueue
from shared.autoscaling.errors import ReadFailed
from shared.autoscaling.services import clients
from shared.autoscaling.services.clients import AzureReader, ServiceBusReader, StorageQueueReader
from shared.autoscaling.sources import ServiceBusSource
from shared.azure.entity_reads import LISTED_AGAIN_SECONDS, EntityReads, Key, NotNow, Turns
from shared.settings.connections import ArmNamespace, ServiceBusConnection
from shared.values.measurements import MetricValue
from tests.builders import not_asked

BUS = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/group-1/providers"
    "/Microsoft.ServiceBus/namespaces/bus-1"
)
FAST = 100_000
"""Credits a second with which no test waits for a turn, and no request comes too soon."""


class Given:
    """A queue's name ends in its count: `queue-007` has 7 messages."""

    def counts(self, path: str) -> EntityCounts:
        return EntityCounts(active=int(path.rpartition("-")[2]), dead_letter=3)


class Bus(ServiceBusAdminStandIn):
    """Fails pages of lists that begin here, and lists nothing else after that."""

    fails_from: int | None = None

    def handle(self, request: Request) -> Reply:
        if self.fails_from is not None and request.query.get("$skip") == str(self.fails_from):
            return Reply(500, "<Error><Code>500</Code></Error>", "application/xml")
        return super().handle(request)


def queues(count: int) -> list[ServiceBusSource]:
    return [ServiceBusQueue(f"queue-{n:03}") for n in range(count)]


@dataclass
class Rig:
    bus: Bus
    arm: ArmStandIn
    by_arm: bool
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.bus.credits.per_second = FAST
        for source in queues(250):
            self.bus.declare_queue(source.entity)
        self.reader = ServiceBusReader(
            ArmNamespace(self.arm.base_url, BUS) if self.by_arm else self.connection,
            lambda: self.now,
            defaultdict(lambda: Turns(FAST, seconds=60)),
        )

    @property
    def connection(self) -> ServiceBusConnection:
        return ServiceBusConnection("ServiceBusConnection", self.bus.connection_string)

    @property
    def paths(self) -> list[str]:
        server: LoopbackServer = self.arm if self.by_arm else self.bus
        return [each.path for each in server.requests]

    def lists(self) -> int:
        return sum(each.lower().endswith(("/queues", "/subscriptions")) for each in self.paths)

    async def read(self, sources: Sequence[ServiceBusSource]) -> list[MetricValue | str]:
        """The values of one run of the collector, or why there is none."""
        before, reads = len(self.paths), [self.reader.read(each) for each in sources]
        found = await asyncio.gather(*reads, return_exceptions=True)
        self.requests = len(self.paths) - before
        return [each if isinstance(each, MetricValue) else str(each) for each in found]


@pytest.fixture(params=["namespace", "resource-manager"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with Bus(Given()) as bus, ArmStandIn([]) as arm:
        arm.service_bus.add(BUS, bus)
        found = Rig(bus, arm, request.param == "resource-manager")
        yield found
        await found.reader.close()


NAMESPACE_ONLY = pytest.mark.parametrize("rig", ["namespace"], indirect=True)


def values(found: Sequence[MetricValue | str]) -> list[float | str]:
    return [each if isinstance(each, str) else each.value for each in found]


@pytest.mark.parametrize(("count", "requests"), [(1, 1), (2, 1), (100, 1), (101, 2), (200, 2)])
async def test_the_queues_of_a_run_share_pages_of_a_hundred(
    rig: Rig, count: int, requests: int
) -> None:
    found = await rig.read(queues(count))
    assert values(found) == [*range(count)]
    assert rig.requests == requests
    for each in found:
        assert isinstance(each, MetricValue)
        assert abs(each.time - datetime.now(UTC)) < timedelta(seconds=5)


async def test_several_counts_of_one_queue_come_from_the_same_page(rig: Rig) -> None:
    dead = [ServiceBusQueue(f"queue-{n:03}", count="dead_letter") for n in range(50)]
    assert values(await rig.read([*queues(50), *dead])) == [*range(50), *[3] * 50]
    assert rig.requests == 1


async def test_subscriptions_of_one_topic_share_pages_and_the_status_of_the_topic(
    rig: Rig,
) -> None:
    rig.bus.declare_topic("a/News-0")
    subscriptions: list[ServiceBusSource] = []
    for n in range(150):
        rig.bus.declare_subscription("a/News-0", f"Sub-{n:03}")
        subscriptions.append(ServiceBusSubscription("A/news-0", f"sub-{n:03}"))
    rig.bus.set_status("a/news-0", "Disabled")
    found = await rig.read(subscriptions)
    assert values(found) == [*range(150)]
    assert rig.requests == 2 + 1
    assert {each.status for each in found if isinstance(each, MetricValue)} == {"topic Disabled"}


async def test_known_topics_of_many_subscriptions_share_a_list(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "TOPIC_TIMEOUT_SECONDS", 60)
    subscriptions: list[ServiceBusSource] = []
    for n in range(30):
        rig.bus.declare_topic(f"topic-{n}")
        rig.bus.declare_subscription(f"topic-{n}", f"sub-{n}")
        subscriptions.append(ServiceBusSubscription(f"topic-{n}", f"sub-{n}"))
    assert values(await rig.read(subscriptions)) == [*range(30)]
    rig.now += clients.TOPIC_SECONDS
    rig.bus.set_status("topic-7", "ReceiveDisabled")
    found = await rig.read(subscriptions)
    assert rig.requests == 30 + 1
    told = [each.status for each in found if isinstance(each, MetricValue) and each.status]
    assert told == ["topic ReceiveDisabled"]


@pytest.mark.parametrize("status", ["Disabled", "ReceiveDisabled"])
async def test_a_disabled_queue_within_a_list_says_so(rig: Rig, status: str) -> None:
    rig.bus.set_status("queue-007", status)
    found = await rig.read(queues(20))
    told = [each.status for each in found if isinstance(each, MetricValue)]
    assert told == ["" if n != 7 else status for n in range(20)]


async def test_names_in_a_list_ignore_case_and_may_have_slashes(rig: Rig) -> None:
    rig.bus.declare_queue("Desk/Work-77")
    wanted = [ServiceBusQueue(name) for name in ("QUEUE-003", "queue-004", "desk/WORK-77")]
    assert values(await rig.read(wanted)) == [3, 4, 77]
    assert rig.requests == 1


async def test_what_a_list_does_not_name_is_read_by_itself(rig: Rig) -> None:
    rig.bus.left_out_of_lists = {"queue-005"}
    *found, missing = await rig.read([*queues(20), ServiceBusQueue("missing-1")])
    assert values(found) == [*range(20)]
    where = "queue missing-1 does not exist in the namespace of ServiceBusConnection"
    assert missing == f"{where}: check its name in the rules"
    assert rig.requests == 3 + 2


async def test_few_queues_of_a_large_namespace_are_not_listed_for_an_hour(rig: Rig) -> None:
    """The queues are on the last page."""
    wanted = [ServiceBusQueue(f"queue-{n}") for n in (240, 241, 242)]
    assert values(await rig.read(wanted)) == [240, 241, 242]
    assert rig.requests == 1 + 3
    for later, requests in ((LISTED_AGAIN_SECONDS - 1, 3), (1, 1 + 3)):
        rig.now += later
        await rig.read(wanted)
        assert rig.requests == requests


async def test_queues_far_apart_are_listed_while_that_saves_requests(rig: Rig) -> None:
    wanted = [ServiceBusQueue(f"queue-{n:03}") for n in range(0, 250, 25)]
    for _ in range(2):
        assert values(await rig.read(wanted)) == [*range(0, 250, 25)]
        assert rig.requests == 3


@NAMESPACE_ONLY
@pytest.mark.parametrize("count", [9, 150])
async def test_without_the_right_to_list_each_is_read_and_the_right_is_advised(
    rig: Rig, count: int
) -> None:
    rig.bus.credits.per_second = 10_000
    rig.bus.may_list = False
    for later, lists in ((0, 1), (LISTED_AGAIN_SECONDS - 1, 0), (1, 1)):
        rig.now += later
        assert values(await rig.read(queues(count))) == [*range(count)]
        assert rig.requests == count + lists
    told = rig.reader.advice()
    assert (count < 10) == (told == "")
    if told:
        assert "150 entities are read one by one, because they may not be listed" in told
        assert "Azure Service Bus Data Owner on the namespace would save 148 requests" in told
    rig.bus.may_list, rig.now = True, rig.now + LISTED_AGAIN_SECONDS
    await rig.read(queues(count))
    assert rig.reader.advice() == ""


@NAMESPACE_ONLY
async def test_a_list_that_fails_half_way_is_not_taken_for_the_whole(rig: Rig) -> None:
    rig.bus.credits.per_second = 10_000
    rig.bus.fails_from = 100
    assert values(await rig.read(queues(150))) == [*range(150)]
    assert rig.requests == 1 + 2 + 50


async def test_a_throttled_list_is_no_reason_to_read_each(rig: Rig) -> None:
    if rig.by_arm:
        rig.arm.service_bus.throttled_seconds = 17
    else:
        rig.bus.fail_next(refusal(429, "slow down", retry_after_seconds=17))
    told = "the namespace of ServiceBusConnection throttles requests: queue queue-{:03} is read in"
    for _ in range(2):
        for n, each in enumerate(await rig.read(queues(50))):
            assert str(each) == f"{told.format(n)} 17 s"
    assert len(rig.paths) == 1
    rig.arm.service_bus.throttled_seconds, rig.now = None, rig.now + 17
    assert values(await rig.read(queues(50))) == [*range(50)]
    assert len(rig.paths) == 2


@pytest.mark.parametrize(
    ("value", "link"),
    [
        ([None, {"name": 7}, {"name": "a", "properties": []}, {"properties": {}}], None),
        ([{"name": "queue-001", "properties": {"status": "Active", "messageCount": 4}}], None),
        ({"a": 1}, None),
        (None, None),
        ([], "https://localhost:{port}/subscriptions"),
        ([], 5),
    ],
)
async def test_what_an_odd_list_of_resource_manager_does_not_count_is_read_by_itself(
    value: object, link: object
) -> None:
    class Odd(LoopbackServer):
        def handle(self, request: Request) -> Reply:
            if request.path.endswith("/queues"):
                further = link.format(port=self.port) if isinstance(link, str) else link
                return Reply(200, json.dumps({"value": value, "nextLink": further}))
            return Reply(200, '{"properties": {"countDetails": {"activeMessageCount": 5}}}')

        def unauthorized(self, reason: str) -> Reply:
            raise AssertionError(reason)

    async with Odd() as server:
        reader = ServiceBusReader(ArmNamespace(server.base_url, BUS))
        found = await asyncio.gather(*map(reader.read, queues(4)))
        await reader.close()
        assert [each.value for each in found] == [5, 5, 5, 5]
        assert len(server.requests) == 1 + 4


async def test_an_answer_that_asks_for_no_wait_does_not_end_the_wait_of_another() -> None:
    class Throttling(LoopbackServer):
        def handle(self, request: Request) -> Reply:
            throttled = request.path.endswith("queue-000")
            headers = {"Retry-After": "60"} if throttled else {}
            return Reply(429 if throttled else 404, '{"error": {"code": "x"}}', headers=headers)

        def unauthorized(self, reason: str) -> Reply:
            raise AssertionError(reason)

    async with Throttling() as server:
        turns = defaultdict[str, Turns](lambda: Turns(FAST))
        reader = ServiceBusReader(ArmNamespace(server.base_url, BUS), turns=turns)
        apart = [*queues(1), ServiceBusSubscription("topic", "missing")]
        await asyncio.gather(*map(reader.read, apart), return_exceptions=True)
        with pytest.raises(ReadFailed, match="throttles requests: queue queue-000 is read in"):
            await reader.read(apart[0])
        await reader.close()


# --- the share of the credits ---


class Counting(Turns):
    def __init__(self) -> None:
        super().__init__(FAST)
        self.taken = Counter[Key]()

    async def take(self, of: Key = (), until: float | None = None) -> None:
        await super().take(of, until)
        self.taken[of] += 1


@pytest.mark.parametrize("may_list", [True, False])
async def test_each_request_to_a_namespace_has_a_turn_also_one_that_is_repeated(
    may_list: bool,
) -> None:
    async with Bus(Given()) as bus:
        bus.may_list = may_list
        for source in queues(120):
            bus.declare_queue(source.entity)
        bus.credits.per_second = 10_000
        bus.fail_next(refusal(429, retry_after_seconds=0), times=2)
        turns = Counting()
        connection = ServiceBusConnection("Bus", bus.connection_string)
        reader = ServiceBusReader(connection, turns=defaultdict(lambda: turns))
        found = await asyncio.gather(*map(reader.read, queues(120)), return_exceptions=True)
        await reader.close()
        assert sum(turns.taken.values()) == len(bus.requests)
        assert [each for each in found if not isinstance(each, MetricValue | ReadFailed)] == []


async def test_connections_of_one_namespace_share_its_credits() -> None:
    async with Bus(Given()) as bus:
        bus.declare_queue("queue-7")
        found = settings.load({"Bus": bus.connection_string, "Same": bus.connection_string})
        control = MemoryCapacityControl(utc_now, {})
        others = not_asked, not_asked, not_asked, lambda: Turns(10, seconds=0.2)
        reader = AzureReader(found.storage, found.service_bus, control, *others)
        assert (await reader.message_count(ServiceBusQueue("queue-7", connection="Bus"))).value == 7
        told = (
            "the app's share of the credits of the namespace of Same is used up: queue queue-7 "
            "comes first in the next run"
        )
        with pytest.raises(ReadFailed, match=told):
            await reader.message_count(ServiceBusQueue("queue-7", connection="Same"))
        await reader.close()
        assert len(bus.requests) == 1


async def test_the_reader_of_all_sources_tells_what_each_connection_advises() -> None:
    async with Bus(Given()) as bus:
        bus.credits.per_second, bus.may_list = 10_000, False
        for source in queues(150):
            bus.declare_queue(source.entity)
        found = settings.load({"ServiceBusConnection": bus.connection_string})
        control = MemoryCapacityControl(utc_now, {})
        others = not_asked, not_asked, not_asked, lambda: Turns(FAST, seconds=60)
        reader = AzureReader(found.storage, found.service_bus, control, *others)
        assert reader.advice() == []
        await asyncio.gather(*map(reader.message_count, queues(150)))
        (told,) = reader.advice()
        await reader.close()
        assert told.startswith("ServiceBusConnection: 150 entities are read one by one")


class NoWaiting(selectors.DefaultSelector):
    """Lets the time of an event loop pass at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0
        return super().select(0)


def at_once(run: Callable[[asyncio.AbstractEventLoop], Coroutine[Any, Any, None]]) -> None:
    selector = NoWaiting()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run(loop))


@pytest.mark.parametrize("share", [10, 500, 5000])
def test_requests_never_take_more_than_the_share_in_any_second(share: int) -> None:
    async def run(loop: asyncio.AbstractEventLoop) -> None:
        turns, times, most = Turns(share), list[float](), max(share // 10, 1)

        async def request(n: int) -> None:
            await turns.take((str(n),))
            times.append(loop.time())

        await asyncio.sleep(100)
        await asyncio.gather(*map(request, range(2 * most + 1)))
        assert times == sorted(times)
        assert times[-1] - times[0] == pytest.approx(2)
        assert all(b - a > 1 - 1e-6 for a, b in zip(times, times[most:], strict=False))

    at_once(run)


def test_whoever_misses_a_turn_comes_first_in_the_next_run_and_nobody_is_starved() -> None:
    """A run is able to read 400 of 1,000 queues, the collector runs each 15 s."""

    async def run(loop: asyncio.AbstractEventLoop) -> None:
        turns, read_at = Turns(500, seconds=8), dict[int, float]()

        async def request(n: int, until: float) -> None:
            try:
                await turns.take((str(n),), until)
            except NotNow:
                return
            read_at[n] = loop.time()

        for number in range(5):
            began = loop.time()
            await asyncio.gather(*(request(n, began + turns.seconds) for n in range(1000)))
            done = sum(time >= began for time in read_at.values())
            assert 398 <= done <= 401
            if number >= 2:
                assert len(read_at) == 1000
                assert began - min(read_at.values()) < 3 * 15
            await asyncio.sleep(began + 15 - loop.time())

    at_once(run)


# --- storage queues ---


class Busy(LoopbackServer):
    """A storage account that counts the requests that it has at a time."""

    at_once = most = 0

    async def _respond(self, raw: web.BaseRequest) -> web.Response:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        try:
            return await super()._respond(raw)
        finally:
            self.at_once -= 1

    def handle(self, request: Request) -> Reply:  # noqa: ARG002
        headers = {"x-ms-version": "2025-01-05", "x-ms-approximate-messages-count": "5"}
        return Reply(200, "", "application/xml", headers)

    def unauthorized(self, reason: str) -> Reply:
        raise AssertionError(reason)


async def test_a_storage_account_gets_a_bounded_number_of_requests_at_a_time() -> None:
    async with Busy() as account:
        account.delay_seconds = 0.01
        address = account.base_url.replace("https", "http")
        text = f"AccountName=a;AccountKey=Yg==;QueueEndpoint={address}"
        found = settings.load({"Files": text})
        reader = StorageQueueReader(found.storage("Files"))
        asked = (reader.read(StorageQueue(f"queue-{n}")) for n in range(200))
        read = await asyncio.gather(*asked)
        await reader.close()
        assert [each.value for each in read] == [5] * 200
        assert account.most <= clients.AT_ONCE_MAX


class Hanging:
    """A namespace that does not answer."""

    def __init__(self) -> None:
        self.began, self.ended = asyncio.Event(), asyncio.Event()

    async def pages(self, *_: str) -> AsyncIterator[None]:
        try:
            self.began.set()
            await asyncio.Event().wait()
            yield
        finally:
            self.ended.set()


async def test_a_list_ends_with_the_reads_that_wait_for_it() -> None:
    entities: Any = Hanging()
    reads = EntityReads(entities, Turns(FAST))
    tasks = [asyncio.create_task(reads.read("queue", [each], "count")) for each in "ab"]
    await entities.began.wait()
    for each in tasks:
        each.cancel()
    async with asyncio.timeout(1):
        await entities.ended.wait()
