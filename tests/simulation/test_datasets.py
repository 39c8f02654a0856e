"""Simulates data sets whose processing outlasts the lock of their message.

The simulation delivers messages of one session twice, out of order, or under another id. Locks are
lost while a message is being processed, so that it is redelivered. Processing takes longer than a
function may run, and the function is then killed in the middle. Reads and writes of claims take
long. The claims' clock differs from that of the instances by minutes, and is set back and forward.
What must hold:

- no two messages process the same work at the same time, whatever time they believe it is;
- each work is recorded as done exactly once, unless the deliveries of its messages are used up;
- once the faults have stopped, the queue becomes empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import pytest

from local.twins.datasets import MemoryClaims
from shared.trends.datasets.claims import Claim
from shared.trends.datasets.errors import ClaimTaken
from shared.trends.datasets.flows import process_dataset
from shared.trends.datasets.processing import DatasetWork, decode_work, processing_message
from shared.values.messages import Message, Order, Result
from tests.builders import NOW
from tests.simulation.faults import pausing
from tests.simulation.scheduler import Crash, Outage, Scheduler, pause, sleep_until
from tests.simulation.seeds import seeds

FUNCTION_TIMEOUT = timedelta(minutes=5)
LOCK = timedelta(minutes=1)
"""A message whose lock could not be renewed is redelivered after this long."""
LOST_LOCK_RATE = 0.2
DELIVERIES_MAX = 10
SLOW_RATE = 0.5
PROCESSING_SECONDS_MAX = 480
"""Longer than a function may run."""
STORAGE_SLOW_RATE = 0.1
STORAGE_SECONDS_MAX = 200
SKEW = timedelta(minutes=7)
CLOCK_STEP = timedelta(minutes=10)
STEP_SECONDS = 10
HOSTILE, CALM = timedelta(hours=3), timedelta(hours=6)
WORKS = [DatasetWork(f"set-{n}", "2026-03-01", NOW, NOW + timedelta(days=1)) for n in range(12)]
MESSAGES = 4
"""How many messages each work has. All have ids of their own, as if duplicate detection had
forgotten the earlier ones."""
BETWEEN_WORKS, BETWEEN_MESSAGES = timedelta(minutes=10), timedelta(minutes=7)


@dataclass(eq=False)
class Queued:
    """A message in the queue. Its number stays the same in each delivery."""

    number: str
    message: Message
    due: datetime
    deliveries: int = 0
    at_work: int = 0


@pausing("take", "change", by=lambda claims: claims.world.storage_call())
class Claims(MemoryClaims):
    """Counts what is done. Some pauses are long."""

    def __init__(self, world: World) -> None:
        super().__init__(world.claims_now)
        self.world = world
        self.local_now = world.local_now

    async def change(self, claim: Claim, holder: str, *, done: bool) -> Claim:
        changed = await super().change(claim, holder, done=done)
        self.world.done[changed.work.message_id] += done
        return changed


class World:
    """A queue with duplicate detection, instances of the app, and the claims."""

    def __init__(self, seed: int, fault_rate: float, *, slow: bool) -> None:
        self.now, self.ahead, self.slow = NOW, timedelta(0), slow
        self.scheduler = Scheduler(seed, fault_rate, lambda: self.now)
        self.random = self.scheduler.random
        self.claims = Claims(self)
        self.queue: list[Queued] = []
        self.used_up: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.at_work: dict[str, Counter[str]] = {work.message_id: Counter() for work in WORKS}
        self.together: list[str] = []
        self._ids: set[str | None] = set()
        for place, work in enumerate(WORKS):
            for number in range(MESSAGES):
                due = NOW + place * BETWEEN_WORKS + self.random.random() * BETWEEN_MESSAGES
                self._enqueue(processing_message(work, f"{work.message_id}-{number}", due))

    # --- clocks ---

    def claims_now(self) -> datetime:
        return self.now + self.ahead

    def local_now(self) -> datetime:
        """The clock of an instance, which no flow may use."""
        skew = self.random.choice([-SKEW, SKEW]) if self.slow else timedelta(0)
        return self.claims_now() + skew

    # --- what the flow calls ---

    async def storage_call(self) -> None:
        await pause()
        if self.slow and self.random.random() < STORAGE_SLOW_RATE:
            await self._sleep(STORAGE_SECONDS_MAX)

    async def send(self, messages: Sequence[Message], _order: Order = Order.KEPT) -> Result:
        await pause()
        for message in messages:
            self._enqueue(message)
        await pause()
        return Result(len(messages), 1, 0, 0, 0, ())

    async def process(self, work: DatasetWork, holder: str) -> None:
        with self._noted(work, holder):
            await pause()
            if self.slow and self.random.random() < SLOW_RATE:
                await self._sleep(PROCESSING_SECONDS_MAX)

    @contextmanager
    def _noted(self, work: DatasetWork, holder: str) -> Iterator[None]:
        at_work = self.at_work[work.message_id]
        at_work[holder] += 1
        if len(+at_work) > 1:  # recorded instead of raised, because the flow would catch an error
            self.together.append(work.message_id)
        try:
            yield
        finally:
            at_work[holder] -= 1

    async def _sleep(self, seconds_max: float) -> None:
        seconds = self.random.uniform(0, seconds_max)
        await sleep_until(self.now + timedelta(seconds=seconds))

    # --- the queue and the host ---

    def _enqueue(self, message: Message) -> None:
        if message.message_id not in self._ids:
            self._ids.add(message.message_id)
            due = message.scheduled_at or self.now
            self.queue.append(Queued(str(len(self._ids)), message, due))

    def deliver(self) -> None:
        ready = [each for each in self.queue if each.due <= self.now and not each.at_work]
        if not ready:
            return
        queued = self.random.choice(ready)
        queued.deliveries += 1
        queued.at_work += 1
        lost = self.slow and self.random.random() < LOST_LOCK_RATE
        if lost:  # the message is redelivered while it is still being processed
            queued.at_work -= 1
            queued.due = self.now + LOCK
        dies_at = self.now + FUNCTION_TIMEOUT

        def ended(_result: object, error: BaseException | None) -> None:
            assert isinstance(error, None | Crash | Outage | ClaimTaken), error
            queued.at_work -= not lost
            self._settle(queued, failed=error is not None, lost=lost)

        assert isinstance(queued.message.body, bytes)
        work = decode_work(queued.message.body)
        recompute = partial(self.process, holder=queued.number)
        flow = process_dataset.process_data_set(work, queued.number, self.claims, recompute, self)
        self.scheduler.start(flow, ended, dies_at=dies_at)

    def _settle(self, queued: Queued, *, failed: bool, lost: bool) -> None:
        """Complete the message or return it to the queue. Neither is possible if its lock was
        lost."""
        if queued not in self.queue or lost:
            return
        if not failed:
            self.queue.remove(queued)
        elif queued.deliveries >= DELIVERIES_MAX:
            self.queue.remove(queued)
            assert isinstance(queued.message.body, bytes)
            self.used_up[decode_work(queued.message.body).message_id] += 1

    # --- time ---

    def run(self, lasts: timedelta) -> None:
        end = self.now + lasts
        while self.now < end:
            self.now += timedelta(seconds=STEP_SECONDS)
            if self.slow and self.random.random() < 0.01:
                self.ahead = self.random.choice([-CLOCK_STEP, timedelta(0)])
            self.deliver()
            for _ in range(3):
                self.scheduler.step()

    def calm(self) -> None:
        self.scheduler.fault_rate, self.slow = 0, False
        self.run(CALM)


def check_seed(seed: int) -> None:
    world = World(seed, (0.0, 0.05)[seed % 2], slow=seed % 4 >= 1)
    world.run(HOSTILE)
    world.calm()
    check(world, seed)


def check(world: World, seed: int) -> None:
    together = f"two messages processed {world.together} at the same time"
    assert not world.together, f"seed {seed}: {together}"
    assert not world.queue, f"seed {seed}: {world.queue}"
    for work in WORKS:
        name = work.message_id
        assert world.done[name] == 1 or world.used_up[name], f"seed {seed}: {name}, {world.done}"
        assert world.done[name] <= 1, f"seed {seed}: {name} was done more than once"


@pytest.mark.parametrize("seed", seeds(20))
def test_each_data_set_is_processed_once_and_by_one_message_at_a_time(seed: int) -> None:
    check_seed(seed)
