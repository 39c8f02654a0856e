"""Notifications: each event once, not too often, and lasting conditions until they end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from local.twins.autoscaling import MemoryStateStore
from local.twins.ingestion import MemoryIngestionStore
from local.twins.notifications import MemoryNotificationStore
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.declaring import Limits
from shared.autoscaling.flows import notify as resource_news
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.flows.notify import events
from shared.autoscaling.operating.conditions import conditions
from shared.autoscaling.policy import Recommendation
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import ScalingState
from shared.ingestion.model import Checkpoint, Commit, DeadLetter, FailureKind, Gap, Stream
from shared.ingestion.operating import event_news as failed_events
from shared.notifications import flow
from shared.notifications.conditions import LastingCondition
from shared.notifications.ports import NotSent, Observed
from shared.notifications.selection import Notification, NotificationIntervals
from shared.sampling.trend_rows import Trend
from shared.trends.nightly.trend_news import trend_notices
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue, Window
from shared.values.news import Address, News, NewsKind, Severity
from tests.builders import NOW, ago, as_message, resource, sample, state

MINUTE = timedelta(minutes=1)
STALE = LastingCondition("a/backlog", Severity.WARNING, "no sample", kind=NewsKind.SOURCE_STALE)
INTERVALS = NotificationIntervals(quiet=15 * MINUTE, repeat=timedelta(hours=6))


class Recipient:
    """Keeps the news that it receives; it can be made unreachable."""

    def __init__(self) -> None:
        self.received: list[News] = []
        self.unreachable = False

    async def tell(self, news: News) -> None:
        if self.unreachable:
            raise NotSent("no reply")
        self.received.append(news)


class World:
    def __init__(self) -> None:
        self.now = NOW
        self.recipient = Recipient()
        self.records = MemoryNotificationStore(lambda: self.now)
        self.happened: list[News] = []
        self.lasting: list[LastingCondition] = []
        self.broken = False

    async def source(self, since: datetime, _now: datetime) -> Observed:
        if self.broken:
            raise OSError("table gone")
        return Observed([n for n in self.happened if n.time >= since], self.lasting)

    async def minute(self, minutes: float = 1) -> list[News]:
        """Let time pass, run the notifier, and return the news that were received."""
        self.now += minutes * MINUTE
        before = len(self.recipient.received)
        sources = {"world": self.source}
        await flow.send_due_notifications(sources, self.records, {"": self.recipient}, INTERVALS)
        return self.recipient.received[before:]

    def happen(self, news_id: str, kind: NewsKind = NewsKind.SCALED, subject: str = "a") -> None:
        self.happened.append(News(news_id, kind, subject, self.now, f"{subject} {news_id}"))


async def test_each_receiver_gets_each_notification_once_even_if_another_one_fails() -> None:
    world, pager = World(), Recipient()
    receivers = {"": world.recipient, "pager": pager}

    async def minute() -> None:
        world.now += MINUTE
        sources = {"world": world.source}
        await flow.send_due_notifications(sources, world.records, receivers, INTERVALS)

    world.happen("1")
    world.lasting = [STALE]
    pager.unreachable = True
    await minute()
    assert [news.headline for news in world.recipient.received] == ["a 1", "no sample"]
    pager.unreachable = False
    await minute()
    await minute()
    assert [news.headline for news in pager.received] == ["a 1", "no sample"]
    assert len(world.recipient.received) == 2
    world.lasting, pager.unreachable = [], True
    world.now += INTERVALS.quiet
    await minute()
    pager.unreachable = False
    await minute()
    assert [len(each.received) for each in (world.recipient, pager)] == [3, 3]
    assert pager.received[-1].kind == f"{NewsKind.SOURCE_STALE}.over"


async def test_events_within_the_quiet_interval_are_reported_together_after_it() -> None:
    world = World()
    sent = []
    for number in range(14):
        world.happen(str(number))
        sent += await world.minute()
    assert [news.news_id for news in sent] == ["0"]
    (together,) = await world.minute(2)
    assert together.news_id == "13"
    assert together.data["count"] == 13
    assert "12 more" in together.text


async def test_a_line_that_is_written_late_is_still_reported() -> None:
    world = World()
    world.happen("new")
    await world.minute()
    world.happened.append(News("late", NewsKind.SCALED, "a", world.now - 2 * MINUTE, "late"))
    assert [news.news_id for news in await world.minute(16)] == ["late"]


async def test_a_notification_that_did_not_arrive_is_sent_again_under_the_same_id() -> None:
    world = World()
    world.happen("1")
    world.recipient.unreachable = True
    assert await world.minute() == []
    world.recipient.unreachable = False
    assert [news.news_id for news in await world.minute()] == ["1"]
    assert await world.minute() == []
    assert await world.minute(60) == [], "an event is reported once"


async def test_a_condition_is_reported_when_it_begins_at_intervals_and_when_it_ends() -> None:
    world = World()
    world.lasting = [STALE]
    sent: list[News] = []
    for _ in range(13 * 12):
        sent += await world.minute(5)
    world.lasting = []
    sent += await world.minute(15)
    assert await world.minute() == []
    kinds = [news.kind for news in sent]
    assert kinds == ["source.stale"] * 3 + ["source.stale.over"]
    assert len({news.news_id for news in sent}) == 4
    assert "first reported 790 min ago" in sent[-1].text


def stale(first: int, last: int, what: str = "no sample for 4 min") -> list[LastingCondition]:
    names = [f"plan-{number}" for number in range(first, last)]
    kind = NewsKind.SOURCE_STALE
    return [
        replace(STALE, subject=f"{name}/capacity", what=f"{name}: {what}", resource=name, kind=kind)
        for name in names
    ]


async def test_one_cause_of_a_hundred_resources_is_told_once_and_ends_once() -> None:
    world = World()
    for count, minutes in ((100, 1), (110, 30), (90, 30), (2, 30), (50, 30)):
        world.lasting = stale(0, count, f"no sample for {minutes} min")
        sent = await world.minute(minutes)
        assert len(sent) == (count == 100), "the group stays one, whoever comes and goes"
    (first,) = world.recipient.received
    assert first.headline.startswith("100 resources: no sample for 1 min: plan-0, plan-1, plan-2 ")
    world.lasting = [*stale(0, 50), *stale(0, 1, "the plan is gone")]
    assert [news.headline for news in await world.minute()] == ["plan-0: the plan is gone"]
    world.lasting = world.lasting[-1:]
    (over,) = await world.minute(30)
    assert (over.kind, over.subject) == ("source.stale.over", first.subject)
    assert await world.minute(30) == []


async def test_a_resource_that_was_told_alone_ends_alone_also_if_others_join_it() -> None:
    world = World()
    world.lasting = stale(0, 2)
    assert [news.subject for news in await world.minute()] == ["plan-0/capacity", "plan-1/capacity"]
    world.lasting = stale(0, 100)
    assert [news.headline[:13] for news in await world.minute()] == ["100 resources"]
    world.lasting = stale(1, 100)
    assert [news.subject for news in await world.minute(30)] == ["plan-0/capacity"]
    world.lasting = []
    assert len(await world.minute(30)) == 2


@pytest.mark.parametrize(("unread", "ends"), [(3, True), (4, False)])
async def test_a_cause_does_not_end_while_many_resources_cannot_be_read(
    unread: int, ends: bool
) -> None:
    world = World()
    world.lasting = stale(0, 100)
    await world.minute()
    names = [f"plan-{number}" for number in range(unread)]

    async def source(_since: datetime, _now: datetime) -> Observed:
        return Observed((), (), names)

    world.now += 30 * MINUTE
    sources = {"world": source}
    sent = await flow.send_due_notifications(
        sources, world.records, {"": world.recipient}, INTERVALS
    )
    assert sent == ends


@pytest.mark.parametrize(("count", "messages"), [(10, 10), (11, 1), (200, 1)])
async def test_more_than_ten_events_of_a_kind_in_one_run_are_one_message(
    count: int, messages: int
) -> None:
    world = World()
    for number in range(count):
        world.happen(f"2 → {number}", subject=f"plan-{number}")
    world.happened = [replace(each, text=f"why {each.subject}") for each in world.happened]
    world.happen("poison", NewsKind.POISON, "plan-0")
    sent = await world.minute()
    assert [news.kind for news in sent] == [NewsKind.SCALED] * messages + [NewsKind.POISON]
    if messages == 1:
        assert sent[0].headline == f"plan-0 2 → 0 (and {count - 1} more of this kind)"
        assert sent[0].text.startswith("why plan-0. The others are plan-1, plan-2, ")
    assert await world.minute(60) == [], "each was handled"


async def test_a_source_that_fails_ends_no_condition_and_hides_no_other_source() -> None:
    world = World()
    world.lasting = [STALE]
    await world.minute()
    world.broken = True

    async def other(_since: datetime, now: datetime) -> Observed:
        return Observed([News("x", NewsKind.POISON, "b", now, "poison")])

    sources = {"world": world.source, "other": other}
    sent = await flow.send_due_notifications(
        sources, world.records, {"": world.recipient}, INTERVALS
    )
    assert sent == 1
    assert [news.kind for news in world.recipient.received] == ["source.stale", "message.poison"]


async def test_a_record_that_cannot_be_stored_holds_up_no_other_notification(
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


async def test_a_webhook_that_hangs_is_abandoned_after_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Hanging(Recipient):
        async def tell(self, news: News) -> None:
            await asyncio.sleep(3600)
            self.received.append(news)

    monkeypatch.setattr(flow, "SENDING_SECONDS_MAX", 0.01)
    world = World()
    world.happen("1")
    sources = {"w": world.source}
    async with asyncio.timeout(60):
        sent = await flow.send_due_notifications(sources, world.records, {"": Hanging()}, INTERVALS)
    assert sent == 0
    assert [news.news_id for news in await world.minute()] == ["1"]


def test_the_webhook_receives_only_the_configured_kinds_and_their_endings() -> None:
    address = Address("", kinds={NewsKind.SOURCE_STALE})
    kinds = [NewsKind.POISON, NewsKind.SOURCE_STALE, "source.stale.over"]
    taken = [kind for kind in kinds if address.takes(News("1", kind, "a", NOW, "said"))]
    assert taken == ["source.stale", "source.stale.over"]


async def test_an_address_that_was_told_of_a_condition_is_told_of_its_ending() -> None:
    world = World()
    world.lasting = [STALE]
    sent = await world.minute()
    world.lasting = []
    for _ in range(20):
        sent += await world.minute()
    assert [news.kind for news in sent] == ["source.stale", "source.stale.over"]
    for least, count in ((Severity.INFO, 2), (Severity.WARNING, 2), (Severity.ERROR, 0)):
        assert sum(Address("", severity=least).takes(news) for news in sent) == count


async def test_a_condition_that_comes_and_goes_is_not_reported_each_time() -> None:
    world = World()
    sent = []
    for number in range(90):
        world.lasting = [STALE] if number % 2 == 0 else []
        sent += await world.minute()
    assert [news.kind for news in sent[:2]] == ["source.stale", "source.stale.over"]
    assert len(sent) <= 90 / 15 + 1
    world.lasting = []
    for _ in range(20):
        sent += await world.minute()
    assert sent[-1].kind == "source.stale.over"


@pytest.mark.parametrize("seed", range(10))
async def test_under_random_failures_every_event_is_counted_once_and_the_rate_is_bounded(
    seed: int,
) -> None:
    rng, world, created = random.Random(seed), World(), Counter[str]()
    for number in range(300):
        if rng.random() < 0.4:
            subject = rng.choice("ab")
            world.happen(str(number), NewsKind.SCALED, subject)
            created[subject] += 1
        world.recipient.unreachable = rng.random() < 0.2
        world.broken = rng.random() < 0.1
        await world.minute(rng.choice([0.5, 1, 3]))
    world.recipient.unreachable = world.broken = False
    for _ in range(40):
        await world.minute()
    reported = Counter[str]()
    for news in world.recipient.received:
        reported[news.subject] += int(news.data["count"])
    assert reported == created
    for subject in "ab":
        times = [news.time for news in world.recipient.received if news.subject == subject]
        spans = (world.now - NOW) / INTERVALS.quiet
        assert len(times) <= spans + 1


# --- the sources: resources, trends, dead letters and gaps -------------------------------------


def line(kind: EntryKind, seconds_ago: float = 0, **changes: object) -> LogEntry:
    candidate = Recommendation(9, "the backlog is long", "rule")
    fields: dict[str, object] = {"current": 5, "desired": 5, "candidates": (candidate,)}
    entry = LogEntry("plan-1", ago(seconds_ago), kind, f"{kind}-{seconds_ago}", "because")
    return replace(entry, **{**fields, **changes})  # type: ignore[arg-type]


def test_confirmed_and_refused_actions_are_events_and_decisions_are_not() -> None:
    lines = [
        line(EntryKind.DECISION),
        line(EntryKind.CONFIRMED, current=2, desired=3),
        line(EntryKind.FAILED, current=3, desired=4),
        line(EntryKind.DEFERRED),
    ]
    reported = {news.kind: news.headline for news in events(lines)}
    assert reported == {"scaled": "plan-1: 2 → 3", "scaling.refused": "plan-1: 3 → 4 failed"}


def state_with(*capacities: tuple[int, float]) -> ScalingState:
    """A state with capacities, each with its age in minutes, and a fresh sample of the backlog."""
    samples = tuple(sample(value, minutes * 60) for value, minutes in capacities)
    return replace(state(), histories={**state([1]).histories, CAPACITY_METRIC: Window(samples)})


DESIRING_MORE = line(EntryKind.DECISION)
FAILED = Recommendation(5, "the policy raised KeyError: 'x'; holding", "error")


@pytest.mark.parametrize(
    ("capacities", "newest", "headlines"),
    [
        ([(3, 95), (5, 90), (5, 0)], DESIRING_MORE, ["plan-1: at its maximum of 5 for 90 min"]),
        ([(5, 29), (5, 0)], DESIRING_MORE, []),
        ([(5, 90), (4, 20), (5, 10), (5, 0)], DESIRING_MORE, []),
        ([(5, 90), (5, 0)], replace(DESIRING_MORE, candidates=(Recommendation(4, "less"),)), []),
        ([(5, 90), (5, 0)], replace(DESIRING_MORE, current=4), []),
        ([(5, 90), (5, 0)], replace(DESIRING_MORE, candidates=(FAILED,)), []),
        ([(6, 90), (6, 0)], DESIRING_MORE, ["plan-1: at its maximum of 5 for 90 min"]),
    ],
)
def test_a_resource_long_at_its_maximum_is_reported_while_its_rule_desires_no_less(
    capacities: list[tuple[int, float]], newest: LogEntry, headlines: list[str]
) -> None:
    snapshot = Snapshot("plan-1", state_with(*capacities), NOW, decided=newest)
    reported = conditions(resource(), snapshot, 30)
    assert [each.what for each in reported if each.kind] == headlines


def test_a_resource_with_a_fixed_capacity_is_never_reported_as_at_its_maximum() -> None:
    snapshot = Snapshot("plan-1", state_with((5, 90), (5, 0)), NOW, decided=DESIRING_MORE)
    assert conditions(resource(limits=Limits(5, 5)), snapshot, 30) == []


async def test_a_long_time_at_the_maximum_is_detected_beyond_the_lines_that_are_read() -> None:
    clock = {"now": NOW}
    store, workers = MemoryStateStore(lambda: clock["now"]), resource(limits=Limits(1, 2))
    for minutes in range(0, 1440, 10):
        clock["now"] = NOW + minutes * MINUTE
        for name, value in ((CAPACITY_METRIC, 2), ("backlog", 1e6 - minutes)):
            sent = Metric("plan-1", name, MetricValue(clock["now"], value))
            await scaling_logic.process_samples(as_message(sent), {"plan-1": workers}, store)
    now = clock["now"]
    observed = await resource_news.collect_news([workers], store, now - 80 * MINUTE, now, 1430)
    assert [news.kind for news in observed.conditions] == ["at.maximum"]
    observed = await resource_news.collect_news([workers], store, now - 80 * MINUTE, now, 1431)
    assert observed.conditions == []


def test_each_series_that_lost_events_on_a_day_is_reported() -> None:
    day = Trend("2026-02-28", "checkout", "AppEvents", verdict="events lost", reason="half of them")
    series = replace(day, measurement="Amount", dimensions={"country": "CH"})
    normal = replace(day, date="2026-02-27", verdict="normal")
    earlier = replace(day, date="2026-02-26")
    reported = list(trend_notices([day, series, normal, earlier]))
    subjects = ["checkout", "checkout Amount country=CH", "checkout"]
    assert [news.subject for news in reported] == subjects
    assert len({news.news_id for news in reported}) == 3
    assert reported[0].headline == "checkout: events of 2026-02-28 are missing"


async def failed_news(letters: Sequence[DeadLetter] = (), gaps: Sequence[Gap] = ()) -> list[News]:
    """What is reported of a partition since a minute ago."""
    store, stream = MemoryIngestionStore(lambda: NOW), Stream("bus", "metrics", "$Default", "2")
    checkpoint = Checkpoint(0, 500_000 if gaps else 50_000, "2", NOW, txid="t")
    await store.commit(stream, await store.load(stream), Commit(None, checkpoint))
    store.rows[stream].dead_letters.update({letter.sequence: letter for letter in letters})
    store.rows[stream].gaps.update({gap.first: gap for gap in gaps})
    return list(await failed_events.news_since(store, NOW - MINUTE))


@pytest.mark.parametrize(("older", "new"), [(0, 1), (1499, 1), (1, 2)])
async def test_new_dead_letters_are_reported_however_many_older_ones_there_are(
    older: int, new: int
) -> None:
    times = [*[NOW - 40 * MINUTE] * older, *[NOW - 20 * MINUTE, NOW][-new:]]
    reported = await failed_news(
        [DeadLetter(n, str(n), at, at, FailureKind.POISON, f"{n}") for n, at in enumerate(times)]
    )
    assert [news.text for news in reported] == [str(older + n) for n in range(new)]
    assert {(news.kind, news.subject, news.data["sequence"]) for news in reported} == {
        ("dead.letters.growing", "metrics/$Default", older + n) for n in range(new)
    }


async def test_new_gaps_are_reported_whatever_their_position_among_older_ones() -> None:
    gaps = [Gap(n, n, NOW - 60 * MINUTE, "skipped") for n in range(1, 1300)]
    gaps += [Gap(0, 0, NOW, "retention"), Gap(2000, 499_999, NOW, "retention")]
    reported = await failed_news(gaps=gaps)
    assert {(news.kind, news.subject) for news in reported} == {("events.gone", "metrics/$Default")}
    assert [news.text for news in reported] == ["0 to 0: retention", "2000 to 499999: retention"]
    assert reported[1].headline == "metrics: 498000 event(s) of partition 2 are gone"
