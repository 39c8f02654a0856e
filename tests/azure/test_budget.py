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

RESERVE = 90


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


@dataclass
class Server:
    """A bucket that several processes share."""

    clock: Clock = field(default_factory=Clock)
    level: float = 250
    at: float = 0

    def answer(self) -> Answered:
        self.level = min(self.level + (self.clock.now - self.at) * 25, 250)
        self.at = self.clock.now
        if self.level < 1:
            return Answered(429, {"Retry-After": "1"}, b"")
        self.level -= 1
        return Answered(
            headers={"x-ms-ratelimit-remaining-subscription-reads": f"{self.level:.0f}"}
        )


class Caller:
    """Sends requests of one process, and notes when each was sent."""

    def __init__(self, server: Server | None = None) -> None:
        self.clock, self.server = server.clock if server else Clock(), server
        self.budget = ArmBudget(self.clock, self.clock.sleep)
        self.sent: list[tuple[str, float]] = []

    async def send(
        self, name: str, kind: str = "reads", *answers: Answered, of: str = "s"
    ) -> Answered:
        given = iter(answers)

        async def sending() -> Answered:
            self.sent.append((name, self.clock.now))
            await asyncio.sleep(0)
            return next(given, None) or (self.server.answer() if self.server else Answered())

        with urgent(60 if name == "order" else 0):
            answer: Answered = await self.budget.send(of, kind, sending)
            return answer

    async def without_end(self) -> None:
        while True:
            await self.send("order")

    async def all(self, **counts: int) -> list[Answered | BaseException]:
        """Requests that begin at the same time, in this order. Returns the error of each."""
        names = [name for name, count in counts.items() for _ in range(count)]
        return await asyncio.gather(*map(self.send, names), return_exceptions=True)

    def count(self, name: str, until: float = 1e9) -> int:
        return sum(each == name and at <= until + 1e-3 for each, at in self.sent)


@pytest.mark.parametrize(
    ("level", "kept", "waiting", "is_urgent", "seconds"),
    [
        (250, 80, "urgent routine", True, 0),
        (1, 0, "urgent routine", True, 0),
        (0, 0, "urgent routine", True, 0.0625),  # it gets 64 % of the tokens
        (0.5, 0, "urgent", True, 0.03125),
        (80, 80, "urgent", True, 0.0625),
        (80, 80, "urgent routine", False, 0),  # what is kept for routine requests
        (91, 0, "routine", False, 0),
        (90, 0, "routine", False, 0.04),  # the reserve
        (90, 1, "routine", False, 0),
        (0, 0, "routine", False, 0.111111),
    ],
)
def test_orders_come_first_and_leave_a_third_of_the_refill_to_others(
    level: float, kept: float, waiting: str, is_urgent: bool, seconds: float
) -> None:
    bucket = Bucket(250, 25, level, at=7, kept=kept)
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
    assert caller.clock.now <= 14 + 80 / 25 + 0.3, "what is kept for others is all that is left"


async def test_routine_requests_leave_a_reserve_and_are_given_up_after_a_short_wait() -> None:
    caller = Caller()
    errors = await caller.all(read=400)
    assert caller.count("read", 0) == 250 - RESERVE
    assert sum(isinstance(each, BudgetSpent) for each in errors) == pytest.approx(115, abs=3)
    ended = caller.clock.now
    assert ended < 6
    await caller.all(order=40)
    assert caller.clock.now == ended, "orders need not wait"


async def test_an_order_does_not_wait_behind_routine_requests() -> None:
    caller = Caller()
    routine = asyncio.create_task(caller.all(read=350))
    while not caller.clock.now:  # noqa: ASYNC110  the clock has no event
        await asyncio.sleep(0)
    began = caller.clock.now
    await caller.all(order=20)
    assert caller.clock.now == began
    await routine


@pytest.mark.parametrize("orders_of_another_process", [False, True])
async def test_orders_that_take_everything_leave_a_third_to_short_runs_of_routine_requests(
    orders_of_another_process: bool,
) -> None:
    server = Server()
    caller = Caller(server)
    other = Caller(server) if orders_of_another_process else caller
    orders = [asyncio.create_task(other.without_end()) for _ in range(24)]
    for run in range(1, 7):
        await caller.all(read=300)
        while caller.clock.now < 15 * run:  # noqa: ASYNC110  the clock has no event
            await asyncio.sleep(0)
    seconds = caller.clock.now
    assert caller.count("read") >= 6.5 * seconds
    assert other.count("order") >= 15 * seconds
    for each in orders:
        each.cancel()


THROTTLED = arm_errors.subscription_throttled("GET", "/subscriptions/s/x", 17)


def of(reply: Reply, **headers: str) -> Answered:
    body = reply.body if isinstance(reply.body, bytes) else reply.body.encode()
    return Answered(reply.status, {**reply.headers, **headers}, body)


@pytest.mark.parametrize("kind", ["reads", "writes"])
async def test_a_refusal_stops_all_requests_of_the_subscription_and_orders_come_first_afterwards(
    kind: str,
) -> None:
    caller = Caller()
    refused = asyncio.create_task(caller.send("order", kind, of(THROTTLED), Answered()))
    await asyncio.sleep(0)
    await caller.send("other", of="t")
    assert caller.clock.now == 0, "another subscription has a limit of its own"
    (error,) = await caller.all(read=1)
    assert isinstance(error, BudgetSpent)
    assert caller.clock.now < 1, "it is known at once"
    assert error.wait_seconds == pytest.approx(17 - caller.clock.now)
    while caller.clock.now < 14:
        await caller.clock.sleep(0.5)
    await caller.all(read=3, order=2)
    await refused
    names = [name for name, at in caller.sent if at > 0]
    assert (names[0], names[:3].count("order")) == ("order", 2)
    assert all(at >= 17 for _, at in caller.sent[2:])


@pytest.mark.parametrize(("seconds", "sent"), [(17, 2), (120, 1)])
async def test_a_refused_order_is_sent_again_unless_that_takes_too_long(
    seconds: int, sent: int
) -> None:
    caller = Caller()
    refusal = of(THROTTLED, **{"Retry-After": str(seconds)})
    answer = await caller.send("order", "reads", refusal, Answered())
    assert (answer is refusal, caller.count("order")) == (sent == 1, sent)
    assert caller.clock.now < 18


async def test_the_first_of_refused_requests_is_sent_again_first() -> None:
    caller = Caller()
    refusal = of(THROTTLED, **{"Retry-After": "1"})
    names = [f"read {number}" for number in range(3)]
    await asyncio.gather(*(caller.send(name, "reads", refusal, Answered()) for name in names))
    assert [name for name, _ in caller.sent] == [*names, *names]


async def test_an_order_that_waits_for_a_pause_is_given_up_before_its_own_time_limit() -> None:
    caller = Caller()
    caller.budget = ArmBudget(caller.clock, caller.clock.sleep, urgent_seconds_max=8)
    await caller.send("order", "reads", of(THROTTLED, **{"Retry-After": "60"}))
    (error,) = await caller.all(order=1)
    assert isinstance(error, BudgetSpent)
    assert caller.clock.now == 0


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
    await caller.send("order", "reads", of(THROTTLED, **{"Retry-After": "86400"}))
    caller.clock.now = 601
    await caller.all(order=1)
    assert caller.clock.now == 601


@pytest.mark.parametrize(
    ("left", "at_once"),
    [("100", 10), ("91", 1), ("0", 0), ("11999", 159), ("", 159), ("-1", 159), ("x", 159)],
)
async def test_what_other_processes_have_used_is_obeyed(left: str, at_once: int) -> None:
    caller = Caller()
    told = {"x-ms-ratelimit-remaining-subscription-reads": left}
    await caller.send("first", "reads", Answered(headers=told))
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
