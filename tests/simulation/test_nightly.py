"""Instances that race and die around a cluster: no date runs twice at once, none is forgotten.

In every second world time is slow: calls of the storage, and answers of whoever takes the jobs,
take longer than a function may run, and functions are killed in the middle; the store's clock is
minutes away from that of the instances, and is set back and forward by less than a lease outlasts
a function.

``make simulate ONLY=nightly`` tries more seeds, and replays one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from local.twins.nightly import MemoryInputs, MemoryNotifier, MemoryRunStore
from shared.notifications.selection import NotificationIntervals
from shared.trends.nightly.flows.demand import demand_nightly, demand_period
from shared.trends.nightly.flows.run_manager import RunManager
from shared.trends.nightly.model import (
    Job,
    JobPhase,
    JobStatus,
    JobUnavailable,
    NightFailed,
    RunPolicy,
    RunState,
    Submission,
)
from shared.trends.nightly.trend_news import run_notices
from shared.values.news import News, Severity
from tests.builders import NOW
from tests.simulation.faults import failing_as, pausing
from tests.simulation.scheduler import Crash, Outage, Scheduler, pause, sleep_until
from tests.simulation.seeds import seeds

FUNCTION_TIMEOUT = timedelta(minutes=5)
POLICY = RunPolicy(parallel=2)
DATASET = "events"
MINUTE = timedelta(minutes=1)
SLOW_RATE = 0.1
ON_ITS_WAY_SECONDS_MAX = 120
"""A job is taken so long after it was submitted, even where its submitter has died meanwhile."""
SLOW_SECONDS_MAX = 400
"""A call that takes longer than a function may run: nobody waits for its answer."""
SKEW = timedelta(minutes=7)
CLOCK_STEP = timedelta(minutes=10)


@dataclass
class Application:
    """What runs on the cluster until then; None: until it is cancelled."""

    job: Job
    name: str
    ends_at: datetime | None
    succeeds: bool
    forgotten: bool = False

    @property
    def day(self) -> str:
        return self.job.arguments[0]


class Cluster:
    """Starts what it is given, with the same name twice if need be: it is no help at all."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.applications: list[Application] = []
        self.doubled: list[Job] = []
        self._on_its_way: list[tuple[datetime, Job]] = []

    def take(self, job: Job) -> datetime:
        """The job is on its way; answers when it is started."""
        arrives = self.world.now
        if self.world.slow:
            seconds = self.world.scheduler.random.uniform(0, ON_ITS_WAY_SECONDS_MAX)
            arrives += timedelta(seconds=seconds)
        self._on_its_way.append((arrives, job))
        self.start_what_arrived()
        return arrives

    def start_what_arrived(self) -> None:
        for arrives, job in list(self._on_its_way):
            if arrives <= self.world.now:
                self._on_its_way.remove((arrives, job))
                self.start(job)

    def find(self, name: str) -> str | None:
        places = (str(place) for place, app in enumerate(self.applications) if app.name == name)
        return next(places, None)

    def runs(self, application: Application) -> bool:
        return application.ends_at is None or self.world.now < application.ends_at

    def start(self, job: Job) -> None:
        active = [app.day for app in self.applications if self.runs(app)]
        if job.arguments[0] in active:  # noted, for the flow would survive an error
            self.doubled.append(job)
        randomly = self.world.scheduler.random
        fate = randomly.random()
        minutes = randomly.choice([1, 5, 30, 100])
        ends_at = None if fate < 0.1 else self.world.now + minutes * MINUTE
        forgotten = ends_at is not None and randomly.random() < 0.1
        app = Application(job, job.token, ends_at, fate > 0.3, forgotten)
        self.applications.append(app)


class Host:
    """One invocation of a function: it dies after five minutes at the latest."""

    def __init__(self, world: World) -> None:
        self.world, self.dies_at = world, world.now + FUNCTION_TIMEOUT

    async def pause(self) -> None:
        """A call on its way, or an answer; some take long."""
        world = self.world
        await pause()
        if world.slow and world.scheduler.random.random() < SLOW_RATE:
            seconds = world.scheduler.random.uniform(0, SLOW_SECONDS_MAX)
            await sleep_until(world.now + timedelta(seconds=seconds))

    def local_now(self) -> datetime:
        """The clock of the instance: what no flow may go by."""
        skew = self.world.scheduler.random.choice([-SKEW, SKEW])
        return self.world.store_now() + (skew if self.world.slow else timedelta(0))


@pausing("read", "ask", "write", by=lambda store: store.host.pause())
class Store(MemoryRunStore):
    """The runs as one invocation reaches them."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.world.store_now)
        self.host = host
        self.local_now = host.local_now
        self.share(host.world.truth)


class Submitter:
    """As for Livy: looks for the name first, then starts; each answer may be lost."""

    def __init__(self, host: Host) -> None:
        self.host, self.cluster = host, host.world.cluster

    async def submit(self, job: Job) -> Submission:
        with failing_as(JobUnavailable("submit")):
            await self.host.pause()
            handle = self.cluster.find(job.token)
            if handle is None:
                await self.host.pause()
                await sleep_until(self.cluster.take(job))
                handle = self.cluster.find(job.token)
                await self.host.pause()
        assert handle is not None
        return Submission(handle)

    async def status(self, handle: str) -> JobStatus:
        await self._maybe_out()
        app = self.cluster.applications[int(handle)]
        if app.forgotten:
            return JobStatus(JobPhase.GONE)
        if self.cluster.runs(app):
            return JobStatus(JobPhase.RUNNING)
        return JobStatus(JobPhase.SUCCEEDED if app.succeeds else JobPhase.FAILED, "log", "bad luck")

    async def cancel(self, handle: str) -> None:
        await self._maybe_out()
        app = self.cluster.applications[int(handle)]
        if self.cluster.runs(app):
            app.ends_at, app.succeeds = self.host.world.now + 3 * MINUTE, False

    async def close(self) -> None: ...

    async def _maybe_out(self) -> None:
        with failing_as(JobUnavailable("no answer")):
            await self.host.pause()


class World:
    """A week, an app of several instances, and a cluster."""

    def __init__(self, seed: int, fault_rate: float, *, slow: bool) -> None:
        self.now, self.ahead, self.slow = NOW, timedelta(0), slow
        self.fault_rate = fault_rate
        self.scheduler = Scheduler(seed, fault_rate, lambda: self.now)
        self.truth = MemoryRunStore(lambda: self.now)
        self.cluster = Cluster(self)
        self.inputs = MemoryInputs({DATASET: {}})
        self.told: dict[str, News] = {}
        self._tokens = count()

    def settle(self) -> None:
        host = Host(self)
        run_manager = RunManager(
            Store(host),
            Submitter(host),
            POLICY,
            lambda run: Job(run.token, (str(run.date),)),
            lambda day, number: f"{day}-{number}-{next(self._tokens)}",
        )
        self._start(host, run_manager.advance_runs(DATASET), lambda _error: None)
        self.look()

    def look(self) -> None:
        """What the notifier reads."""
        since = self.store_now() - NotificationIntervals().look_back
        ledger = asyncio.run(self.truth.read(DATASET))
        self.told |= {each.news_id: each for each in run_notices(ledger, POLICY, since)}

    def night(self) -> None:
        host = Host(self)
        flow = demand_nightly([DATASET], 3, Store(host), self.inputs, MemoryNotifier())
        self._start(host, flow, self._ended)

    def data_come(self, day: date) -> None:
        assert self.inputs.written is not None
        self.inputs.written[DATASET][day] = self.now
        self.look()  # before new data replace what has failed
        start = datetime.combine(day, datetime.min.time(), NOW.tzinfo)
        host = Host(self)
        flow = demand_period(DATASET, start, start + timedelta(days=1), Store(host), self.inputs)
        self._start(host, flow, self._ended)

    def store_now(self) -> datetime:
        return self.now + self.ahead

    def set_clock(self) -> None:
        """The clock of the store is set, back or forward, or right again."""
        self.ahead = self.scheduler.random.choice([-CLOCK_STEP, timedelta(0)])

    def _start(
        self,
        host: Host,
        flow: Coroutine[Any, Any, Any],
        ended: Callable[[BaseException | None], None],
    ) -> None:
        self.scheduler.start(flow, lambda _result, error: ended(error), dies_at=host.dies_at)

    def _ended(self, error: BaseException | None) -> None:
        if not isinstance(error, None | Crash | Outage | NightFailed):
            raise error

    def step(self, seconds: float) -> None:
        self.cluster.start_what_arrived()
        self.scheduler.step()
        self.now += timedelta(seconds=seconds)


def live(world: World) -> None:
    """Two days under faults, then peace until everything has settled."""
    two_hostile_days(world)
    world.scheduler.fault_rate, world.slow = 0, False
    while world.scheduler.tasks:
        world.step(30)
    for _ in range(4):
        world.night()
        world.scheduler.run_until_idle()
    for _ in range(24 * 20):
        world.settle()
        world.scheduler.run_until_idle()
        world.now += 10 * MINUTE


def two_hostile_days(world: World) -> None:
    randomly = world.scheduler.random
    for minute in range(0, 2 * 24 * 60, 5):
        if minute % 60 == 0 and randomly.random() < 0.2:
            day = world.now.date() - timedelta(days=randomly.randint(1, 4))
            world.data_come(day)
        if minute % (24 * 60) == 0:
            world.night()
        if world.slow and randomly.random() < 0.05:
            world.set_clock()
        for _ in range(randomly.randint(0, 2)):
            world.settle()
        for step in range(30 if world.slow else 10):
            if world.slow and step % 6 == 0:
                world.settle()  # every minute, as the timer has it
            world.step(10 if world.slow else 30)


def check_seed(seed: int) -> None:
    world = World(seed, fault_rate=(0, 0.02, 0.1)[seed % 3], slow=seed % 2 == 1)
    live(world)
    check(world)


@pytest.mark.parametrize("seed", seeds(18))
def test_no_date_runs_twice_at_once_and_each_is_done_or_given_up_and_told_of(seed: int) -> None:
    check_seed(seed)


def check(world: World) -> None:
    assert not world.cluster.doubled, "a date ran already when its job was started"
    names = Counter(app.name for app in world.cluster.applications)
    assert set(names.values()) <= {1}, "a token starts one application"
    ledger = asyncio.run(world.truth.read(DATASET))
    assert ledger.open_runs == 0
    for day in ledger.days.values():
        assert day.demand is not None
        assert day.latest is not None, f"{day.date} was forgotten"
        assert day.latest.data_until == day.demand.data_until
        done = day.latest.state is RunState.SUCCEEDED
        assert done or day.latest.attempt == POLICY.attempts
        runs = world.truth.runs(DATASET, day.date)
        assert max(run.attempt for run in runs) <= POLICY.attempts
        told = [each for each in world.told.values() if str(day.date) in each.headline]
        assert done or any(each.severity is Severity.ERROR for each in told)
        if not world.fault_rate:
            assert len(told) >= sum(run.state is not RunState.SUCCEEDED for run in runs)
