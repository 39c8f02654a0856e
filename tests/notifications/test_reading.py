"""How much the notifier reads: what is new, an overlap, and what is still to be told."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from shared.adapters.memory.autoscaling import MemoryStateStore
from shared.adapters.memory.notifications import MemoryNotificationStore
from shared.autoscaling.deciding.decide import LogEntry
from shared.autoscaling.declaring import Limits
from shared.autoscaling.errors import StateUnreadable
from shared.autoscaling.flows import notify as resource_news
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import Snapshot
from shared.notifications import flow
from shared.notifications.news import News, NewsKind
from shared.notifications.ports import NotificationConflict, Observed, SourceProgress
from shared.notifications.selection import OVERLAP, NotificationIntervals, read_from
from tests.builders import NOW, SOURCE, resource
from tests.notifications.test_notifications import MINUTE, PATIENCE, People, World

MANY = ("backlog", "orders", "dead")


class Reading(World):
    """Knows from when on it was asked each time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[datetime] = []

    async def look(self, since: datetime, now: datetime) -> Observed:
        self.asked.append(since)
        return await super().look(since, now)


async def test_a_look_goes_on_where_the_last_one_left_off_with_an_overlap() -> None:
    world = Reading()
    for _ in range(3):
        await world.minute()
    assert world.asked[0] == NOW + MINUTE - PATIENCE.look_back
    assert world.asked[1:] == [NOW + n * MINUTE - OVERLAP for n in (1, 2)]


async def test_what_was_held_back_is_read_until_it_is_told_and_then_no_more() -> None:
    world = Reading()
    world.happen("1")
    await world.minute()
    held_at = world.now
    world.happen("2")
    told = [await world.minute() for _ in range(16)]
    assert [news.news_id for each in told for news in each] == ["2"]
    assert set(world.asked[2:15]) == {held_at - OVERLAP}
    await world.minute()
    assert world.asked[-1] == world.now - MINUTE - OVERLAP


async def test_while_nobody_can_be_told_nothing_is_passed_over_and_reading_stays_bounded() -> None:
    world = Reading()
    await world.minute()
    world.happen("1")
    happened_at, world.people.away = world.now, True
    spans = []
    for _ in range(200):
        await world.minute()
        spans.append(world.now - world.asked[-1])
    assert set(world.asked[1:70]) == {happened_at - OVERLAP}
    assert max(spans) == PATIENCE.look_back
    world.people.away = False
    world.happen("2")
    assert [news.news_id for news in await world.minute()] == ["2"]


async def test_a_place_that_fails_is_gone_on_with_where_it_was_and_others_where_they_are() -> None:
    world, other = Reading(), Reading()
    sources = {"world": world.look, "other": other.look}

    async def minute() -> None:
        world.now += MINUTE
        await flow.run(sources, world.records, world.people, PATIENCE)

    await minute()
    world.broken = True
    for _ in range(10):
        await minute()
    assert set(world.asked[1:]) == {NOW + MINUTE - OVERLAP}
    assert other.asked[-1] == world.now - MINUTE - OVERLAP


class OddMemories(MemoryNotificationStore):
    """Cannot remember looks: another instance is faster, or the table is gone."""

    error: Exception = NotificationConflict("world")

    async def save_progress(self, _source: str, _look: SourceProgress) -> None:
        raise self.error


@pytest.mark.parametrize("error", [NotificationConflict("world"), OSError("gone")])
async def test_a_look_that_is_not_remembered_is_made_again_and_tells_nothing_twice(
    error: Exception,
) -> None:
    world = Reading()
    odd = OddMemories(lambda: world.now)
    odd.error = error
    world.records = odd
    world.happen("1")
    told = [*await world.minute(), *await world.minute(30), *await world.minute(30)]
    assert [news.news_id for news in told] == ["1"]
    assert world.asked[-1] == world.now - PATIENCE.look_back


async def test_conditions_of_what_cannot_be_asked_go_on_and_those_of_others_end() -> None:
    people, clock = People(), {"now": NOW}
    memories = MemoryNotificationStore(lambda: clock["now"])
    observed = {"seen": Observed()}

    async def look(_since: datetime, _now: datetime) -> Observed:
        return observed["seen"]

    lasting = [
        News("", NewsKind.SOURCE_STALE, subject, NOW, "no sample")
        for subject in ("plan-1/backlog", "plan-10/backlog", "plan-1")
    ]
    for seen in (Observed((), lasting), Observed((), (), ["plan-1"])):
        observed["seen"] = seen
        clock["now"] += 20 * MINUTE
        await flow.run({"world": look}, memories, people, PATIENCE)
    over = [news.subject for news in people.read if news.kind.endswith(".over")]
    assert over == ["plan-10/backlog"]


class Counting(MemoryStateStore):
    """Knows how many lines were read, and of which resource the state cannot be."""

    lines_read = 0
    unreadable = ""

    async def log(
        self, resource_name: str, limit: int = 50, since: datetime | None = None
    ) -> list[LogEntry]:
        found = await super().log(resource_name, limit, since)
        self.lines_read += len(found)
        return found

    async def load(self, resource_name: str) -> Snapshot:
        found = await super().load(resource_name)
        if resource_name == self.unreadable:
            raise StateUnreadable(f"{resource_name}: row 'desired' cannot be read", found.read_at)
        return found


class Fleet:
    """Resources that decide every 15 s on three metrics, and the notifier beside them."""

    def __init__(self, *names: str, **changes: object) -> None:
        self.now = NOW
        self.store = Counting(lambda: self.now)
        metrics = dict.fromkeys(MANY, SOURCE)
        made = [resource(name, metrics=metrics, **changes) for name in names]
        self.resources: Mapping[str, Resource] = {each.name: each for each in made}
        self.records = MemoryNotificationStore(lambda: self.now)
        self.people = People()

    async def decide(self, value: float = 50, capacity: float = 2) -> None:
        for name in self.resources:
            for metric in (CAPACITY_METRIC, *MANY):
                level = capacity if metric == CAPACITY_METRIC else value
                sent = Metric(name, metric, MetricValue(self.now, level))
                with suppress(StateUnreadable):
                    await scaling_logic.run(sent, self.resources, self.store)

    async def look(self, since: datetime, now: datetime) -> Observed:
        return await resource_news.run(self.resources.values(), self.store, since, now, 30)

    async def notify(self) -> int:
        self.store.lines_read = 0
        await flow.run({"resources": self.look}, self.records, self.people, NotificationIntervals())
        return self.store.lines_read

    async def minutes(self, count: int) -> list[int]:
        """Lines that each look has read."""
        read = []
        for _ in range(count):
            for _ in range(4):
                self.now += timedelta(seconds=15)
                await self.decide()
            read.append(await self.notify())
        return read


async def test_a_minutely_look_reads_minutes_of_decisions_and_not_hours() -> None:
    fleet = Fleet("plan-1")
    read = await fleet.minutes(50)
    every_minute = 4 * len(MANY)
    assert max(read[-40:]) <= 7 * every_minute
    assert len(await fleet.store.log("plan-1", 10_000)) >= 50 * every_minute


async def test_being_at_the_maximum_goes_on_while_nothing_is_decided() -> None:
    fleet = Fleet("plan-1", limits=Limits(1, 2))
    for _ in range(5 * 4):
        fleet.now += 2 * MINUTE
        await fleet.decide(1e6, 2)
        await fleet.notify()
    assert [news.kind for news in fleet.people.read][-1] == NewsKind.AT_MAXIMUM
    for _ in range(20):  # no sample comes
        fleet.now += 2 * MINUTE
        assert await fleet.notify() < 100
    assert "at.maximum.over" not in [news.kind for news in fleet.people.read]


async def test_a_resource_whose_state_cannot_be_read_is_told_and_hides_no_other() -> None:
    fleet = Fleet("plan-1", "plan-2")
    await fleet.minutes(1)
    fleet.now += 10 * MINUTE  # now every metric of both is stale
    await fleet.notify()
    assert {news.subject for news in fleet.people.read if news.kind == NewsKind.SOURCE_STALE} == {
        f"{name}/{metric}" for name in fleet.resources for metric in (CAPACITY_METRIC, *MANY)
    }
    fleet.store.unreadable = "plan-1"
    await fleet.minutes(20)
    kinds = {(news.kind, news.subject) for news in fleet.people.read}
    assert (NewsKind.UNREADABLE, "plan-1") in kinds
    assert ("source.stale.over", "plan-2/backlog") in kinds
    assert ("source.stale.over", "plan-1/backlog") not in kinds
    fleet.store.unreadable = ""
    await fleet.minutes(20)
    kinds = {(news.kind, news.subject) for news in fleet.people.read}
    assert {("state.unreadable.over", "plan-1"), ("source.stale.over", "plan-1/backlog")} <= kinds


def test_a_look_from_before_the_clock_was_set_back_passes_nothing_over() -> None:
    intervals = NotificationIntervals()
    earliest = NOW - intervals.look_back
    for until in (NOW + timedelta(minutes=10), datetime.max.replace(tzinfo=UTC)):
        assert read_from(until, NOW, intervals) == earliest
    assert read_from(datetime.min.replace(tzinfo=UTC), NOW, intervals) == earliest
    assert read_from(NOW, NOW, intervals) > earliest
