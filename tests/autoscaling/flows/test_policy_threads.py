"""A policy that blocks, fails in unusual ways or changes its input affects no other resource."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from local.twins.autoscaling import MemoryCapacityControl, MemoryReader, MemoryStateStore
from shared.autoscaling import Goal, Guards, Limits, Missing, Mode, Threshold, Throughput
from shared.autoscaling.deciding.decide import Decision, EntryKind, decide
from shared.autoscaling.deciding.validation import failing_policies, problems
from shared.autoscaling.flows import notify, preview, scaling_logic
from shared.autoscaling.flows.policy_threads import PolicyThreads
from shared.autoscaling.messages import Samples
from shared.autoscaling.policies.checks import member
from shared.autoscaling.policies.combine import Condition, scale_in_only_if
from shared.autoscaling.policy import (
    Observation,
    Policy,
    RateEstimate,
    RateSource,
    Recommendation,
    Resource,
    ask,
)
from shared.autoscaling.state import Override, ScaleAction
from shared.autoscaling.transition import advance
from shared.values.calls import answers
from shared.values.measurements import (
    CAPACITY_METRIC,
    Metric,
    MetricValue,
    WeekProfile,
    Window,
)
from tests.builders import NOW, SOURCE, desired, metric, resource, sample, state

ROOT = Path(__file__).parents[3]
PATIENT = 60.0
"""A limit that no policy of these tests reaches, however slow the machine is."""
log = logging.getLogger("rules")


class Blocking:
    """A policy that answers once ``released`` is set. Counts its calls."""

    def __init__(self) -> None:
        self.called, self.released, self.calls = threading.Event(), threading.Event(), 0

    def __call__(self, _: Observation) -> Recommendation:
        self.calls += 1
        self.called.set()
        log.warning("waiting")
        self.released.wait()
        return Recommendation(3, "released")


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    policy = Blocking()
    yield policy
    policy.released.set()


class World:
    """Resources in a store. The clock goes on by 15 s with each message."""

    def __init__(self, *declared: Resource, limit_seconds: float = PATIENT, **threads: Any) -> None:
        self.now = NOW
        self.store = MemoryStateStore(lambda: self.now)
        self.resources = {each.name: each for each in declared}
        self.threads = PolicyThreads(limit_seconds, **threads)

    async def tick(self, name: str = "plan-1", value: float = 50) -> ScaleAction | None:
        self.now += timedelta(seconds=15)
        values = {CAPACITY_METRIC: 2.0, "backlog": value}
        sent = tuple(Metric(name, each, MetricValue(self.now, v)) for each, v in values.items())
        return await scaling_logic.process_samples(
            Samples(name, sent), self.resources, self.store, threads=self.threads
        )


async def test_while_a_policy_blocks_other_resources_are_decided(blocking: Blocking) -> None:
    world = World(resource(policy=blocking), resource("plan-2", policy=Threshold("backlog", 9, 1)))
    blocked = asyncio.create_task(world.tick())
    await asyncio.to_thread(blocking.called.wait)
    for _ in range(5):
        action = await world.tick("plan-2")
    assert action is not None
    assert action.target == 3
    assert not blocked.done()
    blocking.released.set()
    answered = await blocked
    assert answered is not None
    assert answered.target == 3


async def test_after_the_limit_samples_are_stored_and_the_capacity_is_held(
    blocking: Blocking, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(resource(policy=blocking), limit_seconds=0)
    for _ in range(3):
        assert await world.tick() is None
    assert blocking.called.wait()
    assert blocking.calls == 1, "while the policy runs, it is not called again"
    kept = (await world.store.load("plan-1")).state
    assert len(kept.histories["backlog"].samples) == 3
    assert kept.learned.trend.until is not None
    decided = [e for e in await world.store.log("plan-1") if e.kind is EntryKind.DECISION]
    told = "running since 2026-03-01 12:00:15 UTC and has not answered within 0 s; holding"
    assert [(e.current, e.desired, e.limited_by) for e in decided] == [
        (2, 2, ("policy_unanswered",))
    ] * 3
    assert all(told in entry.reason for entry in decided)
    assert decided[0].evidence["running_since"] == "2026-03-01T12:00:15Z"
    warned = [r for r in caplog.records if getattr(r, "action", "") == "policy_unanswered"]
    assert [r.levelno for r in warned] == [logging.WARNING] * 3
    world.store.override("plan-1", Override(exact=4, reason="by hand"))
    action = await world.tick()
    assert action is not None
    assert action.target == 4, "an override applies even then"
    warned = [r for r in caplog.records if getattr(r, "action", "") == "policy_unanswered"]
    assert len(warned) == 4, "each decision asks once, and no explanation asks again"

    workers = world.resources["plan-1"]
    for since in (NOW, world.now + timedelta(seconds=1)):
        observed = await notify.collect_news([workers], world.store, since, world.now, 30)
        (condition,) = [news for news in observed.conditions if news.kind == "policy.unanswered"]
        assert "since 2026-03-01 12:00:15" in condition.meaning

    blocking.released.set()
    world.threads.limit_seconds = PATIENT
    await world.tick()
    newest = (await world.store.log("plan-1", 1))[0]
    assert "policy_unanswered" not in newest.limited_by
    assert newest.candidates[0].reason == "released"
    observed = await notify.collect_news([workers], world.store, NOW, world.now, 30)
    assert "policy.unanswered" not in [news.kind for news in observed.conditions]


async def test_two_messages_at_once_wait_for_each_other(blocking: Blocking) -> None:
    world = World(resource(policy=blocking))
    both = [asyncio.create_task(world.tick()) for _ in range(2)]
    await asyncio.to_thread(blocking.called.wait)
    blocking.released.set()
    await asyncio.gather(*both)
    decided = [e for e in await world.store.log("plan-1") if e.kind is EntryKind.DECISION]
    assert len(decided) == 2
    assert not any("policy_unanswered" in entry.limited_by for entry in decided)


async def test_what_a_policy_logs_is_logged_by_the_task_that_waits() -> None:
    where = list[tuple[str, object, threading.Thread]]()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "rules":
                task, thread = asyncio.current_task(), threading.current_thread()
                where.append((record.getMessage(), task, thread))

    def talking(_: Observation) -> Recommendation:
        log.warning("in thread %s", threading.current_thread().daemon)
        return Recommendation(2, "enough")

    handlers = [Handler(), Handler(level=logging.ERROR)]
    for handler in handlers:
        logging.getLogger().addHandler(handler)
    try:
        await World(resource(policy=talking)).tick()
    finally:
        for handler in handlers:
            logging.getLogger().removeHandler(handler)
    assert where == [("in thread True", asyncio.current_task(), threading.current_thread())]


async def test_a_slow_policy_is_logged_with_its_time(caplog: pytest.LogCaptureFixture) -> None:
    def slow() -> list[str]:
        return [r.getMessage() for r in caplog.records if getattr(r, "action", "") == "slow_policy"]

    world = World(resource(), slow_seconds=PATIENT)
    await world.tick()
    assert slow() == []
    world.threads.slow_seconds = 0
    await world.tick()
    assert slow() == ["[slow_policy] plan-1: the policy took 0.0 s; the limit is 60 s"]


ENDS = """
import asyncio, threading
from tests.autoscaling.flows.test_policy_threads import World
from tests.builders import resource
blocking = resource(policy=lambda seen: threading.Event().wait())
asyncio.run(World(blocking, limit_seconds=0).tick())
print("ended")
"""


def test_a_policy_that_never_returns_does_not_delay_the_end_of_the_process() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENT,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "ended\n")
    assert "Traceback" not in ended.stderr


# --- what else would have been decided --------------------------------------------------------


async def test_only_a_change_or_a_preview_asks_the_policy_for_alternatives() -> None:
    values = list[float | None]()

    def counting(seen: Observation) -> Recommendation:
        values.append(seen.window("backlog").mean)
        return Threshold("backlog", 100, 10, minimum_samples=1)(seen)

    world = World(resource(policy=counting))
    await world.tick()
    assert values == [50], "a hold asks once"
    assert (await world.store.log("plan-1", 1))[0].counterfactual == ""

    capacities = MemoryCapacityControl(lambda: world.now, {"plan-1": 2})
    reader = MemoryReader(lambda: world.now, {SOURCE: 50}, capacities)
    asked = (world.resources["plan-1"], world.store, reader, 1)
    shown = await preview.make_preview(*asked, threads=world.threads)
    assert shown["counterfactual"].startswith("would have scaled in at backlog < ")

    values.clear()
    await world.tick(value=500)
    assert len(values) > 1
    changed = (await world.store.log("plan-1", 1))[0]
    assert changed.counterfactual.startswith("would have stayed at backlog < ")


async def test_a_policy_that_blocks_on_other_values_loses_only_the_explanation(
    blocking: Blocking,
) -> None:
    decision = Decision("plan-1", NOW, 2, 3, "more", (Recommendation(3, "more"),), applies=True)
    threads, busy = PolicyThreads(0), state([50, 50])
    workers = resource(policy=blocking, metrics={"backlog": SOURCE})
    while not blocking.called.is_set():  # one that is given up before it begins asks no policy
        assert await threads.explain(workers, busy, decision) == decision
    blocking.released.set()
    threads.limit_seconds = PATIENT
    assert (await threads.decide(workers, busy, NOW)).desired == 3
    assert blocking.calls == 2, "the search that nobody waits for has ended"


async def test_a_preview_of_a_policy_that_blocks_says_so(blocking: Blocking) -> None:
    world = World(resource(policy=blocking, mode=Mode.DRY_RUN))
    capacities = MemoryCapacityControl(lambda: world.now, {"plan-1": 2})
    reader = MemoryReader(lambda: world.now, {SOURCE: 50}, capacities)
    threads = PolicyThreads(0)
    asked = (world.resources["plan-1"], world.store, reader, 1)
    shown = await preview.make_preview(*asked, threads=threads)
    assert shown["limited_by"] == ["policy_unanswered"]


# --- policies that fail in unusual ways -------------------------------------------------------


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


SECRET = "AccountKey=c2VjcmV0c2VjcmV0c2VjcmV0"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(3), "SystemExit: 3"),
        (GeneratorExit(), "GeneratorExit"),
        (asyncio.CancelledError(), "CancelledError"),
        (
            Unprintable(),
            "Unprintable: its text cannot be shown, because __str__ raised RuntimeError",
        ),
        (ValueError(SECRET), "ValueError: AccountKey=***"),
    ],
)
def test_no_error_of_a_users_code_escapes(error: BaseException, told: str) -> None:
    """In a thread, as in the app: in the main thread, a KeyboardInterrupt is that of a person."""
    (checked,) = answers([lambda: _check_that_none_escapes(error, told)], 60)
    checked.result()


def _check_that_none_escapes(error: BaseException, told: str) -> None:
    def fails(_: Observation) -> Any:
        raise error

    class Described(Policy):
        """Fails in everything that it says about itself."""

        @property
        def metric_names(self) -> tuple[str, ...]:
            raise error

        utilisation_names = followed_metric = metric_names

        def problems(self) -> list[str]:
            raise error

        def __call__(self, _: Observation, /) -> Recommendation:
            return Recommendation(1, "fewer")

    held = decide(resource(policy=fails), state([50] * 3), NOW)
    assert held.reason == f"the policy raised {told}; holding"
    assert held.candidates[0].evidence["error"] == f"the policy raised {told}"
    conditional = scale_in_only_if(Described(), Condition("quiet", fails))
    assert f"it raised {told}" in decide(resource(policy=conditional), state([50]), NOW).reason
    step = advance(resource(policy=Described()), state([50]), [metric(40, -1)], NOW)
    assert step.decision is not None
    assert step.decision.desired == 1
    assert failing_policies([resource(policy=fails)])[0].startswith(
        f"resource 'plan-1': the policy raised {told}. "
    )
    (problem,) = problems([resource(policy=Described())])
    assert problem == f"resource 'plan-1': policy: cannot be checked: {told}"
    assert member("first", Described()) == [f"first: problems() raised {told}"]


def test_ctrl_c_of_a_person_is_no_error_of_the_policy(request: pytest.FixtureRequest) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def interrupted(_: Observation) -> Recommendation:
        signal.raise_signal(signal.SIGINT)
        return Recommendation(2, "not interrupted")

    with pytest.raises(KeyboardInterrupt):
        decide(resource(policy=interrupted), state([50]), NOW)


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError


class UnshowableDict(dict[str, int]):
    def __repr__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (Unshowable(), "<Unshowable instance at "),
        (UnshowableDict(), "a UnshowableDict that cannot be shown"),
        ([Unshowable()], "[<Unshowable instance at "),
        (tuple(range(10**6)), "(0, 1, 2"),
        ("x" * 10**6, "'xxx"),
        (Recommendation(2, Unshowable()), "the reason <Unshowable instance"),  # type: ignore[arg-type]
    ],
)
def test_what_a_policy_returns_is_shown_in_bounded_length(returned: Any, told: str) -> None:
    reason = decide(resource(policy=lambda _: returned), state([50]), NOW).reason
    assert f"the policy returned {told}" in reason
    assert len(reason) < 250


def test_a_policy_cannot_change_what_the_guards_see() -> None:
    def hostile(seen: Observation) -> Recommendation:
        object.__setattr__(seen.limits, "maximum", 99)
        object.__setattr__(seen.histories["backlog"], "samples", ())
        object.__setattr__(seen, "capacity", 50)
        object.__setattr__(seen, "limits", Limits(1, 99))
        for mapping in (seen.metrics, seen.histories):
            mapping.clear()  # type: ignore[attr-defined]
        return Recommendation(60, "more")

    missing = Guards(missing=Missing(180, "hold"), flap_projection=False)
    workers = resource(policy=hostile, guards=missing, limits=Limits(1, 5))
    known = state([50])
    for _ in range(2):
        decision = decide(workers, known, NOW)
        assert (decision.current, decision.desired, decision.limited_by) == (2, 5, ("bounds",))
    assert known == state([50])
    silent = replace(known, histories=state([]).histories)
    assert decide(workers, silent, NOW).limited_by == ("missing_data",)
    seen = Observation("plan-1", NOW, 2, Limits(1, 5), {})
    assert ask(lambda each: Recommendation(each.limits.maximum, "all"), seen).capacity == 5


def test_a_policy_sees_all_that_was_observed() -> None:
    windows = {"backlog": Window((sample(50),))}
    seen = Observation(
        "plan-1", NOW, 2, Limits(1, 5), windows, NOW, windows, Window((sample(2),)), desired(),
        Goal(7), Throughput(9, 3), WeekProfile((1.0,)), RateEstimate(RateSource.COUNTED, 9, 8, 0.1),
    )  # fmt: skip
    given: list[Observation] = []

    def watching(each: Observation) -> Recommendation:
        given.append(each)
        return Recommendation(2, "holding")

    ask(watching, seen)
    assert given == [seen]
    assert given[0] is not seen


# --- at start ---------------------------------------------------------------------------------


def test_a_policy_that_blocks_at_start_is_named_and_refuses_no_other(blocking: Blocking) -> None:
    blocked = resource(policy=blocking, limits=Limits(0, 5))
    other = resource("plan-2", limits=Limits(2, 1))
    assert problems([blocked, other], 1) == [
        "resource 'plan-1': limits.minimum = 0: must be a whole number of at least 1",
        "resource 'plan-2': limits.maximum = 1: must be at least limits.minimum = 2",
    ]
    (warning,) = failing_policies([resource(policy=blocking), resource("plan-2")], 1)
    assert warning.startswith(
        "resource 'plan-1': the policy has not answered within 1 s. Until this is fixed, the "
        "capacity does not change."
    )
