"""The budget of requests to Azure Resource Manager, on a clock that only waiting advances."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from local.azure_apis import arm_errors
from local.azure_apis.loopback_server import Reply
from shared.azure.budget import ArmBudget, Bucket, BudgetSpent
from shared.values.urgency import urgent

RESERVE = 50


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        for _ in range(5):
            await asyncio.sleep(0)


@dataclass
class Answered:
    """An answer as the policies of the client see it."""

    status_code: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    text: bytes = b"{}"

    @property
    def http_response(self) -> Answered:
        return self

    async def read(self) -> bytes:
        return self.text


class Caller:
    """Sends requests of one process, and notes when each was sent."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.budget = ArmBudget(self.clock, self.clock.sleep)
        self.sent: list[tuple[str, float]] = []

    async def send(
        self, name: str, kind: str = "reads", answer: Answered | None = None, of: str = "s"
    ) -> None:
        async def sending() -> Answered:
            self.sent.append((name, self.clock.now))
            return answer or Answered()

        with urgent(when=name == "order"):
            await self.budget.send(of, kind, sending)

    async def all(self, **counts: int) -> list[BaseException | None]:
        """Requests that begin at the same time, in this order. Returns the error of each."""
        names = [name for name, count in counts.items() for _ in range(count)]
        return await asyncio.gather(*map(self.send, names), return_exceptions=True)

    def count(self, name: str, until: float = 1e9) -> int:
        return sum(each == name and at <= until + 1e-3 for each, at in self.sent)


@pytest.mark.parametrize(
    ("level", "in_a_row", "waiting", "is_urgent", "seconds"),
    [
        (250, 0, "urgent routine", True, 0),
        (1, 0, "urgent routine", True, 0),
        (0, 0, "urgent routine", True, 0.04),
        (0.5, 1, "urgent", True, 0.02),
        (51, 0, "routine", False, 0),
        (50, 0, "routine", False, 0.04),  # the reserve
        (0, 0, "routine", False, 2.04),
        (1, 2, "urgent routine", False, 0),  # two orders have passed
        (0, 2, "routine", False, 0.04),
        (1, 9, "urgent", True, 0),  # nobody else waits
    ],
)
def test_orders_come_first_and_leave_every_third_request_to_others(
    level: float, in_a_row: int, waiting: str, is_urgent: bool, seconds: float
) -> None:
    bucket = Bucket(250, 25, level, at=7, in_a_row=in_a_row)
    kinds = {kind: kind in waiting for kind in ("urgent", "routine")}
    next_is_urgent, wait = bucket.turn(7, **kinds)
    assert (next_is_urgent, round(wait, 6)) == (is_urgent, seconds)


def test_a_bucket_is_refilled_up_to_its_size_and_not_by_a_clock_that_goes_back() -> None:
    bucket = Bucket(250, 25, 0, at=100)
    for now, level in ((104, 100), (103, 100), (104, 100), (1000, 250)):
        bucket.turn(now, urgent=True, routine=False)
        assert bucket.level == level


async def test_no_more_is_sent_than_the_bucket_holds() -> None:
    caller = Caller()
    await caller.all(order=600)
    for second in range(14):
        assert caller.count("order", second) <= 250 + 25 * second
    assert caller.count("order") == 600
    assert caller.clock.now == pytest.approx(14, abs=0.3)


async def test_routine_requests_leave_a_reserve_and_are_given_up_after_a_short_wait() -> None:
    caller = Caller()
    errors = await caller.all(read=400)
    assert caller.count("read", 0) == 250 - RESERVE
    assert sum(isinstance(each, BudgetSpent) for each in errors) == pytest.approx(100, abs=2)
    assert caller.clock.now < 5
    await caller.all(order=RESERVE)
    assert caller.clock.now < 5, "orders need not wait"


async def test_an_order_does_not_wait_behind_routine_requests() -> None:
    caller = Caller()
    routine = asyncio.create_task(caller.all(read=350))
    while not caller.clock.now:  # noqa: ASYNC110  the clock has no event
        await asyncio.sleep(0)
    began = caller.clock.now
    await caller.all(order=20)
    assert caller.clock.now == began
    await routine


async def test_orders_that_take_everything_leave_a_third_to_routine_requests() -> None:
    caller = Caller()
    orders = asyncio.create_task(caller.all(order=1500))
    while caller.clock.now < 10:
        await caller.all(read=20)
    later = caller.sent[250:]
    shares = [each for each, at in later if at > 1]
    assert shares.count("read") / len(shares) == pytest.approx(1 / 3, abs=0.05)
    orders.cancel()


THROTTLED = arm_errors.subscription_throttled("GET", "/subscriptions/s/x", 17)


def of(reply: Reply, **headers: str) -> Answered:
    body = reply.body if isinstance(reply.body, bytes) else reply.body.encode()
    return Answered(reply.status, {**reply.headers, **headers}, body)


@pytest.mark.parametrize("kind", ["reads", "writes"])
async def test_a_refusal_stops_all_requests_of_the_subscription_and_orders_come_first_afterwards(
    kind: str,
) -> None:
    caller = Caller()
    await caller.send("order", kind, of(THROTTLED))
    await caller.send("other", of="t")
    assert caller.clock.now == 0, "another subscription has a limit of its own"
    assert isinstance((await caller.all(read=1))[0], BudgetSpent)
    assert caller.clock.now == pytest.approx(4, abs=0.2)
    while caller.clock.now < 14:
        await caller.clock.sleep(0.5)
    await caller.all(read=3, order=2)
    names = [name for name, at in caller.sent if at > 0]
    assert names[:2] == ["order", "order"]
    assert caller.sent[-1][1] >= 17


@pytest.mark.parametrize(
    "answer",
    [
        of(arm_errors.not_enough_instances(3), **{"Retry-After": "60"}),
        of(arm_errors.too_many_scale_changes(20, 20, 429), **{"Retry-After": "60"}),
        of(
            arm_errors.front_door_error(
                429, "ResourceRequestsThrottled", "Number of requests for action x exceeded."
            ),
            **{"Retry-After": "60"},
        ),
        of(arm_errors.front_door_error(503, "Throttled", "later"), **{"Retry-After": "60"}),
    ],
)
async def test_a_refusal_of_one_plan_or_one_kind_does_not_stop_the_others(answer: Answered) -> None:
    caller = Caller()
    await caller.send("order", "writes", answer)
    await caller.all(read=1, order=1)
    assert caller.clock.now == 0


async def test_a_pause_that_is_too_long_is_cut_short() -> None:
    caller = Caller()
    await caller.send("order", answer=of(THROTTLED, **{"Retry-After": "86400"}))
    caller.clock.now = 601
    await caller.all(order=1)
    assert caller.clock.now == 601


@pytest.mark.parametrize(
    ("left", "at_once"),
    [("60", 10), ("51", 1), ("0", 0), ("11999", 199), ("", 199), ("-1", 199), ("x", 199)],
)
async def test_what_other_processes_have_used_is_obeyed(left: str, at_once: int) -> None:
    caller = Caller()
    told = {"x-ms-ratelimit-remaining-subscription-reads": left}
    await caller.send("first", answer=Answered(headers=told))
    await caller.all(read=300)
    assert caller.count("read", 0) == at_once


def test_an_answer_that_comes_late_does_not_count_requests_or_refills_twice() -> None:
    bucket = Bucket(250, 25, level=0, at=10)
    for urgent_one in (True, True):
        bucket.turn(10.2, urgent=True, routine=False)  # 5 tokens
        bucket.take(urgent=urgent_one)
    bucket.told(0, sent=(10, 0))  # nothing was left, 0.2 s and two requests ago
    assert bucket.level == pytest.approx(3)


async def test_a_caller_that_gives_up_takes_nothing() -> None:
    caller = Caller()
    await caller.all(order=250)
    waits = [asyncio.create_task(caller.send("order")) for _ in range(50)]
    await asyncio.sleep(0)
    for each in waits:
        each.cancel()
    await caller.send("order")
    assert caller.clock.now < 0.2
    await caller.budget.close()


async def test_the_case_of_a_subscription_does_not_matter() -> None:
    budget: Any = ArmBudget()
    assert budget.line("ABC", "reads") is budget.line("abc", "reads")
    assert budget.line("abc", "writes") is not budget.line("abc", "reads")
