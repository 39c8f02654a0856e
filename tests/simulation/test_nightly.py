"""Instances that race and die around a cluster: no date runs twice at once, none is forgotten.

``make simulate ONLY=nightly`` tries more seeds, and replays one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import count

import pytest

from shared.adapters.nightly_memory import MemoryHerald, MemoryInputs, MemoryRunStore
from shared.news import News, Severity
from shared.nightly.errors import JobUnavailable, NightFailed
from shared.nightly.flows import night, recompute
from shared.nightly.flows.settle import Settler
from shared.nightly.model import (
    Demand,
    Job,
    JobPhase,
    JobStatus,
    Ledger,
    Run,
    RunPolicy,
    RunState,
    Submission,
)
from tests.builders import NOW
from tests.simulation.scheduler import Crash, Outage, Scheduler, pause
from tests.simulation.seeds import seeds

FUNCTION_TIMEOUT = timedelta(minutes=5)
POLICY = RunPolicy(parallel=2)
DATASET = "events"
MINUTE = timedelta(minutes=1)


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

    def runs(self, application: Application) -> bool:
        return application.ends_at is None or self.world.now < application.ends_at

    def start(self, job: Job) -> int:
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
        return len(self.applications) - 1


class Host:
    """One invocation of a function: it dies after five minutes at the latest."""

    def __init__(self, world: World) -> None:
        self.world, self.started = world, world.now

    async def pause(self) -> None:
        await pause()
        if self.world.now - self.started > FUNCTION_TIMEOUT:
            raise Crash


class Store(MemoryRunStore):
    """The memory twin with a pause before and after each call."""

    def __init__(self, host: Host) -> None:
        super().__init__(lambda: host.world.now)
        self.host = host
        self._demands, self._runs = host.world.truth._demands, host.world.truth._runs

    async def read(self, dataset: str) -> Ledger:
        await self.host.pause()
        ledger = await super().read(dataset)
        await self.host.pause()
        return ledger

    async def ask(self, dataset: str, demand: Demand) -> bool:
        await self.host.pause()
        new = await super().ask(dataset, demand)
        await self.host.pause()
        return new

    async def insert(self, run: Run) -> Run:
        await self.host.pause()
        run = await super().insert(run)
        await self.host.pause()
        return run

    async def replace(self, run: Run) -> Run:
        await self.host.pause()
        run = await super().replace(run)
        await self.host.pause()
        return run


class Submitter:
    """As for Livy: looks for the name first, then starts; each answer may be lost."""

    def __init__(self, host: Host) -> None:
        self.host, self.cluster = host, host.world.cluster

    async def submit(self, job: Job) -> Submission:
        try:
            await self.host.pause()
            for place, app in enumerate(self.cluster.applications):
                if app.name == job.token:
                    return Submission(str(place))
            await self.host.pause()
            handle = self.cluster.start(job)
            await self.host.pause()
        except Outage as error:
            raise JobUnavailable(str(error)) from error
        return Submission(str(handle))

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
        try:
            await self.host.pause()
        except Outage as error:
            raise JobUnavailable(str(error)) from error


class Herald(MemoryHerald):
    def __init__(self, host: Host) -> None:
        super().__init__(host.world.news)
        self.host = host

    async def tell(self, news: News) -> None:
        await self.host.pause()
        await super().tell(news)
        await self.host.pause()


class World:
    """A week, an app of several instances, and a cluster."""

    def __init__(self, seed: int, fault_rate: float) -> None:
        self.now = NOW
        self.fault_rate, self.scheduler = fault_rate, Scheduler(seed, fault_rate)
        self.truth = MemoryRunStore(lambda: self.now)
        self.cluster = Cluster(self)
        self.inputs = MemoryInputs({DATASET: {}})
        self.news: list[News] = []
        self._tokens = count()

    def settle(self) -> None:
        host = Host(self)
        settler = Settler(
            Store(host),
            Submitter(host),
            Herald(host),
            POLICY,
            lambda run: Job(run.token, (str(run.date),)),
            lambda day, number: f"{day}-{number}-{next(self._tokens)}",
        )
        self.scheduler.start(settler.run(DATASET))

    def night(self) -> None:
        host = Host(self)
        flow = night.run([DATASET], 3, Store(host), self.inputs, Herald(host))
        self.scheduler.start(flow, self._ended)

    def data_come(self, day: date) -> None:
        assert self.inputs.written is not None
        self.inputs.written[DATASET][day] = self.now
        start = datetime.combine(day, datetime.min.time(), NOW.tzinfo)
        flow = recompute.run(
            DATASET, start, start + timedelta(days=1), Store(Host(self)), self.inputs
        )
        self.scheduler.start(flow, self._ended)

    def _ended(self, _result: object, error: BaseException | None) -> None:
        if not isinstance(error, None | Crash | Outage | NightFailed):
            raise error

    def step(self, seconds: float) -> None:
        self.scheduler.step()
        self.now += timedelta(seconds=seconds)


def live(world: World) -> None:
    """Two days under faults, then peace until everything has settled."""
    randomly = world.scheduler.random
    for minute in range(0, 2 * 24 * 60, 5):
        if minute % 60 == 0 and randomly.random() < 0.2:
            day = world.now.date() - timedelta(days=randomly.randint(1, 4))
            world.data_come(day)
        if minute % (24 * 60) == 0:
            world.night()
        for _ in range(randomly.randint(0, 2)):
            world.settle()
        for _ in range(10):
            world.step(30)
    world.scheduler.fault_rate = 0
    world.scheduler.run_until_idle()
    for _ in range(4):
        world.night()
        world.scheduler.run_until_idle()
    for _ in range(24 * 20):
        world.settle()
        world.scheduler.run_until_idle()
        world.now += 10 * MINUTE


def check_seed(seed: int) -> Counter[RunState]:
    """Answers the ends that were met."""
    world = World(seed, fault_rate=(0, 0.02, 0.1)[seed % 3])
    live(world)
    return check(world)


@pytest.mark.parametrize("seed", seeds(40))
def test_no_date_runs_twice_at_once_and_each_is_done_or_given_up_and_told_of(seed: int) -> None:
    check_seed(seed)


def test_the_simulation_meets_every_end() -> None:
    outcomes = sum([check_seed(seed) for seed in range(9)], Counter[RunState]())
    assert all(outcomes[state] for state in RunState if state.ended), outcomes


def check(world: World) -> Counter[RunState]:
    assert not world.cluster.doubled, "a date ran already when its job was started"
    names = Counter(app.name for app in world.cluster.applications)
    assert set(names.values()) <= {1}, "a token starts one application"
    ledger = asyncio.run(world.truth.read(DATASET))
    assert ledger.open_runs == 0
    outcomes: Counter[RunState] = Counter()
    for day in ledger.days.values():
        assert day.demand is not None
        assert day.latest is not None, f"{day.date} was forgotten"
        assert day.latest.data_until == day.demand.data_until
        done = day.latest.state is RunState.SUCCEEDED
        assert done or day.latest.attempt == POLICY.attempts
        assert not day.latest.untold
        runs = world.truth.runs(DATASET, day.date)
        outcomes += Counter(run.state for run in runs)
        assert max(run.attempt for run in runs) <= POLICY.attempts
        told = [each for each in world.news if str(day.date) in each.headline]
        assert done or any(each.severity is Severity.ERROR for each in told)
        if not world.fault_rate:
            assert len(told) >= sum(run.state is not RunState.SUCCEEDED for run in runs)
    return outcomes
