"""The flows on in-memory adapters: their effect on state, log and capacity."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from local.twins.autoscaling import MemoryCapacityControl, MemoryReader, MemoryStateStore
from shared.autoscaling import Guards, Limits, ManualChange, Missing, Mode, ServiceBusQueue
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.declaring import CapacityTarget
from shared.autoscaling.errors import (
    BadMessage,
    CapacityDelayed,
    CapacityRefused,
    StateConflict,
    UnknownResource,
)
from shared.autoscaling.flows import (
    metric_collector,
    poison,
    retention,
    scaling_logic,
    status,
)
from shared.autoscaling.flows import notify as news
from shared.autoscaling.flows.poison import UNATTRIBUTED, PoisonMessage
from shared.autoscaling.flows.reconciler import Reconciler
from shared.autoscaling.flows.scaler import Scaler
from shared.autoscaling.messages import encode_action
from shared.autoscaling.operating import presenting
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.sources import HubMetric, Source
from shared.autoscaling.state import ActionStatus, Desired, Override, ScaleAction, ScalingState
from shared.notifications.selection import NotificationIntervals
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.values.news import NewsKind
from tests.builders import NOW, SOURCE, TIMING, as_message, encode_metric, metric, resource


class Control(MemoryCapacityControl):
    """Raises ``error`` on a change; if ``after`` is true, only after changing the capacity."""

    error: Exception | None = None
    after = False

    async def change(self, target: CapacityTarget, capacity: int) -> None:
        if self.error is not None and not self.after:
            raise self.error
        await super().change(target, capacity)
        if self.error is not None:
            raise self.error


@dataclass
class World:
    """One resource with in-memory adapters and a clock that tests set."""

    resource: Resource = field(default_factory=resource)
    now: datetime = NOW
    capacity: int = 2

    def __post_init__(self) -> None:
        self.store = MemoryStateStore(lambda: self.now)
        self.control = Control(lambda: self.now, {"plan-1": self.capacity})
        self.resources = {self.resource.name: self.resource}

    async def sample(self, value: float, name: str = "backlog") -> ScaleAction | None:
        sent = Metric("plan-1", name, MetricValue(self.now, value))
        return await scaling_logic.process_samples(as_message(sent), self.resources, self.store)

    async def load(self, values: list[float], every_seconds: float = 15) -> ScaleAction | None:
        """Send capacity and backlog samples at a fixed interval, and return the last action."""
        action = None
        for value in values:
            self.now += timedelta(seconds=every_seconds)
            await self.sample(self.control.capacities["plan-1"], CAPACITY_METRIC)
            action = await self.sample(value) or action
        return action

    async def scale(self, action: ScaleAction) -> EntryKind:
        return await Scaler(self.resources, self.store, self.control, TIMING).execute(action)

    async def reconcile(self) -> list[ScaleAction]:
        return await Reconciler(self.store, self.control, TIMING, 10).reconcile_all([self.resource])

    async def desired(self) -> Desired:
        desired = (await self.store.load("plan-1")).state.desired
        assert desired is not None
        return desired

    async def kinds(self) -> list[EntryKind]:
        return [e.kind for e in await self.store.log("plan-1", 1000)]


async def scaled_out(world: World) -> ScaleAction:
    action = await world.load([200] * 5)
    assert action is not None
    return action


# --- scaling_logic ---


async def test_five_high_samples_request_one_more_instance_once() -> None:
    world = World()
    action = await scaled_out(world)
    assert (action.target, action.epoch) == (3, 1)
    assert await world.load([200] * 5) is None
    assert (await world.desired()).epoch == 1


async def test_a_redelivered_sample_changes_nothing_and_repeats_the_pending_action() -> None:
    world = World()
    action = await scaled_out(world)
    before = await world.store.load("plan-1")
    assert await world.sample(200) == action
    assert (await world.store.load("plan-1")).state == before.state


async def test_a_dry_run_logs_its_decision_and_requests_nothing() -> None:
    world = World(resource(mode=Mode.DRY_RUN))
    assert await world.load([200] * 5) is None
    assert (await world.store.load("plan-1")).state.desired is None
    assert "would scale 2 → 3" in (await world.store.log("plan-1"))[0].reason


async def test_a_paused_resource_keeps_its_samples() -> None:
    world = World()
    world.store.override("plan-1", Override(Mode.PAUSED, "maintenance"))
    assert await world.load([200] * 5) is None
    assert len((await world.store.load("plan-1")).state.histories["backlog"].samples) == 5
    world.store.override("plan-1", None)
    assert await world.load([200]) is not None


async def test_a_stale_sample_is_logged_and_not_committed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    with caplog.at_level(logging.WARNING):
        await scaling_logic.process_samples(
            as_message(metric(200, 601)), world.resources, world.store
        )
    assert "[stale_sample_dropped] plan-1: 1 sample(s) of backlog" in caplog.text
    snapshot = await world.store.load("plan-1")
    assert (snapshot.state, snapshot.version) == (ScalingState(), {})
    assert await world.kinds() == []


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Metric("plan-9", "backlog", MetricValue(NOW, 1)), UnknownResource),
        (metric(1, name="other"), UnknownResource),
        (metric(float("nan")), BadMessage),
        (metric(1, -3600), BadMessage),
    ],
)
async def test_an_invalid_sample_never_changes_the_state(
    message: Metric, error: type[Exception]
) -> None:
    world = World()
    with pytest.raises(error):
        await scaling_logic.process_samples(as_message(message), world.resources, world.store)
    assert (await world.store.load("plan-1")).state.histories == {}


async def test_after_too_many_conflicts_the_message_goes_back_to_the_queue() -> None:
    class Losing(MemoryStateStore):
        attempts = 0

        async def commit(self, *_args: object, **_kwargs: object) -> None:
            self.attempts += 1
            raise StateConflict("always")

    store = Losing(lambda: NOW)
    with pytest.raises(StateConflict, match="during each of 10 attempts"):
        await scaling_logic.process_samples(as_message(metric(1)), {"plan-1": resource()}, store)
    assert store.attempts == 10


async def test_concurrent_samples_lead_to_one_action() -> None:
    class Interleaving(MemoryStateStore):
        """Lets all callers read before the first one writes."""

        conflicts = 0

        async def load(self, resource_name: str) -> Snapshot:
            snapshot = await super().load(resource_name)
            await asyncio.sleep(0)
            return snapshot

        async def commit(
            self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
        ) -> None:
            try:
                await super().commit(snapshot, state, entries)
            except StateConflict:
                self.conflicts += 1
                raise

    world = World()
    world.store = store = Interleaving(lambda: world.now)
    await world.load([200] * 4)
    samples = [MetricValue(world.now + timedelta(seconds=s), 200) for s in (1, 2, 3)]
    sent = [Metric("plan-1", "backlog", value) for value in samples]
    actions = await asyncio.gather(
        *[scaling_logic.process_samples(as_message(m), world.resources, world.store) for m in sent]
    )
    assert store.conflicts > 0
    assert [a.epoch for a in actions if a] == [1]
    assert (await world.desired()).epoch == 1


async def test_a_resource_whose_metric_has_no_samples_falls_back_after_a_while() -> None:
    guards = Guards(missing=Missing(after_seconds=60, then=4))
    world = World(resource(guards=guards))
    action = None
    for _ in range(8):
        world.now += timedelta(seconds=15)
        action = await world.sample(2, CAPACITY_METRIC) or action
    assert action is not None
    assert action.target == 4


# --- scaler ---


async def test_an_action_is_carried_out_once_however_often_it_arrives() -> None:
    world = World()
    action = await scaled_out(world)
    assert await world.scale(action) is EntryKind.CONFIRMED
    assert await world.scale(action) is EntryKind.IGNORED
    assert world.control.changes == [("plan-1", 3)]
    assert (await world.desired()).changed_at == world.now


async def test_an_action_of_an_older_epoch_is_ignored() -> None:
    world = World()
    old = await scaled_out(world)
    new = await world.load([0] * 45)
    assert new is not None
    assert (new.target, new.epoch) == (1, 2)
    assert await world.scale(new) is EntryKind.CONFIRMED
    assert await world.scale(old) is EntryKind.IGNORED
    assert world.control.capacities["plan-1"] == 1


async def test_the_cooldown_runs_from_the_confirmation_not_from_the_decision() -> None:
    world = World()
    action = await scaled_out(world)
    world.now += timedelta(seconds=500)
    await world.scale(action)
    assert await world.load([200] * 39) is None  # 585 s
    assert await world.load([200] * 2) is not None  # 615 s


async def test_an_action_on_a_busy_plan_is_retried_and_carried_out_once() -> None:
    world = World()
    action = await scaled_out(world)
    world.control.error = CapacityDelayed("409 another operation is in progress")
    assert await world.scale(action) is EntryKind.DEFERRED
    assert await world.reconcile() == []
    world.now += timedelta(seconds=15)
    world.control.error = None
    assert await world.reconcile() == [action]
    assert await world.scale(action) is EntryKind.CONFIRMED
    assert world.control.changes == [("plan-1", 3)]


async def test_the_desired_capacity_is_that_of_the_pending_action_until_it_ends() -> None:
    """Also if the policy, which sees only the present capacity, recommends to hold meanwhile."""
    world = World()
    action = await scaled_out(world)
    since = world.now
    for value in (200, 50, 50, 50, 50, 50, 50, 200):
        await world.load([value])
    lines = [e for e in await world.store.log("plan-1", 1000, since) if e.metric]
    assert {(e.current, e.desired) for e in lines} == {(2, 3)}
    assert {point["desired"] for point in presenting.points(lines, 60)} == {3}
    assert [e.applies for e in lines].count(True) == 1
    world.control.error = CapacityRefused("403 forbidden")
    await world.scale(action)
    await world.load([50])
    assert (await world.store.log("plan-1", 1))[0].desired == 2


@pytest.mark.parametrize("error", [CapacityDelayed("plan-1: 409: x"), CapacityRefused("403: y")])
async def test_an_answer_of_resource_manager_never_stands_in_place_of_the_newest_decision(
    error: Exception,
) -> None:
    world = World()
    action = await scaled_out(world)
    world.control.error = error
    await world.scale(action)
    (line,) = await world.store.log("plan-1", 1)
    assert line.kind in (EntryKind.DEFERRED, EntryKind.FAILED)
    assert line.reason.startswith("the change ")
    assert line.reason.endswith(f": {error}")
    newest = (await status.read_one(world.resource, world.store, 30))["newest"]
    assert newest
    assert newest["reason"].startswith("the mean backlog is 200, above the upper threshold 100")


async def test_a_change_that_succeeded_in_spite_of_a_time_out_is_not_repeated() -> None:
    world = World()
    action = await scaled_out(world)
    world.control.error, world.control.after = CapacityDelayed("no answer"), True
    assert await world.scale(action) is EntryKind.DEFERRED
    assert await world.reconcile() == []
    assert (await world.desired()).status is ActionStatus.CONFIRMED
    assert world.control.changes == [("plan-1", 3)]


async def test_after_a_refused_action_the_resource_may_scale_again_within_a_minute() -> None:
    world = World()
    action = await scaled_out(world)
    world.control.error = CapacityRefused("403 forbidden")
    assert await world.scale(action) is EntryKind.FAILED
    assert await world.load([200] * 3) is None
    again = await world.load([200])
    assert again is not None
    assert again.epoch == 2


async def test_a_manual_change_before_an_action_is_carried_out_is_adopted() -> None:
    world = World()
    action = await scaled_out(world)
    world.control.capacities["plan-1"] = 5
    assert await world.scale(action) is EntryKind.MANUAL_CHANGE
    assert world.control.changes == []
    adopted = await world.desired()
    assert (adopted.target, adopted.epoch, adopted.status) == (5, 2, ActionStatus.CONFIRMED)
    assert await world.load([0] * 39) is None  # the cooldown runs from the manual change


@pytest.mark.parametrize(
    ("on_change", "capacity", "epoch"), [(ManualChange.ENFORCE, 2, 2), (ManualChange.ADOPT, 5, 2)]
)
async def test_a_manual_change_is_set_back_or_kept_by_reconciler_and_scaler_together(
    on_change: ManualChange, capacity: int, epoch: int
) -> None:
    world = World(resource(on_manual_change=on_change), capacity=1)
    assert await world.scale(await scaled_out(world)) is EntryKind.CONFIRMED
    world.control.capacities["plan-1"] = 5
    world.now += timedelta(seconds=30)
    actions = await world.reconcile()
    for action in actions:
        assert await world.scale(action) is EntryKind.CONFIRMED
    assert len(actions) == (on_change is ManualChange.ENFORCE)
    wanted = await world.desired()
    assert (wanted.target, wanted.epoch, wanted.status) == (
        capacity,
        epoch,
        ActionStatus.CONFIRMED,
    )
    assert world.control.capacities == {"plan-1": capacity}
    assert await world.reconcile() == []


async def test_a_manual_change_while_an_action_waits_is_set_back_by_the_scaler() -> None:
    world = World(resource(on_manual_change=ManualChange.ENFORCE))
    action = await scaled_out(world)
    world.control.capacities["plan-1"] = 5
    assert await world.scale(action) is EntryKind.CONFIRMED
    assert world.control.capacities == {"plan-1": 3}
    assert world.control.changes == [("plan-1", 3)]


async def test_a_change_that_took_effect_is_confirmed_even_if_it_was_given_up_meanwhile() -> None:
    world = World()
    action = await scaled_out(world)

    class GivenUpMeanwhile(Control):
        async def change(self, target: CapacityTarget, capacity: int) -> None:
            await super().change(target, capacity)
            world.now += timedelta(seconds=601)
            self.capacities[target.name] = 2  # the change is not visible yet
            await world.reconcile()
            self.capacities[target.name] = capacity

    world.control = GivenUpMeanwhile(lambda: world.now, {"plan-1": 2})
    assert await world.scale(action) is EntryKind.CONFIRMED
    assert EntryKind.FAILED in await world.kinds()
    assert (await world.desired()).changed_at == world.now


async def test_a_capacity_observed_after_its_action_was_given_up_starts_the_cooldown() -> None:
    world = World()
    await scaled_out(world)
    world.now += timedelta(seconds=601)
    await world.reconcile()
    assert (await world.desired()).status is ActionStatus.FAILED
    world.control.capacities["plan-1"] = 3
    assert await world.load([200] * 39) is None
    assert (await world.desired()).status is ActionStatus.CONFIRMED


async def test_a_late_change_that_undid_a_newer_one_is_logged_and_repaired() -> None:
    world = World()
    old = await scaled_out(world)

    class Slow(Control):
        async def change(self, target: CapacityTarget, capacity: int) -> None:
            world.control = Control(lambda: world.now, {"plan-1": 2})
            new = await world.load([0] * 45)
            assert new is not None
            await world.scale(new)
            world.control = self
            await super().change(target, capacity)

    world.control = Slow(lambda: world.now, {"plan-1": 2})
    assert await world.scale(old) is EntryKind.IGNORED
    assert EntryKind.REOPENED in await world.kinds()
    (again,) = await world.reconcile()
    assert (again.target, again.epoch) == (1, 2)


async def test_an_action_is_not_confirmed_if_another_capacity_is_read_back() -> None:
    class IgnoringChanges(Control):
        async def change(self, target: CapacityTarget, capacity: int) -> None:
            self.changes.append((target.name, capacity))

    world = World()
    world.control = IgnoringChanges(lambda: world.now, {"plan-1": 2})
    assert await world.scale(await scaled_out(world)) is EntryKind.DEFERRED


async def test_a_pending_action_is_not_carried_out_while_its_resource_is_paused() -> None:
    world = World()
    action = await scaled_out(world)
    world.store.override("plan-1", Override(Mode.PAUSED))
    assert await world.scale(action) is EntryKind.IGNORED
    world.store.override("plan-1", None)
    assert await world.scale(action) is EntryKind.CONFIRMED


async def test_after_the_maximum_was_lowered_the_next_decision_replaces_a_waiting_action() -> None:
    world = World(capacity=4)
    action = await scaled_out(world)
    assert action.target == 5
    world.resource = resource(limits=Limits(1, 3))
    world.resources = {"plan-1": world.resource}
    world.now += timedelta(seconds=90)
    assert await world.scale(action) is EntryKind.IGNORED
    reason = "action to 5 ignored: 5 is above the maximum of 3"
    assert (await world.store.log("plan-1"))[0].reason == reason
    assert await world.reconcile() == []
    newer = await world.load([200])
    assert newer is not None
    assert (newer.target, newer.epoch) == (3, 2)
    assert await world.scale(newer) is EntryKind.CONFIRMED
    assert [capacity for _, capacity in world.control.changes] == [3]


# --- reconciler ---


async def test_a_lost_action_is_sent_again() -> None:
    world = World()
    action = await scaled_out(world)
    world.now += timedelta(seconds=60)
    assert await world.reconcile() == [action]
    assert await world.reconcile() == []  # it has just been sent


async def test_a_lost_confirmation_is_replaced_by_the_next_capacity_sample() -> None:
    world = World()
    await scaled_out(world)
    world.control.capacities["plan-1"] = 3
    await world.load([50])
    assert (await world.desired()).status is ActionStatus.CONFIRMED
    assert EntryKind.CONFIRMED in await world.kinds()


async def test_an_action_past_its_deadline_fails() -> None:
    world = World()
    await scaled_out(world)
    world.now += timedelta(seconds=601)
    assert await world.reconcile() == []
    assert (await world.desired()).status is ActionStatus.FAILED


async def test_a_resource_that_cannot_be_read_does_not_affect_the_others() -> None:
    world = World()
    action = await scaled_out(world)
    world.now += timedelta(seconds=60)
    broken = resource("plan-2", on_manual_change=ManualChange.ENFORCE)
    both = {"plan-2": broken, **world.resources}
    await scaling_logic.process_samples(
        as_message(Metric("plan-2", CAPACITY_METRIC, MetricValue(world.now, 1))), both, world.store
    )
    for i in range(5):
        value = MetricValue(world.now - timedelta(seconds=i), 200)
        await scaling_logic.process_samples(
            as_message(Metric("plan-2", "backlog", value)), both, world.store
        )
    again = await Reconciler(world.store, world.control, TIMING, 10).reconcile_all(both.values())
    assert again == [action]


async def test_a_resource_that_does_not_answer_does_not_delay_the_others() -> None:
    world = World()
    action = await scaled_out(world)
    world.now += timedelta(seconds=60)

    class Hanging(Control):
        async def read(self, target: CapacityTarget) -> MetricValue:
            if target.name == "plan-2":
                await asyncio.Event().wait()
            return await super().read(target)

    world.control = Hanging(lambda: world.now, {"plan-1": 2})
    hanging = resource("plan-2")
    first = await world.store.load("plan-2")
    await world.store.commit(first, ScalingState(desired=await world.desired()))
    both = [hanging, world.resource]
    assert await Reconciler(world.store, world.control, TIMING, 0.05).reconcile_all(both) == [
        action
    ]


# --- metric_collector ---


async def test_a_source_that_fails_or_does_not_answer_is_skipped_and_never_zero() -> None:
    hanging, failing = ServiceBusQueue("hanging"), ServiceBusQueue("failing")

    class Reader(MemoryReader):
        async def read(self, source: Source) -> MetricValue:
            if source == hanging:
                await asyncio.Event().wait()
            return await super().read(source)

    sources = {"backlog": SOURCE, "hanging": hanging, "failing": failing}
    control = MemoryCapacityControl(lambda: NOW, {"plan-1": 2})
    reader = Reader(lambda: NOW, {SOURCE: 42.0}, control)
    collection = await metric_collector.collect([resource(metrics=sources)], reader, 0.05)
    assert {m.name: m.value.value for m in collection.metrics} == {
        CAPACITY_METRIC: 2,
        "backlog": 42,
    }
    assert {f.metric_name: f.reason for f in collection.failures} == {
        "hanging": "no answer within 0.05 s",
        "failing": f"ReadFailed: {failing} has no value",
    }


async def test_pushed_metrics_are_not_read() -> None:
    sources: dict[str, Source] = {"backlog": SOURCE, "pushed": HubMetric()}
    control = MemoryCapacityControl(lambda: NOW, {"plan-1": 2})
    reader = MemoryReader(lambda: NOW, {SOURCE: 42.0}, control)
    collection = await metric_collector.collect([resource(metrics=sources)], reader, 1)
    assert {m.name for m in collection.metrics} == {CAPACITY_METRIC, "backlog"}
    assert collection.failures == ()


# --- poison ---


def poisoned(body: str, queue: str = "metrics") -> PoisonMessage:
    return PoisonMessage(queue, "message-1", body, NOW)


@pytest.mark.parametrize(
    ("body", "where", "why"),
    [
        ("not json", UNATTRIBUTED, "neither JSON nor JSON in base64"),
        (encode_metric(Metric("plan-9", "b", MetricValue(NOW, 1))), UNATTRIBUTED, "not declared"),
        (encode_metric(metric(1, name="other")), "plan-1", "metric 'other' of 'plan-1'"),
        (encode_metric(metric(-1)), "plan-1", "must be a number from 0 to 1e+15"),
        (encode_metric(metric(1, -7200)), "plan-1", "in the future"),
        (encode_metric(metric(1)), "plan-1", "processing it failed each time"),
    ],
)
async def test_a_poison_metric_is_logged_whole_with_its_reason(
    body: str, where: str, why: str
) -> None:
    world = World()
    for _ in range(2):  # the poison queue may deliver twice too
        await poison.run_metric(poisoned(body), world.resources, world.store)
    (line,) = await world.store.log(where)
    assert (line.kind, line.body) == (EntryKind.POISON, body)
    assert why in line.reason
    assert (await world.store.load("plan-1")).state.histories == {}


async def test_operators_are_notified_of_poison_that_waited_while_the_app_was_stopped() -> None:
    world = World()
    waited = timedelta(hours=3, minutes=20)
    old = PoisonMessage("metrics", "message-1", "not json", world.now - waited)
    for _ in range(2):
        await poison.run_metric(old, world.resources, world.store)
    (line,) = await world.store.log(UNATTRIBUTED)
    assert line.time == old.inserted_at + timedelta(hours=3, minutes=20)
    since = world.now - NotificationIntervals().look_back
    observed = await news.collect_news([], world.store, since, world.now, 30)
    assert [each.kind for each in observed.events] == [NewsKind.POISON]


async def test_a_poison_action_that_is_pending_fails() -> None:
    world = World()
    action = await scaled_out(world)
    message = poisoned(encode_action(action), "actions")
    await poison.run_action(message, world.resources, world.store, TIMING)
    assert (await world.desired()).status is ActionStatus.FAILED
    assert {EntryKind.POISON, EntryKind.FAILED} <= set(await world.kinds())


async def test_a_poison_action_of_an_older_epoch_does_not_fail_the_pending_one() -> None:
    world = World()
    action = await scaled_out(world)
    newer = await world.load([0] * 45)
    assert newer is not None
    assert newer.epoch > action.epoch
    old = poisoned(encode_action(action), "actions")
    await poison.run_action(old, world.resources, world.store, TIMING)
    assert (await world.desired()).pending


# --- retention ---


async def test_old_log_entries_are_deleted() -> None:
    world = World()
    await world.load([50] * 4)
    world.now += timedelta(days=14)
    await world.load([50])
    assert await retention.delete_old_entries(world.resources, world.store, 14) == 4
    assert len(await world.kinds()) == 2  # one while the backlog was missing, one on the new sample


async def test_a_log_that_cannot_be_pruned_does_not_prevent_pruning_the_others() -> None:
    class Failing(MemoryStateStore):
        async def prune_log(self, resource_name: str, before: datetime) -> int:
            if resource_name == "broken":
                raise OSError("503")
            if resource_name == "slow":
                await asyncio.Event().wait()
            return await super().prune_log(resource_name, before)

    world = World()
    world.store = Failing(lambda: world.now)
    await world.load([50] * 4)
    world.now += timedelta(days=15)
    names = ["broken", "slow", *world.resources]
    assert await retention.delete_old_entries(names, world.store, 14, budget_seconds=0.05) == 4
