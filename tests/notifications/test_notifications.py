"""What people are told: each thing once, not too often, and what lasts until it is over."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from shared.adapters.memory.autoscaling import MemoryStateStore
from shared.adapters.memory.ingestion import MemoryIngestionStore
from shared.adapters.memory.notifications import MemoryNotificationStore
from shared.adapters.webhook.webhook import LogNotifier
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.declaring import Limits
from shared.autoscaling.flows import notify as resource_news
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric, MetricValue, Window
from shared.autoscaling.operating.notices import conditions, events
from shared.autoscaling.policy import Recommendation
from shared.autoscaling.state import ScalingState
from shared.ingestion.model import Checkpoint, Commit, DeadLetter, FailureKind, Gap, Stream
from shared.ingestion.operating import notices as failed_events
from shared.nightly.notices import trend_notices
from shared.notifications import flow
from shared.notifications.news import News, NewsKind
from shared.notifications.ports import NotSent, Observed
from shared.notifications.selection import Notification, NotificationIntervals
from shared.sampling.trend_rows import Trend
from tests.builders import NOW, ago, resource, sample, state

MINUTE = timedelta(minutes=1)
PATIENCE = NotificationIntervals(quiet=15 * MINUTE, repeat=timedelta(hours=6))


class People:
    """Read what they are sent; at times nobody answers."""

    def __init__(self) -> None:
        self.read: list[News] = []
        self.away = False

    async def tell(self, news: News) -> None:
        if self.away:
            raise NotSent("nobody there")
        self.read.append(news)


class World:
    def __init__(self) -> None:
        self.now = NOW
        self.people = People()
        self.records = MemoryNotificationStore(lambda: self.now)
        self.happened: list[News] = []
        self.lasting: list[News] = []
        self.broken = False

    async def look(self, since: datetime, _now: datetime) -> Observed:
        if self.broken:
            raise OSError("table gone")
        return Observed([n for n in self.happened if n.time >= since], self.lasting)

    async def minute(self, minutes: float = 1) -> list[News]:
        """Let time pass, look, and answer what people read."""
        self.now += minutes * MINUTE
        before = len(self.people.read)
        sources = {"world": self.look}
        await flow.run(sources, self.records, self.people, PATIENCE)
        return self.people.read[before:]

    def happen(self, news_id: str, kind: NewsKind = NewsKind.SCALED, subject: str = "a") -> None:
        self.happened.append(News(news_id, kind, subject, self.now, f"{subject} {news_id}"))


async def test_an_event_is_told_once() -> None:
    world = World()
    world.happen("1")
    assert [news.news_id for news in await world.minute()] == ["1"]
    assert await world.minute() == []
    assert await world.minute(60) == []


async def test_many_of_a_kind_are_told_together_after_the_quiet_time() -> None:
    world = World()
    told = []
    for number in range(14):
        world.happen(str(number))
        told += await world.minute()
    assert [news.news_id for news in told] == ["0"]
    (together,) = await world.minute(2)
    assert together.news_id == "13"
    assert together.data["count"] == 13
    assert "12 more" in together.text


async def test_kinds_and_subjects_do_not_hold_each_other_up() -> None:
    world = World()
    for subject in ("a", "b"):
        for kind in (NewsKind.SCALED, NewsKind.POISON):
            world.happen(f"{subject}{kind}", kind, subject)
    assert len(await world.minute()) == 4


async def test_what_was_written_late_is_told_though_its_time_has_passed() -> None:
    world = World()
    world.happen("new")
    await world.minute()
    world.happened.append(News("late", NewsKind.SCALED, "a", world.now - 2 * MINUTE, "late"))
    assert [news.news_id for news in await world.minute(16)] == ["late"]


async def test_what_did_not_arrive_is_told_again_under_the_same_id() -> None:
    world = World()
    world.happen("1")
    world.people.away = True
    assert await world.minute() == []
    world.people.away = False
    assert [news.news_id for news in await world.minute()] == ["1"]


async def test_what_lasts_is_told_when_it_begins_now_and_then_and_when_it_is_over() -> None:
    world = World()
    lasting = News("", NewsKind.SOURCE_STALE, "a/backlog", NOW, "no sample")
    world.lasting = [lasting]
    told: list[News] = []
    for _ in range(13 * 12):
        told += await world.minute(5)
    world.lasting = []
    told += await world.minute(15)
    assert await world.minute() == []
    kinds = [news.kind for news in told]
    assert kinds == ["source.stale"] * 3 + ["source.stale.over"]
    assert len({news.news_id for news in told}) == 4
    assert "first told 790 min ago" in told[-1].text


async def test_a_place_that_cannot_be_looked_at_ends_no_condition_and_hides_no_other() -> None:
    world = World()
    world.lasting = [News("", NewsKind.SOURCE_STALE, "a/backlog", NOW, "no sample")]
    await world.minute()
    world.broken = True

    async def other(_since: datetime, now: datetime) -> Observed:
        return Observed([News("x", NewsKind.POISON, "b", now, "poison")])

    sources = {"world": world.look, "other": other}
    sent = await flow.run(sources, world.records, world.people, PATIENCE)
    assert sent == 1
    assert [news.kind for news in world.people.read] == ["source.stale", "message.poison"]


async def test_what_lasts_is_told_though_another_place_cannot_be_looked_at() -> None:
    world = World()
    world.lasting = [News("", NewsKind.AT_MAXIMUM, "a", NOW, "at its maximum")]

    async def broken(_since: datetime, _now: datetime) -> Observed:
        raise OSError("table gone")

    sources = {"world": world.look, "trends": broken}
    assert await flow.run(sources, world.records, world.people, PATIENCE) == 1


async def test_news_that_cannot_be_remembered_hold_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    save = world.records.save

    async def fails_for_a(notification: Notification) -> None:
        if notification.news.subject == "a":
            raise OSError("table gone")
        await save(notification)

    monkeypatch.setattr(world.records, "save", fails_for_a)
    world.happen("1", subject="a")
    world.happen("2", subject="b")
    assert [news.news_id for news in await world.minute()] == ["1", "2"]
    assert [news.news_id for news in await world.minute()] == ["1"]


async def test_who_never_answers_does_not_hold_up_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Hanging(People):
        async def tell(self, news: News) -> None:
            await asyncio.sleep(3600)
            self.read.append(news)

    monkeypatch.setattr(flow, "SENDING_SECONDS_MAX", 0.01)
    world = World()
    world.happen("1")
    async with asyncio.timeout(60):
        assert await flow.run({"w": world.look}, world.records, Hanging(), PATIENCE) == 0
    assert [news.news_id for news in await world.minute()] == ["1"]


async def test_of_kinds_that_nobody_asked_for_only_the_log_is_told() -> None:
    people = People()
    notifier = LogNotifier(people, frozenset({NewsKind.SOURCE_STALE}))
    for kind in (
        NewsKind.POISON,
        NewsKind.BREAKER_OPENED,
        NewsKind.SOURCE_STALE,
        "source.stale.over",
    ):
        await notifier.tell(News("1", kind, "a", NOW, "said"))
    assert [news.kind for news in people.read] == ["source.stale", "source.stale.over"]


async def test_what_comes_and_goes_is_not_told_each_time() -> None:
    world = World()
    lasting = News("", NewsKind.SOURCE_STALE, "a/backlog", NOW, "no sample")
    told = []
    for number in range(90):
        world.lasting = [lasting] if number % 2 == 0 else []
        told += await world.minute()
    assert [news.kind for news in told[:2]] == ["source.stale", "source.stale.over"]
    assert len(told) <= 90 / 15 + 1
    world.lasting = []
    for _ in range(20):
        told += await world.minute()
    assert told[-1].kind == "source.stale.over"


async def test_what_is_found_of_an_earlier_day_is_told_after_that_of_a_later_one() -> None:
    world = World()
    later, earlier = (
        Trend(day, "checkout", "AppEvents", verdict="events lost", reason="half of them")
        for day in ("2026-02-28", "2026-02-26")
    )
    for found in ([later], [later, earlier], [later, earlier]):
        world.happened = list(trend_notices(found))

        async def look(_since: datetime, _now: datetime) -> Observed:
            return Observed(world.happened)

        world.now += 20 * MINUTE
        await flow.run({"trends": look}, world.records, world.people, PATIENCE)
    told = [news.headline for news in world.people.read]
    assert told == [f"checkout: events of 2026-02-{day} are missing" for day in (28, 26)]


@pytest.mark.parametrize("seed", range(30))
async def test_whatever_happens_everything_is_accounted_for_and_nobody_is_flooded(
    seed: int,
) -> None:
    rng, world, made = random.Random(seed), World(), Counter[str]()
    for number in range(300):
        if rng.random() < 0.4:
            subject = rng.choice("ab")
            world.happen(str(number), NewsKind.SCALED, subject)
            made[subject] += 1
        world.people.away = rng.random() < 0.2
        world.broken = rng.random() < 0.1
        await world.minute(rng.choice([0.5, 1, 3]))
    world.people.away = world.broken = False
    for _ in range(40):
        await world.minute()
    told = Counter[str]()
    for news in world.people.read:
        told[news.subject] += int(news.data["count"])
    assert told == made
    for subject in "ab":
        times = [news.time for news in world.people.read if news.subject == subject]
        spans = (world.now - NOW) / PATIENCE.quiet
        assert len(times) <= spans + 1


# --- what a resource has to tell --------------------------------------------------------------


def line(kind: EntryKind, seconds_ago: float = 0, **changes: object) -> LogEntry:
    wish = Recommendation(9, "much is waiting", "rule")
    fields: dict[str, object] = {"current": 5, "desired": 5, "candidates": (wish,)}
    entry = LogEntry("plan-1", ago(seconds_ago), kind, f"{kind}-{seconds_ago}", "because")
    return replace(entry, **{**fields, **changes})  # type: ignore[arg-type]


def test_events_of_the_log_in_words() -> None:
    lines = [
        line(EntryKind.DECISION),
        line(EntryKind.CONFIRMED, current=2, desired=3),
        line(EntryKind.FAILED, current=3, desired=4),
        line(EntryKind.DEFERRED),
    ]
    told = {news.kind: news.headline for news in events(lines)}
    assert told == {"scaled": "plan-1: 2 → 3", "scaling.refused": "plan-1: 3 → 4"}


def seen_capacities(*capacities: tuple[int, float]) -> ScalingState:
    """Each with the minutes since it was seen; the source answers."""
    samples = tuple(sample(value, minutes * 60) for value, minutes in capacities)
    return replace(state(), histories={**state([1]).histories, CAPACITY_METRIC: Window(samples)})


WANTING = line(EntryKind.DECISION)


@pytest.mark.parametrize(
    ("capacities", "newest", "told"),
    [
        ([(3, 95), (5, 90), (5, 0)], WANTING, ["plan-1: at its maximum of 5 for 90 min"]),
        ([(5, 29), (5, 0)], WANTING, []),
        ([(5, 90), (4, 20), (5, 10), (5, 0)], WANTING, []),
        ([(5, 90), (5, 0)], replace(WANTING, candidates=(Recommendation(4, "less"),)), []),
        ([(5, 90), (5, 0)], replace(WANTING, current=4), []),
        ([(6, 90), (6, 0)], WANTING, ["plan-1: at its maximum of 5 for 90 min"]),
        ([(5, 90), (5, 0)], line(EntryKind.CONFIRMED), []),
    ],
)
def test_at_the_maximum_for_long_and_wanting_no_less(
    capacities: list[tuple[int, float]], newest: LogEntry, told: list[str]
) -> None:
    older = line(EntryKind.DECISION, 60, candidates=(Recommendation(9, "more"),))
    lines = [newest] if newest.kind is EntryKind.CONFIRMED else [newest, older]
    found = conditions(resource(), seen_capacities(*capacities), lines, NOW, 30)
    assert [news.headline for news in found] == told


def test_who_has_one_capacity_only_is_not_at_its_maximum() -> None:
    fixed = resource(limits=Limits(5, 5))
    assert conditions(fixed, seen_capacities((5, 90), (5, 0)), [WANTING], NOW, 30) == []


async def test_a_day_at_the_maximum_is_seen_however_many_lines_it_has() -> None:
    clock = {"now": NOW}
    store, workers = MemoryStateStore(lambda: clock["now"]), resource(limits=Limits(1, 2))
    for minutes in range(0, 1440, 10):
        clock["now"] = NOW + minutes * MINUTE
        for name, value in ((CAPACITY_METRIC, 2), ("backlog", 1e6)):
            sent = Metric("plan-1", name, MetricValue(clock["now"], value))
            await scaling_logic.run(sent, {"plan-1": workers}, store)
    now = clock["now"]
    seen = await resource_news.run([workers], store, now - 80 * MINUTE, now, 1430)
    assert [news.kind for news in seen.conditions] == ["at.maximum"]
    seen = await resource_news.run([workers], store, now - 80 * MINUTE, now, 1431)
    assert seen.conditions == []


async def test_a_source_without_samples_is_told_and_poison_without_a_resource_too() -> None:
    clock = {"now": NOW}
    store = MemoryStateStore(lambda: clock["now"])
    workers = resource()
    for name in (CAPACITY_METRIC, "backlog"):
        sent = Metric("plan-1", name, MetricValue(NOW, 2))
        await scaling_logic.run(sent, {"plan-1": workers}, store)
    await store.record(LogEntry("!poison", NOW, EntryKind.POISON, "p-1", "not JSON"))
    later = NOW + 10 * MINUTE
    seen = await resource_news.run([workers], store, NOW, later, 30)
    assert [(news.kind, news.subject) for news in seen.events] == [("message.poison", "!poison")]
    assert [(news.kind, news.subject) for news in seen.conditions] == [
        ("source.stale", "plan-1/capacity"),
        ("source.stale", "plan-1/backlog"),
    ]


def test_a_day_on_which_events_went_missing_is_told_once_whatever_the_series() -> None:
    day = Trend("2026-02-28", "checkout", "AppEvents", verdict="events lost", reason="half of them")
    series = replace(day, measurement="Amount", dimensions={"country": "CH"})
    normal = replace(day, date="2026-02-27", verdict="normal")
    told = list(trend_notices([day, series, normal]))
    assert [news.subject for news in told] == ["checkout", "checkout Amount country=CH"]
    assert len({news.news_id for news in told}) == 2
    assert told[0].headline == "checkout: events of 2026-02-28 are missing"


async def test_dead_letters_since_a_time_are_told() -> None:
    store = MemoryIngestionStore(lambda: NOW)
    stream = Stream("bus", "metrics", "$Default", "2")
    letters = tuple(
        DeadLetter(n, str(n), NOW, NOW - 20 * n * MINUTE, FailureKind.POISON, f"bad {n}")
        for n in range(3)
    )
    checkpoint = Checkpoint(0, 2, "2", NOW, txid="t")
    commit = Commit(None, checkpoint, dead_letters=letters)
    await store.commit(stream, await store.load(stream), commit)
    told = await failed_events.run(store, store, NOW - MINUTE)
    assert [news.text for news in told] == ["bad 0", "bad 1"]
    assert {(news.kind, news.subject) for news in told} == {
        ("dead.letters.growing", "metrics/$Default")
    }


async def test_events_that_are_gone_are_told_wherever_they_began() -> None:
    store = MemoryIngestionStore(lambda: NOW)
    stream = Stream("bus", "metrics", "$Default", "2")
    checkpoint = Checkpoint(0, 500_000, "2", NOW, txid="t")
    await store.commit(stream, await store.load(stream), Commit(None, checkpoint))
    old, new = NOW - 60 * MINUTE, NOW
    gaps = [Gap(n, n, old, "skipped") for n in range(1, 1300)]
    gaps += [Gap(0, 0, new, "retention"), Gap(2000, 499_999, new, "retention")]
    store.rows[stream].gaps.update({gap.first: gap for gap in gaps})
    told = await failed_events.run(store, store, NOW - MINUTE)
    assert {(news.kind, news.subject) for news in told} == {("events.gone", "metrics/$Default")}
    assert [news.text for news in told] == ["0 to 0: retention", "2000 to 499999: retention"]
    assert told[1].headline == "metrics: 498000 event(s) of partition 2 are gone"


@pytest.mark.parametrize("letters", [1, 1500])
async def test_the_newest_dead_letter_is_told_however_many_events_and_others_there_were(
    letters: int,
) -> None:
    store, stream = MemoryIngestionStore(lambda: NOW), Stream("bus", "metrics", "$Default", "2")
    dead = tuple(
        DeadLetter(n, str(n), NOW, NOW - 60 * MINUTE, FailureKind.POISON, "old")
        for n in range(letters)
    )
    dead = (*dead[:-1], replace(dead[-1], failed_at=NOW))
    checkpoint = Checkpoint(0, 50_000, "2", NOW, txid="t")
    await store.commit(stream, await store.load(stream), Commit(None, checkpoint))
    store.rows[stream].dead_letters.update({letter.sequence: letter for letter in dead})
    told = await failed_events.run(store, store, NOW - MINUTE)
    assert [news.data["sequence"] for news in told] == [letters - 1]
