"""How far back the notifier reads: new news, an overlap, and news that are still to be sent."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest

from local.twins.autoscaling import MemoryStateStore
from local.twins.notifications import MemoryNotificationStore
from shared.autoscaling.deciding.decide import LogEntry
from shared.autoscaling.declaring import Limits, Mode
from shared.autoscaling.errors import StateUnreadable
from shared.autoscaling.flows import notify as resource_news
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.flows.override import set_override
from shared.autoscaling.operating.overrides import Change
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import Override
from shared.notifications import flow
from shared.notifications.conditions import LastingCondition
from shared.notifications.ports import Observed
from shared.notifications.selection import Notification, NotificationIntervals
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.values.news import NewsKind, Severity
from tests.builders import NOW, SOURCE, as_message, resource
from tests.notifications.test_notifications import INTERVALS, MINUTE, Recipient, World

MANY = ("backlog", "orders", "dead")


class Reading(World):
    """A source that keeps from which time on it is read, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[datetime] = []
        self.times: list[datetime] = []

    async def source(self, since: datetime, now: datetime) -> Observed:
        self.asked.append(since)
        self.times.append(now)
        return await super().source(since, now)


async def test_events_are_read_again_but_sent_once_until_they_are_too_old() -> None:
    world = Reading()
    world.happen("1")
    sent = [*await world.minute(), *await world.minute(30), *await world.minute(30)]
    assert [news.news_id for news in sent] == ["1"]
    ages = {now - since for since, now in zip(world.asked, world.times, strict=True)}
    assert ages == {INTERVALS.look_back}


async def test_an_event_that_is_held_back_is_sent_after_the_quiet_interval() -> None:
    world = Reading()
    world.happen("1")
    await world.minute()
    world.happen("2")
    sent = [await world.minute() for _ in range(16)]
    assert [news.news_id for each in sent for news in each] == ["2"]


async def test_an_event_is_sent_once_sending_succeeds_unless_it_is_too_old() -> None:
    world = Reading()
    world.happen("1")
    world.recipient.unreachable = True
    await world.minute(70)
    world.happen("2")
    await world.minute(20)
    world.recipient.unreachable = False
    assert [news.news_id for news in await world.minute()] == ["2"]


async def test_conditions_of_unread_subjects_last_and_those_of_other_subjects_end() -> None:
    recipient, clock = Recipient(), {"now": NOW}
    store = MemoryNotificationStore(lambda: clock["now"])
    observed = {"latest": Observed()}

    async def source(_since: datetime, _now: datetime) -> Observed:
        return observed["latest"]

    lasting = [
        LastingCondition(subject, Severity.WARNING, "no sample", kind=NewsKind.SOURCE_STALE)
        for subject in ("plan-1/backlog", "plan-10/backlog", "plan-1")
    ]
    for latest in (Observed((), lasting), Observed((), (), ["plan-1"])):
        observed["latest"] = latest
        clock["now"] += 20 * MINUTE
        await flow.send_due_notifications({"world": source}, store, {"": recipient}, INTERVALS)
    over = [news.subject for news in recipient.received if news.kind.endswith(".over")]
    assert over == ["plan-10/backlog"]


class Counting(MemoryStateStore):
    """Counts the lines that are read. The state of the resource ``unreadable`` cannot be read."""

    lines_read = 0
    unreadable = ""

    async def log(self, *args: Any, **kwargs: Any) -> list[LogEntry]:
        lines = await super().log(*args, **kwargs)
        self.lines_read += len(lines)
        return lines

    async def load(self, resource_name: str) -> Snapshot:
        snapshot = await super().load(resource_name)
        if resource_name == self.unreadable:
            text = f"{resource_name}: row 'desired' cannot be read"
            raise StateUnreadable(text, snapshot.read_at)
        return snapshot


class Fleet:
    """Resources that decide every 15 s on three metrics, and the notifier beside them."""

    def __init__(self, *names: str, **changes: object) -> None:
        self.now = NOW
        self.store = Counting(lambda: self.now)
        metrics = dict.fromkeys(MANY, SOURCE)
        declared = [resource(name, metrics=metrics, **changes) for name in names]
        self.resources: Mapping[str, Resource] = {each.name: each for each in declared}
        self.records = MemoryNotificationStore(lambda: self.now)
        self.recipient = Recipient()

    async def decide(self, value: float = 50, capacity: float = 2) -> None:
        for name in self.resources:
            for metric in (CAPACITY_METRIC, *MANY):
                level = capacity if metric == CAPACITY_METRIC else value
                sent = Metric(name, metric, MetricValue(self.now, level))
                with suppress(StateUnreadable):
                    await scaling_logic.process_samples(
                        as_message(sent), self.resources, self.store
                    )

    async def source(self, since: datetime, now: datetime) -> Observed:
        return await resource_news.collect_news(self.resources.values(), self.store, since, now, 30)

    async def notify(self) -> int:
        self.store.lines_read = 0
        sources = {"resources": self.source}
        await flow.send_due_notifications(
            sources, self.records, {"": self.recipient}, NotificationIntervals()
        )
        return self.store.lines_read

    async def minutes(self, count: int) -> list[int]:
        """The number of lines that each run of the notifier reads."""
        read = []
        for _ in range(count):
            for _ in range(4):
                self.now += timedelta(seconds=15)
                await self.decide()
            read.append(await self.notify())
        return read


async def test_a_notifier_that_runs_every_minute_reads_minutes_of_the_log_and_not_hours() -> None:
    fleet = Fleet("plan-1")
    read = await fleet.minutes(50)
    every_minute = 4 * len(MANY)
    assert max(read[-40:]) <= 7 * every_minute
    assert len(await fleet.store.log("plan-1", 10_000)) >= 50 * every_minute


async def test_the_condition_at_maximum_lasts_while_no_decisions_are_made() -> None:
    fleet = Fleet("plan-1", limits=Limits(1, 2))
    for _ in range(5 * 4):
        fleet.now += 2 * MINUTE
        await fleet.decide(1e6, 2)
        await fleet.notify()
    assert [news.kind for news in fleet.recipient.received][-1] == NewsKind.AT_MAXIMUM
    for _ in range(20):  # without any sample
        fleet.now += 2 * MINUTE
        assert await fleet.notify() < 100
    assert "at.maximum.over" not in [news.kind for news in fleet.recipient.received]


async def test_a_resource_whose_state_cannot_be_read_is_reported_and_hides_no_other() -> None:
    fleet = Fleet("plan-1", "plan-2")
    await fleet.minutes(1)
    fleet.now += 10 * MINUTE  # now every metric of both is stale
    await fleet.notify()
    assert {
        news.subject for news in fleet.recipient.received if news.kind == NewsKind.SOURCE_STALE
    } == {f"{name}/{metric}" for name in fleet.resources for metric in (CAPACITY_METRIC, *MANY)}
    fleet.store.unreadable = "plan-1"
    await fleet.minutes(20)
    kinds = {(news.kind, news.subject) for news in fleet.recipient.received}
    assert (NewsKind.UNREADABLE, "plan-1") in kinds
    assert ("source.stale.over", "plan-2/backlog") in kinds
    assert ("source.stale.over", "plan-1/backlog") not in kinds
    fleet.store.unreadable = ""
    await fleet.minutes(20)
    kinds = {(news.kind, news.subject) for news in fleet.recipient.received}
    assert {("state.unreadable.over", "plan-1"), ("source.stale.over", "plan-1/backlog")} <= kinds


@pytest.mark.parametrize("lasts", [timedelta(hours=2), None])
async def test_a_pause_with_an_end_silences_conditions_until_then_and_ends_none(
    lasts: timedelta | None,
) -> None:
    fleet = Fleet("plan-1")
    await fleet.minutes(1)
    fleet.now += 10 * MINUTE  # now every metric is stale
    await fleet.notify()
    pause = Change(Override(Mode.PAUSED, "deployment"), "anna", "1", lasts)
    await set_override(fleet.resources["plan-1"], pause, fleet.store)
    count = len(fleet.recipient.received)
    await fleet.minutes(100)
    over = {news.kind for news in fleet.recipient.received[count:]}
    assert ("source.stale.over" in over) == (lasts is None)
    await fleet.minutes(40)
    assert "source.stale.over" in {news.kind for news in fleet.recipient.received[count:]}


async def test_many_conditions_with_one_cause_are_one_notification_and_end_as_one() -> None:
    names = [f"plan-{number}" for number in range(60)]
    fleet = Fleet(*names)
    for _ in range(10):  # the capacities are never read
        fleet.now += MINUTE
        for name in names:
            for metric in MANY:
                sent = Metric(name, metric, MetricValue(fleet.now, 5))
                await scaling_logic.process_samples(as_message(sent), fleet.resources, fleet.store)
        await fleet.notify()
    (stale,) = fleet.recipient.received
    assert stale.headline.startswith("60 resources: no sample of capacity for ")
    assert stale.headline.endswith(" min: plan-0, plan-1, plan-2 and 57 more")
    assert stale.text.startswith("The capacity of the plan was never read, so no decision is made.")
    assert stale.data["count"] == 60
    for _ in range(5):
        fleet.now += 4 * MINUTE
        await fleet.decide()
        await fleet.notify()
    (over,) = [news for news in fleet.recipient.received if news.kind == "source.stale.over"]
    assert over.subject == stale.subject == "several resources: no sample of capacity for N min"


async def test_a_grouped_condition_that_could_not_be_recorded_is_sent_again() -> None:
    class Failing(MemoryNotificationStore):
        failing = "17"

        async def save(self, notification: Notification) -> None:
            if notification.news.subject == self.failing:
                raise OSError("gone")
            await super().save(notification)

    world = World()
    world.records = Failing(lambda: world.now)
    world.lasting = [
        LastingCondition(
            str(n), Severity.WARNING, f"silent: {n}", "why", kind=NewsKind.SOURCE_STALE
        )
        for n in range(20)
    ]
    assert [news.data["count"] for news in await world.minute()] == [20]
    assert [news.subject for news in await world.minute()] == ["17"]
    world.records.failing = ""
    assert [news.subject for news in await world.minute()] == ["17"]
    assert await world.minute() == []
