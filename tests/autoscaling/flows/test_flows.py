"""The flows on in-memory adapters: their effect on state, log and capacity."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.twins.autoscaling import MemoryCapacityControl, MemoryReader, MemoryStateStore
from shared.autoscaling import ManualChange, Mode, ServiceBusQueue, Throughput
from shared.autoscaling.acting.actions import action_of, adopt, reopen
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.deciding.stretches import course_of
from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import (
    BadMessage,
    CapacityDelayed,
    CapacityRefused,
    StateConflict,
    UnknownResource,
)
from shared.autoscaling.flows import metric_collector, poison, retention, scaling_logic, status
from shared.autoscaling.flows import notify as news
from shared.autoscaling.flows.common import check_metric_name, find
from shared.autoscaling.flows.poison import UNATTRIBUTED, PoisonMessage
from shared.autoscaling.flows.reconciler import Reconciler
from shared.autoscaling.flows.scaler import Scaler
from shared.autoscaling.messages import Samples, encode_action
from shared.autoscaling.operating import presenting
from shared.autoscaling.plan_facts import PlanReading
from shared.autoscaling.policy import Recommendation, Resource
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.sources import HubMetric, Source
from shared.autoscaling.state import ActionStatus, Desired, Override, ScaleAction, ScalingState
from shared.autoscaling.transition import advance
from shared.notifications.selection import NotificationIntervals
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.values.news import NewsKind
from shared.values.samples import encode_samples
from tests.builders import (
    NOW,
    SOURCE,
    TIMING,
    confirmed,
    desired,
    encode_metric,
    metric,
    resource,
)


class Store(MemoryStateStore):
    """Counts commits and conflicts."""

    commits = conflicts = 0

    async def load(self, resource_name: str) -> Snapshot:
        snapshot = await super().load(resource_name)
        await asyncio.sleep(0)  # so that all callers read before the first one writes
        return snapshot

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        self.commits += 1
        try:
            await super().commit(snapshot, state, entries)
        except StateConflict:
            self.conflicts += 1
            raise


class Control(MemoryCapacityControl):
    """Raises ``error`` on a change; if ``after`` is true, only after changing the capacity."""

    error: Exception | None = None
    after = False

    async def change(self, target: AppServicePlan, capacity: int, read: PlanReading) -> int | None:
        if self.error is not None and not self.after:
            raise self.error
        after = await super().change(target, capacity, read)
        if self.error is not None:
            raise self.error
        return after


@dataclass
class World:
    """One resource with in-memory adapters and a clock that tests set."""

    resource: Resource = field(default_factory=resource)
    now: datetime = NOW
    capacity: int = 2
    confirms: bool = False
    due: int = 0
    action: ScaleAction | None = None

    def __post_init__(self) -> None:
        self.store = Store(lambda: self.now)
        self.control = Control(lambda: self.now, {"plan-1": self.capacity})
        self.resources = {self.resource.name: self.resource}

    async def take(
        self, *metrics: Metric, refused: tuple[BadMessage, ...] = ()
    ) -> ScaleAction | None:
        samples = Samples(metrics[0].resource_name, metrics, refused)
        due = list[Resource]()
        action = await scaling_logic.process_samples(samples, self.resources, self.store, due=due)
        self.due += len(due)
        if not self.confirms:
            return action
        reconciler = Reconciler(self.store, self.control, TIMING, 10)
        return next(iter(await reconciler.reconcile_all(due)), action)

    async def load(self, values: list[float], every_seconds: float = 15) -> ScaleAction | None:
        """Send capacity and backlog samples at a fixed interval, and return the last action."""
        action = None
        for value in values:
            self.now += timedelta(seconds=every_seconds)
            capacity = MetricValue(self.now, self.control.capacities["plan-1"])
            await self.take(Metric("plan-1", CAPACITY_METRIC, capacity))
            backlog = Metric("plan-1", "backlog", MetricValue(self.now, value))
            action = await self.take(backlog) or action
        return action

    async def scaled_out(self) -> ScaleAction:
        action = await self.load([200] * 5)
        assert action is not None
        return action

    async def scale(self, action: ScaleAction) -> EntryKind | None:
        return await Scaler(self.resources, self.store, self.control, TIMING).execute(action)

    async def reconcile(self) -> list[ScaleAction]:
        return await Reconciler(self.store, self.control, TIMING, 10).reconcile_all([self.resource])

    async def desired(self) -> Desired:
        desired = (await self.store.load("plan-1")).state.desired
        assert desired is not None
        return desired

    async def samples(self) -> tuple[MetricValue, ...]:
        return (await self.store.load("plan-1")).state.histories["backlog"].samples

    async def lines(self, limit: int = 1000) -> list[LogEntry]:
        return await self.store.log("plan-1", limit)

    async def kinds(self) -> list[EntryKind]:
        return [e.kind for e in await self.lines()]


LOAD = [metric(2, 90, CAPACITY_METRIC), *[metric(200, age) for age in (80, 60, 40, 20, 0)]]
"""A message with samples that lead to a scale-out."""


# --- scaling_logic ---


async def test_an_action_is_requested_and_carried_out_once_however_often_messages_arrive() -> None:
    world = World()
    action = await world.scaled_out()
    assert (action.target, action.epoch) == (3, 1)
    before = await world.store.load("plan-1")
    newest = Metric("plan-1", "backlog", MetricValue(world.now, 200))
    assert await world.take(newest) == action
    assert (await world.store.load("plan-1")).state == before.state
    assert await world.load([200] * 5) is None
    assert (await world.desired()).epoch == 1
    assert await world.scale(action) is EntryKind.CONFIRMED
    assert await world.scale(action) is EntryKind.IGNORED
    assert world.control.changes == [("plan-1", 3)]
    assert (await world.desired()).changed_at == world.now


async def test_a_paused_resource_keeps_its_samples() -> None:
    world = World()
    world.store.override("plan-1", Override(Mode.PAUSED, "maintenance"))
    assert await world.load([200] * 5) is None
    assert len(await world.samples()) == 5
    world.store.override("plan-1", None)
    assert await world.load([200]) is not None


async def test_a_stale_sample_is_logged_and_not_committed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    with caplog.at_level(logging.WARNING):
        await world.take(metric(200, 601))
    assert "[stale_sample_dropped] plan-1: 1 sample(s) of backlog" in caplog.text
    snapshot = await world.store.load("plan-1")
    assert (snapshot.state, snapshot.version) == (ScalingState(), {})
    assert await world.kinds() == []


@pytest.mark.parametrize(
    ("messages", "error", "text"),
    [
        ([Metric("plan-9", "backlog", MetricValue(NOW, 1))], UnknownResource, "plan-9"),
        ([metric(1, name="other")], UnknownResource, "other"),
        ([metric(float("nan"))], BadMessage, "nan"),
        ([metric(1, -3600)], BadMessage, "in the future"),
        (
            [metric(1, -3600), metric(0.5, 0, CAPACITY_METRIC)],
            BadMessage,
            r"in the future.*not a whole number",
        ),
    ],
)
async def test_invalid_samples_alone_never_change_the_state(
    messages: list[Metric], error: type[Exception], text: str
) -> None:
    world = World()
    with pytest.raises(error, match=text):
        await world.take(*messages)
    assert (await world.store.load("plan-1")).state.histories == {}
    assert world.store.commits == 0


async def test_invalid_samples_are_logged_and_do_not_affect_the_valid_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    bad = [metric(1, -3600), metric(1, 0, "typo"), metric(0.5, 0, CAPACITY_METRIC)]
    with caplog.at_level(logging.WARNING):
        action = await world.take(*bad, *LOAD, refused=(BadMessage("value is 'x'"),))
    assert action is not None
    assert action.target == 3
    assert "[samples_refused] plan-1: 4 invalid sample(s)" in caplog.text
    refusal = next(line for line in await world.lines() if line.kind is EntryKind.POISON)
    for text in ("4 sample(s)", "in the future", "'typo'", "not a whole number", "value is 'x'"):
        assert text in refusal.reason
    assert len(await world.samples()) == 5


def test_an_error_about_a_name_of_any_length_is_short() -> None:
    for name in ("x" * 40_000, "\ud800" * 40_000):
        for refuse in (
            lambda name: check_metric_name(resource(), name),
            lambda name: find({}, name),
        ):
            with pytest.raises(UnknownResource) as refused:
                refuse(name)
            assert len(str(refused.value)) < 300


async def test_after_too_many_conflicts_the_message_goes_back_to_the_queue() -> None:
    class Losing(Store):
        async def commit(self, *_args: object, **_kwargs: object) -> None:
            self.commits += 1
            raise StateConflict("always")

    world = World()
    world.store = Losing(lambda: NOW)
    with pytest.raises(StateConflict, match="during each of 10 attempts"):
        await world.take(metric(1))
    assert world.store.commits == 10


async def test_concurrent_messages_lead_to_one_action_and_lose_no_samples() -> None:
    world = World()
    await world.load([200] * 4)
    values = [MetricValue(world.now + timedelta(seconds=s), 200) for s in (1, 2, 3)]
    sent = [Metric("plan-1", "backlog", value) for value in values]
    actions = await asyncio.gather(*map(world.take, sent))
    assert world.store.conflicts > 0
    assert [a.epoch for a in actions if a] == [1]
    assert (await world.desired()).epoch == 1
    assert set(values) <= set(await world.samples())


@pytest.mark.parametrize("pending", [desired(target=2, previous=1), desired(target=5)])
@pytest.mark.parametrize("wanted", [None, 2, 4])
async def test_a_message_that_confirms_an_action_logs_that_action_whatever_it_decides(
    pending: Desired, wanted: int | None
) -> None:
    """It may also request a new action at once, which is not confirmed yet."""
    rule = resource(policy=lambda _: Recommendation(wanted or 2, "busy", paced=True))
    world = World(rule)
    await world.store.commit(await world.store.load("plan-1"), ScalingState(desired=pending))
    await world.take(metric(2, 5, CAPACITY_METRIC), *([metric(200)] if wanted else []))
    lines = {line.kind: line for line in await world.lines()}
    confirms = pending.target == 2
    assert (EntryKind.CONFIRMED in lines) is confirms
    assert (EntryKind.DECISION in lines) is (wanted is not None)
    if confirms:
        line = lines[EntryKind.CONFIRMED]
        assert (line.current, line.desired, line.epoch) == (1, 2, pending.epoch)
        assert line.reason == f"the capacity reads 2, as requested by epoch {pending.epoch}"
    if wanted == 4 and confirms:
        assert (lines[EntryKind.DECISION].epoch, lines[EntryKind.DECISION].desired) == (8, 4)


# --- many samples have the same effect as single ones ---

COUNTED = resource(
    metrics={"backlog": SOURCE, "finished": HubMetric()},
    throughput=Throughput(completed_metric="finished"),
    mode=Mode.PAUSED,
)
some_metrics = st.lists(
    st.builds(
        metric,
        st.sampled_from([0, 1, 1, 2, 2.5, 5, 1e200]),
        st.one_of(st.integers(-90, 650), st.sampled_from([599, 600, 601, 1800, 1900])),
        st.sampled_from(["backlog", "finished", CAPACITY_METRIC]),
    ),
    max_size=25,
)


@given(some_metrics, st.sampled_from([None, desired(target=2), desired(target=1)]))
def test_many_samples_together_are_kept_and_confirm_like_single_ones(
    metrics: list[Metric], pending: Desired | None
) -> None:
    start = ScalingState(desired=pending)
    together = advance(COUNTED, start, metrics, NOW)
    state, accepted, refused = start, list[Metric](), list[tuple[Metric, BadMessage]]()
    for each in metrics:
        alone = advance(COUNTED, state, [each], NOW)
        state = alone.state
        accepted += alone.merged.accepted
        refused += alone.merged.refused
    assert (together.state.histories, together.state.desired) == (state.histories, state.desired)
    assert together.merged.accepted == tuple(accepted)
    assert list(map(str, together.merged.refused)) == list(map(str, refused))


# --- scaler and reconciler ---


@pytest.mark.parametrize(
    ("error", "after", "kind"),
    [
        (CapacityDelayed("409 another operation"), False, EntryKind.DEFERRED),
        (CapacityDelayed("no answer"), True, EntryKind.DEFERRED),
        (CapacityRefused("403 forbidden"), False, EntryKind.FAILED),
    ],
    ids=["a busy plan", "it succeeded in spite of a time-out", "refused"],
)
async def test_a_change_is_repeated_until_it_is_confirmed_or_refused_and_done_once(
    error: Exception, after: bool, kind: EntryKind
) -> None:
    world = World()
    action = await world.scaled_out()
    world.control.error, world.control.after = error, after
    assert await world.scale(action) is kind
    (line,) = await world.lines(1)
    assert (line.kind, line.reason.startswith("the change ")) == (kind, True)
    assert line.reason.endswith(f": {error}")
    newest = (await status.read_one(world.resource, world.store, 30))["newest"]
    assert newest  # the answer of Resource Manager never stands in place of the newest decision
    assert newest["reason"].startswith("the mean backlog is 200, above the upper threshold 100")
    assert await world.reconcile() == []
    world.control.error = None
    if kind is EntryKind.FAILED:  # the resource may scale again within a minute
        assert await world.load([200] * 3) is None
        again = await world.load([200])
        assert again is not None
        assert again.epoch == 2
    elif not after:
        world.now += timedelta(seconds=15)
        assert await world.reconcile() == [action]
        assert await world.scale(action) is EntryKind.CONFIRMED
    if kind is EntryKind.DEFERRED:
        assert (await world.desired()).status is ActionStatus.CONFIRMED
        assert world.control.changes == [("plan-1", 3)]


async def test_an_action_is_not_confirmed_if_another_capacity_is_read_back() -> None:
    class IgnoringChanges(Control):
        async def change(
            self,
            target: AppServicePlan,
            capacity: int,
            read: PlanReading,  # noqa: ARG002  the port has it
        ) -> int | None:
            self.changes.append((target.name, capacity))
            return self.capacities[target.name]

    world = World()
    world.control = IgnoringChanges(lambda: world.now, {"plan-1": 2})
    assert await world.scale(await world.scaled_out()) is EntryKind.DEFERRED
    assert "still reads 2 after the change" in (await world.lines(1))[0].reason


async def test_the_cooldown_runs_from_the_confirmation_not_from_the_decision() -> None:
    world = World()
    action = await world.scaled_out()
    world.now += timedelta(seconds=500)
    await world.scale(action)
    assert await world.load([200] * 39) is None  # 585 s
    assert await world.load([200] * 2) is not None  # 615 s


async def test_the_desired_capacity_is_that_of_the_pending_action_until_it_ends() -> None:
    """Also if the policy, which sees only the present capacity, recommends to hold meanwhile."""
    world = World()
    action = await world.scaled_out()
    since = world.now
    await world.load([200, 50, 50, 50, 50, 50, 50, 200])
    lines = [e for e in await world.store.log("plan-1", 1000, since) if e.metric]
    assert {(e.current, e.desired) for e in lines} == {(2, 3)}
    assert {point["desired"] for point in presenting.points(course_of(lines), 60)} == {3}
    assert [e.applies for e in lines].count(True) == 1
    world.control.error = CapacityRefused("403 forbidden")
    await world.scale(action)
    await world.load([50])
    assert (await world.lines(1))[0].desired == 2


@pytest.mark.parametrize("on_change", ManualChange)
@pytest.mark.parametrize("waits", [False, True], ids=["afterwards", "while the action waits"])
async def test_a_manual_change_is_set_back_or_adopted_by_reconciler_and_scaler_together(
    on_change: ManualChange, waits: bool
) -> None:
    enforced = on_change is ManualChange.ENFORCE
    world = World(resource(on_manual_change=on_change))
    action = await world.scaled_out()
    if not waits:
        await world.scale(action)
    world.control.capacities["plan-1"] = 5
    if waits:
        kind = EntryKind.CONFIRMED if enforced else EntryKind.MANUAL_CHANGE
        assert await world.scale(action) is kind
    else:
        world.now += timedelta(seconds=61)  # no sample shows the change
        actions = await world.reconcile()
        assert len(actions) == enforced
        for back in actions:
            assert await world.scale(back) is EntryKind.CONFIRMED
    wanted, capacity = await world.desired(), 3 if enforced else 5
    assert (wanted.target, wanted.status) == (capacity, ActionStatus.CONFIRMED)
    assert wanted.epoch == (1 if enforced and waits else 2)
    assert world.control.capacities == {"plan-1": capacity}
    assert await world.reconcile() == []
    assert await world.load([0] * 39) is None  # the cooldown runs from the manual change


async def test_a_manual_capacity_that_is_requested_anew_after_a_late_change_stays_manual() -> None:
    world, manual = World(capacity=3), reopen(adopt(confirmed(60), 4, NOW), 3, NOW)
    await world.store.commit(await world.store.load("plan-1"), ScalingState(desired=manual))
    assert await world.scale(action_of("plan-1", manual)) is EntryKind.CONFIRMED
    assert (await world.desired()).changed_by_hand


async def test_a_change_that_took_effect_is_confirmed_even_if_it_was_given_up_meanwhile() -> None:
    world = World()
    action = await world.scaled_out()

    class GivenUpMeanwhile(Control):
        async def change(
            self, target: AppServicePlan, capacity: int, read: PlanReading
        ) -> int | None:
            world.now += timedelta(seconds=601)
            await world.reconcile()
            return await super().change(target, capacity, read)

    world.control = GivenUpMeanwhile(lambda: world.now, {"plan-1": 2})
    assert await world.scale(action) is EntryKind.CONFIRMED
    assert EntryKind.FAILED in await world.kinds()
    assert (await world.desired()).changed_at == world.now


@pytest.mark.parametrize("fills", [False, True], ids=["at once", "later"])
async def test_a_late_change_that_undoes_a_newer_one_is_logged_and_repaired(fills: bool) -> None:
    world = World()
    old = await world.scaled_out()

    class Slow(Control):
        async def change(
            self, target: AppServicePlan, capacity: int, read: PlanReading
        ) -> int | None:
            world.control = Control(lambda: world.now, {"plan-1": 2})
            new = await world.load([0] * 45)
            assert new is not None
            await world.scale(new)
            world.control = self
            if fills:  # the plan still has what the newer change has set
                self.capacities["plan-1"] = new.target
                return None
            return await super().change(target, capacity, read)

    world.control = Slow(lambda: world.now, {"plan-1": 2})
    assert await world.scale(old) is EntryKind.IGNORED
    assert EntryKind.REOPENED in await world.kinds()
    (again,) = await world.reconcile()
    assert (again.target, again.epoch) == (1, 2)


@pytest.mark.parametrize("hangs", [False, True], ids=["cannot be read", "does not answer"])
async def test_a_resource_that_cannot_be_reconciled_does_not_affect_the_others(hangs: bool) -> None:
    world = World()
    action = await world.scaled_out()
    world.now += timedelta(seconds=60)

    class Failing(Control):
        async def read(self, target: AppServicePlan) -> PlanReading:
            if target.name == "plan-2" and hangs:
                await asyncio.Event().wait()
            return await super().read(target)

    world.control = Failing(lambda: world.now, {"plan-1": 2})
    first = await world.store.load("plan-2")
    await world.store.commit(first, ScalingState(desired=await world.desired()))
    both, seconds = [resource("plan-2"), world.resource], 0.05 if hangs else 10
    reconciler = Reconciler(world.store, world.control, TIMING, seconds)
    assert await reconciler.reconcile_all(both) == [action]
    assert await world.reconcile() == []  # it has just been sent


class Slow(Control):
    """Accepts changes, which take effect later."""

    reads = 0

    async def read(self, target: AppServicePlan) -> PlanReading:
        self.reads += 1
        return await super().read(target)

    async def change(
        self,
        target: AppServicePlan,
        capacity: int,
        read: PlanReading,  # noqa: ARG002  the port has it
    ) -> int | None:
        self.changes.append((target.name, capacity))
        return None


async def ordered() -> tuple[World, Slow]:
    """A plan whose change from 2 to 3 was accepted and is under way."""
    world = World(confirms=True)
    world.control = control = Slow(lambda: world.now, {"plan-1": 2})
    world.action = await world.scaled_out()
    assert await world.scale(world.action) is None
    control.reads = 0
    return world, control


async def tick(world: World, value: float = 200) -> ScaleAction | None:
    """A message with the samples of one collection, 15 s after the last one."""
    world.now += timedelta(seconds=15)
    capacity = MetricValue(world.now, world.control.capacities["plan-1"])
    backlog = Metric("plan-1", "backlog", MetricValue(world.now, value))
    return await world.take(Metric("plan-1", CAPACITY_METRIC, capacity), backlog)


async def test_each_message_looks_for_an_order_that_is_under_way_and_none_afterwards() -> None:
    world, control = await ordered()
    world.now += timedelta(seconds=4)
    await world.take(Metric("plan-1", "backlog", MetricValue(world.now, 200)))
    assert control.reads == 0, "the order was sent only just now"
    await tick(world)
    assert control.reads == 1
    control.capacities["plan-1"] = 3
    world.now += timedelta(seconds=15)
    await world.take(Metric("plan-1", "backlog", MetricValue(world.now, 200)))
    assert (control.reads, (await world.desired()).status) == (2, ActionStatus.CONFIRMED)
    for _ in range(10):
        await tick(world)
    assert (control.reads, world.due) == (2, 2), "a quiet plan costs nothing"
    assert control.changes == [("plan-1", 3)]


async def test_a_redelivered_message_does_not_repeat_an_order_that_azure_has_accepted() -> None:
    world, _ = await ordered()
    assert await world.take(Metric("plan-1", "backlog", MetricValue(world.now, 200))) is None


@pytest.mark.parametrize("seconds", [45, 75])
async def test_an_order_without_a_visible_effect_is_sent_again_after_the_usual_wait(
    seconds: int,
) -> None:
    world, _ = await ordered()
    sent = [await tick(world) for _ in range(seconds // 15)]
    assert [each for each in sent if each] == [world.action] * (seconds > 60)


@pytest.mark.parametrize("on_change", ManualChange)
async def test_a_manual_change_is_noticed_with_the_message_that_shows_it(
    on_change: ManualChange,
) -> None:
    world, control = await ordered()
    world.resources["plan-1"] = resource(on_manual_change=on_change)
    control.capacities["plan-1"] = 3
    assert await tick(world, 50) is None
    control.capacities["plan-1"] = 5
    back = await tick(world, 50)
    line = next(line for line in await world.lines() if line.kind is EntryKind.MANUAL_CHANGE)
    assert "the capacity was changed manually from 3 to 5" in line.reason
    enforced = on_change is ManualChange.ENFORCE
    assert (back.target if back else None) == (3 if enforced else None)


async def test_samples_are_kept_if_the_plan_cannot_be_read_for_the_confirmation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, _ = await ordered()
    del world.control.capacities["plan-1"]
    world.now += timedelta(seconds=15)
    newest = MetricValue(world.now, 200)
    assert await world.take(Metric("plan-1", "backlog", newest)) is None
    assert newest in await world.samples()
    assert "[reconcile_failed] all: some resources were not reconciled" in caplog.text


@pytest.mark.parametrize(
    ("last", "capacity", "age_seconds", "reads"),
    [
        (confirmed(600, target=2), 2, 59, 0),
        (confirmed(600, target=2), 2, 61, 1),
        (confirmed(600, target=2), 3, 59, 1),
        (desired(previous=3, target=2, status=ActionStatus.FAILED), 3, 59, 0),
        (desired(previous=2, target=2, status=ActionStatus.FAILED), 2, 59, 0),
    ],
)
async def test_the_timer_reads_a_quiet_plan_only_if_its_last_reading_is_old_or_unexpected(
    last: Desired, capacity: int, age_seconds: int, reads: int
) -> None:
    world = World()
    world.control = control = Slow(lambda: world.now, {"plan-1": 2})
    snapshot = await world.store.load("plan-1")
    await world.store.commit(snapshot, ScalingState(desired=last))
    await world.take(Metric("plan-1", CAPACITY_METRIC, MetricValue(world.now, capacity)))
    world.now += timedelta(seconds=age_seconds)
    await world.reconcile()
    assert control.reads == reads


async def test_the_timer_is_bounded_and_says_once_how_many_resources_are_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, running, most = World(), 0, 0
    names = [f"plan-{number}" for number in range(40)]

    class Hanging(Control):
        async def read(self, target: AppServicePlan) -> PlanReading:
            nonlocal running, most
            if int(target.name.removeprefix("plan-")) % 2:
                return await super().read(target)
            running += 1
            most = max(most, running)
            try:
                await asyncio.Event().wait()
            finally:
                running -= 1
            raise AssertionError

    world.control = Hanging(lambda: world.now, dict.fromkeys(names, 2))
    for name in names:
        state = ScalingState(desired=desired(target=3, sent_at=NOW - timedelta(seconds=61)))
        await world.store.commit(await world.store.load(name), state)
    reconciler, left = Reconciler(world.store, world.control, TIMING, 10), {*names}
    for _ in range(100):
        if left == {name for name in names if name[-1] in "02468"}:
            break
        left -= {
            each.resource_name for each in await reconciler.reconcile_all(map(resource, left), 0.05)
        }
    else:
        raise AssertionError("some are never reached")
    assert most <= 16
    lines = [line for line in caplog.messages if "[reconcile_failed]" in line]
    assert all(" not within 0.05 s" in line for line in lines)


# --- metric_collector ---


async def test_a_source_that_fails_or_does_not_answer_is_skipped_and_never_zero() -> None:
    hanging, failing = ServiceBusQueue("hanging"), ServiceBusQueue("failing")

    class Reader(MemoryReader):
        async def read(self, source: Source) -> MetricValue:
            if source == hanging:
                await asyncio.Event().wait()
            return await super().read(source)

    pushed = {"pushed": HubMetric()}  # not read at all
    sources = {"backlog": SOURCE, "hanging": hanging, "failing": failing, **pushed}
    control = MemoryCapacityControl(lambda: NOW, {"plan-1": 2})
    reader = Reader(lambda: NOW, {SOURCE: 42.0}, control)
    collection = await metric_collector.collect([resource(metrics=sources)], reader, 0.05)
    read = {m.name: m.value.value for m in collection.metrics}
    assert read == {CAPACITY_METRIC: 2, "backlog": 42}
    assert {f.metric_name: f.reason for f in collection.failures} == {
        "hanging": "no answer within 0.05 s",
        "failing": f"ReadFailed: {failing} has no value",
    }


# --- poison ---


def poisoned(body: str, queue: str = "metrics", **waited: float) -> PoisonMessage:
    return PoisonMessage(queue, "message-1", body, NOW - timedelta(**waited))


@pytest.mark.parametrize(
    ("body", "where", "whys"),
    [
        ("not json", UNATTRIBUTED, ["neither JSON nor JSON in base64"]),
        (encode_metric(Metric("plan-9", "b", MetricValue(NOW, 1))), UNATTRIBUTED, ["not declared"]),
        (encode_metric(metric(1, name="other")), "plan-1", ["metric 'other' of 'plan-1'"]),
        (encode_metric(metric(-1)), "plan-1", ["must be a number from 0 to 1e+15"]),
        (
            encode_samples([metric(1, -7200), metric(7, name="other")]),
            "plan-1",
            ["in the future", "'other'"],
        ),
        (encode_metric(metric(1)), "plan-1", ["processing it failed each time"]),
    ],
)
async def test_a_poison_metric_is_logged_whole_with_all_its_errors(
    body: str, where: str, whys: list[str]
) -> None:
    world = World()
    for _ in range(2):  # the poison queue may deliver twice too
        await poison.run_metric(poisoned(body), world.resources, world.store)
    (line,) = await world.store.log(where)
    assert (line.kind, line.body) == (EntryKind.POISON, body)
    assert all(why in line.reason for why in whys)
    assert (await world.store.load("plan-1")).state.histories == {}


async def test_operators_are_notified_of_poison_that_waited_while_the_app_was_stopped() -> None:
    world = World()
    old = poisoned("not json", hours=3, minutes=22)
    for _ in range(2):
        await poison.run_metric(old, world.resources, world.store)
    (line,) = await world.store.log(UNATTRIBUTED)
    assert line.time == old.inserted_at + timedelta(hours=3, minutes=20)
    since = world.now - NotificationIntervals().look_back
    observed = await news.collect_news([], world.store, since, world.now, 30)
    assert [each.kind for each in observed.events] == [NewsKind.POISON]


@pytest.mark.parametrize("changes", [{}, {"epoch": 2}, {"target": 4}])
async def test_only_the_pending_action_fails_if_its_message_is_poison(
    changes: dict[str, Any],
) -> None:
    world = World()
    action = await world.scaled_out()
    body = encode_action(replace(action, **changes))
    await poison.run_action(poisoned(body, "actions"), world.resources, world.store, TIMING)
    assert (await world.desired()).pending is bool(changes)
    assert EntryKind.POISON in await world.kinds()
    assert (EntryKind.FAILED in await world.kinds()) is not bool(changes)


# --- retention ---


async def test_old_log_entries_are_deleted_even_if_another_log_cannot_be_pruned() -> None:
    class Failing(Store):
        async def prune_log(self, resource_name: str, before: datetime) -> int:
            if resource_name == "broken":
                raise OSError("503")
            if resource_name == "slow":
                await asyncio.Event().wait()
            return await super().prune_log(resource_name, before)

    world = World()
    world.store = Failing(lambda: world.now)
    await world.load([50] * 4)
    world.now += timedelta(days=14, minutes=15)
    await world.load([50])
    names = ["broken", "slow", *world.resources]
    assert await retention.delete_old_entries(names, world.store, 14, budget_seconds=0.05) == 1
    assert len(await world.kinds()) == 2  # one while the backlog was missing, one on the new sample
