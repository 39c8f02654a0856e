"""An unknown error: an event becomes a dead letter only if calls for other events succeed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TypeVar

import pytest

from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryBreakerStore, MemoryIngestionStore
from shared.ingestion.breaker.failure_window import TripRule
from shared.ingestion.breaker.state import Breaker, BreakerMode
from shared.ingestion.dead_letters.redrive import Redriver
from shared.ingestion.errors import BreakerOpen, HandlerTimedOut
from shared.ingestion.events import ingest
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.breaker_client import BreakerClient
from shared.ingestion.events.handling import PROBES_MAX, Doubt, doubted, evidence, limited
from shared.ingestion.events.ingest import PartitionPipeline
from shared.ingestion.model import Effect, Event, FailureKind
from shared.values.concurrency import task_runner
from tests.builders import NOW
from tests.ingestion.flows import STREAM, consumer

T = TypeVar("T")
NO_LIMITS = TripRule(failures_max=None, failure_ratio_max=None)
"""With it, only a doubt opens the breaker."""


@dataclass
class Hub:
    """Partitions that the host delivers every five seconds, each to an instance of its own.

    ``bad`` events always fail; while ``is_down``, every event does. Calls of events that ``hang``
    never end, and neither does any call while the database hangs.
    """

    partitions: int = 1
    bad: set[int] = field(default_factory=set)
    hang: set[int] = field(default_factory=set)
    is_down: bool = False
    database_hangs: bool = False
    key_of: Callable[[int], str | None] = lambda _sequence: None
    rule: TripRule = NO_LIMITS

    def __post_init__(self) -> None:
        self.seconds, self.calls = 0.0, 0
        self.waiting: list[list[Event]] = [[] for _ in range(self.partitions)]
        self.store = MemoryIngestionStore(lambda: NOW + timedelta(seconds=self.seconds))
        self.breakers = MemoryBreakerStore(lambda: NOW + timedelta(seconds=self.seconds))
        self.announced: list[str] = []
        self.handled: list[int] = []
        self.lines = [self.line(str(n)) for n in range(self.partitions)]

    def line(self, partition_id: str) -> PartitionPipeline:
        stream = replace(STREAM, partition_id=partition_id)
        handle, writer = limited(self.handle, 0.01), Writer(partition_id)
        made = consumer(
            self.store, MemoryHubReader(), handle, stream, writer, self.retry, task_runner(3)
        )
        client = BreakerClient(
            f"i{partition_id}", self.breakers, self.announce, self.rule, elapsed=self.elapsed
        )
        return PartitionPipeline(made, client, self.send, self.elapsed)

    def elapsed(self) -> float:
        return self.seconds

    async def retry(
        self, attempt: Callable[[], Awaitable[T]], worth: Callable[[Exception], bool]
    ) -> T:
        for wait in (0.1, 0.2, 0.4, 0.8):
            try:
                return await attempt()
            except Exception as error:
                if not worth(error):
                    raise
            self.seconds += wait
        return await attempt()

    async def handle(self, event: Event) -> Effect:
        self.seconds += 0.01
        self.calls += 1
        if self.database_hangs or event.sequence in self.hang:
            self.seconds += 60
            await asyncio.Event().wait()
        if self.is_down or event.sequence in self.bad:
            raise KeyError("device")
        self.handled.append(event.sequence)
        return Effect(event.sequence, "done")

    async def send(self, messages: Iterable[object]) -> None: ...

    async def announce(self, breaker: Breaker) -> None:
        self.announced.append(breaker.reason)

    def add(self, *sequences: int, partition: int = 0) -> None:
        self.waiting[partition] += [Event(n, str(n), NOW, b"", self.key_of(n)) for n in sequences]

    async def run(self, seconds: float, *, arriving: tuple[int, ...] = ()) -> None:
        """Deliver for some time. To the partitions ``arriving`` one event is added each time."""
        end = self.seconds + seconds
        while self.seconds < end:
            for number, line in enumerate(self.lines):
                if number in arriving:
                    last = self.waiting[number][-1].sequence if self.waiting[number] else -1
                    self.add(last + 1, partition=number)
                first = self.accounted(number)
                if batch := [e for e in self.waiting[number] if e.sequence >= first][:100]:
                    with suppress(KeyError, HandlerTimedOut, BreakerOpen):
                        await ingest.ingest_batch(batch, line)
            self.seconds += 5

    def accounted(self, partition: int = 0) -> int:
        checkpoint = self.store.rows[self.lines[partition].consumer.stream].checkpoint
        return checkpoint.sequence + 1 if checkpoint else 0

    def dead(self, partition: int = 0) -> list[int]:
        return sorted(self.store.rows[self.lines[partition].consumer.stream].dead_letters)

    async def mode(self) -> BreakerMode:
        return (await self.breakers.load()).breaker.mode


@pytest.mark.parametrize(
    ("partitions", "waiting", "key"), [(1, 2, None), (1, 50, "k"), (3, 2, "k"), (3, 50, None)]
)
async def test_an_outage_with_unknown_errors_dead_letters_nothing(
    partitions: int, waiting: int, key: str | None
) -> None:
    hub = Hub(partitions, key_of=lambda _: key)
    for partition in range(partitions):
        hub.add(*range(5), partition=partition)
    await hub.run(10)
    hub.is_down = True
    for partition in range(partitions):
        hub.add(*range(5, 5 + waiting), partition=partition)
    await hub.run(3600)
    assert [hub.accounted(n) for n in range(partitions)] == [5] * partitions, "held"
    assert "fails, and no call succeeds: KeyError: 'device'" in hub.announced[0]
    assert len(hub.announced) == 1
    hub.is_down = False
    await hub.run(1800)
    assert [hub.dead(n) for n in range(partitions)] == [[]] * partitions
    assert [hub.accounted(n) for n in range(partitions)] == [5 + waiting] * partitions


@pytest.mark.parametrize(
    ("bad", "key_of"),
    [
        ({0, 1, 2, 3, 4, 9}, lambda _: None),
        ({4, 6, 8}, lambda n: "ab"[n % 2]),
        ({4, 5}, lambda n: "abc"[n % 3]),
    ],
)
async def test_an_event_that_alone_fails_becomes_a_dead_letter_in_its_first_batch(
    bad: set[int], key_of: Callable[[int], str | None]
) -> None:
    hub = Hub(bad=bad, key_of=key_of)
    hub.add(*range(10))
    await hub.run(1)
    assert (hub.accounted(), hub.dead()) == (10, sorted(bad))
    assert await hub.mode() is BreakerMode.CLOSED
    letter = next(iter(hub.store.rows[hub.lines[0].consumer.stream].dead_letters.values()))
    assert (letter.kind, letter.attempts) == (FailureKind.EXHAUSTED, 6)
    for key in {key_of(n) for n in range(10)} - {None}:
        of_key = list(dict.fromkeys([n for n in hub.handled if key_of(n) == key]))
        assert of_key == sorted(of_key), "the order within a key"


@pytest.mark.parametrize("rule", [NO_LIMITS, TripRule()])
async def test_successes_of_other_instances_show_that_an_event_is_at_fault(rule: TripRule) -> None:
    hub = Hub(partitions=2, bad={3}, key_of=lambda _: "k", rule=rule)
    hub.add(*range(3, 6))
    hub.add(10, partition=1)
    await hub.run(40, arriving=(1,))
    assert (hub.accounted(), hub.dead()) == (6, [3])
    assert (await hub.mode(), hub.announced) == (BreakerMode.CLOSED, [])


async def test_a_lone_event_on_a_quiet_hub_becomes_a_dead_letter_after_three_probes() -> None:
    hub = Hub(bad={0})
    hub.add(0)
    await hub.run(200)
    assert (hub.dead(), len(hub.announced)) == ([], 1)
    await hub.run(100)
    assert hub.dead() == [0]
    hub.add(*range(1, 20))
    await hub.run(120)
    assert (hub.accounted(), hub.dead(), await hub.mode()) == (20, [0], BreakerMode.CLOSED)


async def test_bad_events_of_one_key_end_after_three_probes_if_a_later_one_succeeds() -> None:
    hub = Hub(bad={0, 1}, key_of=lambda _: "k")
    hub.add(*range(20))
    await hub.run(400)
    assert (hub.accounted(), hub.dead(), await hub.mode()) == (20, [0, 1], BreakerMode.CLOSED)
    assert hub.handled == list(range(2, 20)), "in order, each once"


async def test_successes_before_an_outage_do_not_blame_its_events() -> None:
    hub = Hub()
    await hub.run(60, arriving=(0,))
    hub.is_down = True
    hub.add(*range(hub.accounted(), hub.accounted() + 5))
    await hub.run(15)
    hub.is_down = False
    await hub.run(60)
    assert (hub.dead(), len(hub.handled)) == ([], hub.accounted())


# --- calls that do not end --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hang", "key_of"),
    [({4}, lambda _: None), ({0, 5}, lambda _: None), ({0, 9}, lambda n: "abc"[n % 3])],
)
async def test_an_event_whose_call_alone_does_not_end_becomes_a_dead_letter(
    hang: set[int], key_of: Callable[[int], str | None]
) -> None:
    hub = Hub(hang=hang, key_of=key_of)
    hub.add(*range(10))
    await hub.run(1)
    assert (hub.accounted(), hub.dead()) == (10, sorted(hang))
    letters = hub.store.rows[hub.lines[0].consumer.stream].dead_letters.values()
    assert {each.error for each in letters} == {"the call took longer than 0.01 s"}
    assert {each.attempts for each in letters} == {2}, "not five times the limit"


@pytest.mark.parametrize(
    ("key_of", "rule"),
    [(lambda _: None, NO_LIMITS), (lambda _: "k", TripRule()), (lambda n: f"k{n}", NO_LIMITS)],
)
async def test_a_database_that_hangs_opens_the_breaker_and_dead_letters_nothing(
    key_of: Callable[[int], str | None], rule: TripRule
) -> None:
    hub = Hub(key_of=key_of, rule=rule)
    hub.add(*range(5))
    await hub.run(1)
    hub.database_hangs = True
    hub.add(*range(5, 45))
    began = hub.seconds
    while not hub.announced:
        await hub.run(1)
    assert hub.seconds - began <= 310, "here the calls wait one after the other"
    calls = hub.calls
    await hub.run(3600)
    assert (hub.accounted(), hub.dead()) == (5, [])
    hub.database_hangs = False
    await hub.run(1800)
    assert (hub.accounted(), hub.dead(), await hub.mode()) == (45, [], BreakerMode.CLOSED)
    assert calls < 100


async def test_events_finished_before_a_call_that_does_not_end_are_committed() -> None:
    hub = Hub(hang={3}, key_of=lambda _: "k")
    hub.add(*range(6))
    await hub.run(1)
    assert (hub.accounted(), hub.dead(), hub.handled) == (3, [], [0, 1, 2])


async def test_a_time_out_of_the_handlers_own_is_an_outage() -> None:
    async def handle(_event: Event) -> Effect:
        raise TimeoutError("the database does not answer")

    with pytest.raises(TimeoutError, match="the database"):
        await limited(handle, 60)(Event(0, "0", NOW, b""))


async def test_a_redriven_event_whose_call_does_not_end_is_tried_once_and_stays_a_dead_letter() -> (
    None
):
    hub = Hub(hang={1})
    hub.add(0, 1, 2)
    await hub.run(1)
    consumer, calls = hub.lines[0].consumer, hub.calls
    letters = await hub.store.dead_letters(consumer.stream, None, 9)
    redriver = Redriver(hub.store, MemoryHubReader(), lambda _: consumer.handle, hub.retry)
    outcome = await redriver.redrive(letters)
    reasons = [reason for _, reason in outcome.failed]
    assert reasons == ["the call took longer than 0.01 s"]
    assert hub.calls == calls + 1


@pytest.mark.parametrize(
    ("probes", "probing", "others_succeeded", "at_fault", "last_probe"),
    [
        (0, False, False, None, None),
        (0, False, True, 7, None),
        (PROBES_MAX - 2, True, False, None, None),
        (PROBES_MAX - 1, True, False, None, 7),
        (PROBES_MAX - 1, True, True, 7, 7),
        (PROBES_MAX - 1, False, False, None, None),
        (PROBES_MAX, False, False, None, None),
        (PROBES_MAX, True, False, None, 7),
    ],
)
def test_only_a_probe_may_be_the_last_one_of_an_event_in_doubt(
    probes: int,
    probing: bool,
    others_succeeded: bool,
    at_fault: int | None,
    last_probe: int | None,
) -> None:
    """A batch after the breaker was closed by hand is no probe."""
    known = evidence(
        Doubt(7, NOW, probes), lambda: 3, others_succeeded=others_succeeded, probing=probing
    )
    assert (known.at_fault, known.last_probe) == (at_fault, last_probe)
    again = doubted(Doubt(7, NOW, probes), 7, NOW + timedelta(hours=1), probing=probing)
    assert again == Doubt(7, NOW, probes + probing)
    later = NOW + timedelta(hours=1)
    other = doubted(Doubt(7, NOW, probes), 8, later, probing=probing)
    assert other == doubted(None, 8, later, probing=probing) == Doubt(8, later, int(probing))
