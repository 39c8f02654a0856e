"""Which of several copies of the app with different rules decides."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from local.twins.autoscaling import (
    MemoryCapacityControl,
    MemoryStateStore,
    with_rows,
)
from shared.autoscaling import HubMetric, Limits, ManualChange, Mode, Throughput
from shared.autoscaling.acting.activation import REPLACED_MAX, standing
from shared.autoscaling.deciding.decide import EntryKind
from shared.autoscaling.flows import notify, scaling_logic, status
from shared.autoscaling.flows.reconciler import Reconciler
from shared.autoscaling.flows.scaler import Scaler
from shared.autoscaling.messages import Samples
from shared.autoscaling.policy import Observation, Recommendation, Resource
from shared.autoscaling.state import (
    Override,
    RulesInForce,
    ScaleAction,
    ScalingState,
    changed_rows,
)
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from tests.builders import NOW, SOURCE, TIMING, ago, confirmed, desired, resource

OLD = RulesInForce("old", ago(3600))
NEW = RulesInForce("new", ago(30), ("old",))
LAPTOP = RulesInForce("local-1", ago(3600))


def waited(rules: RulesInForce, seconds: float) -> RulesInForce:
    return replace(rules, waiting_since=ago(seconds))


@pytest.mark.parametrize(
    ("rules", "version", "mode", "decides", "in_force"),
    [
        (None, None, "active", True, None),
        (OLD, None, "active", True, "old"),
        (None, "new", "active", True, "new"),
        (None, "local-1", "active", True, "local-1"),
        (OLD, "old", "active", True, "old"),
        (OLD, "new", "active", True, "new"),
        (OLD, "new", "paused", True, "new"),
        # a version that was replaced
        (NEW, "old", "active", False, "new"),
        (waited(NEW, 119), "old", "active", False, "new"),
        (waited(NEW, 120), "old", "active", True, "old"),
        (waited(NEW, -600), "old", "active", False, "new"),
        (waited(NEW, 120), "new", "active", True, "new"),
        # a dry run
        (None, "new", "dry_run", True, None),
        (OLD, "new", "dry_run", False, "old"),
        (waited(OLD, 120), "new", "dry_run", True, "old"),
        (OLD, "old", "dry_run", True, "old"),
        # a laptop
        (OLD, "local-1", "active", False, "old"),
        (waited(NEW, 9999), "local-1", "active", False, "new"),
        (waited(NEW, 9999), "local-1", "dry_run", False, "new"),
        (LAPTOP, "local-2", "active", True, "local-2"),
        (LAPTOP, "new", "active", True, "new"),
        (replace(LAPTOP, replaced=("new",)), "new", "active", True, "new"),
        (replace(LAPTOP, replaced=("local-2",)), "local-2", "active", False, "local-1"),
    ],
)
def test_the_version_that_was_activated_last_decides(
    rules: RulesInForce | None, version: str | None, mode: str, decides: bool, in_force: str | None
) -> None:
    state = ScalingState(rules=rules)
    stands = standing(resource(mode=Mode(mode)), state, version, NOW)
    after = state.with_rules(stands.rules).rules
    assert (stands.decides, after and after.version) == (decides, in_force)
    # an override has the same effect as the mode that the rules declare
    state = replace(state, override=Override(Mode(mode)))
    assert standing(resource(), state, version, NOW) == stands


@pytest.mark.parametrize(
    ("version", "waiting_since", "expected"),
    [
        ("old", None, NOW),
        ("old", ago(60), ago(60)),
        ("old", ago(-600), NOW),  # the clock of the store was set back
        ("local-1", None, None),
        ("new", ago(60), None),
    ],
)
def test_the_wait_begins_with_a_sample_without_a_decision(
    version: str, waiting_since: datetime | None, expected: datetime | None
) -> None:
    state = ScalingState(rules=replace(NEW, waiting_since=waiting_since))
    rules = standing(resource(), state, version, NOW).rules
    assert rules is not None
    assert rules.waiting_since == expected


def test_an_activation_remembers_its_time_and_a_bounded_number_of_replaced_versions() -> None:
    rules: RulesInForce | None = None
    for number in range(REPLACED_MAX + 5):
        state = ScalingState(rules=rules)
        rules = standing(resource(), state, str(number), ago(-number)).rules
    assert rules is not None
    assert (rules.version, rules.activated_at) == ("24", ago(-24))
    assert rules.replaced == tuple(map(str, range(4, 24)))


def test_a_change_of_the_desired_state_conflicts_with_an_activation_meanwhile() -> None:
    before = ScalingState(desired=confirmed(900), rules=OLD)
    assert dict(changed_rows(before, before.with_desired(desired()))).keys() == {"desired", "rules"}
    assert not dict(changed_rows(before, before))
    rows = dict(changed_rows(before, before.with_rules(NEW)))
    assert with_rows(before, before.with_rules(NEW), set(rows)).rules == NEW


# --- the flows --------------------------------------------------------------------------------


@dataclass
class Wants:
    """A policy that always recommends one capacity."""

    capacity: int
    metric_names: tuple[str, ...] = ("backlog",)

    def __call__(self, _seen: Observation) -> Recommendation:
        return Recommendation(self.capacity, f"wants {self.capacity}", "wants", paced=True)


@dataclass
class Copy:
    """A running copy of the app."""

    version: str
    capacity: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def resources(self) -> dict[str, Resource]:
        options = {"limits": Limits(1, 30), "history_seconds": 1800, **self.options}
        return {"plan-1": resource(policy=Wants(self.capacity), **options)}


OLDER, NEWER = Copy("old", 20), Copy("new", 12, {"limits": Limits(1, 12)})


@dataclass
class World:
    """Copies of the app with one store and one plan."""

    now: datetime = NOW

    def __post_init__(self) -> None:
        self.store = MemoryStateStore(lambda: self.now)
        self.control = MemoryCapacityControl(lambda: self.now, {"plan-1": 16})

    async def tick(self, copy: Copy, seconds: float = 15) -> ScaleAction | None:
        """Let this copy process the samples of the next run of the collector."""
        self.now += timedelta(seconds=seconds)
        values = {CAPACITY_METRIC: self.control.capacities["plan-1"], "backlog": 5}
        values |= {n: 60 for n in copy.resources["plan-1"].metrics if n == "finished"}
        metrics = [Metric("plan-1", n, MetricValue(self.now, v)) for n, v in values.items()]
        return await scaling_logic.process_samples(
            Samples("plan-1", tuple(metrics)), copy.resources, self.store, copy.version
        )

    async def scale(self, copy: Copy, action: ScaleAction | None) -> EntryKind | None:
        assert action is not None
        return await Scaler(copy.resources, self.store, self.control, TIMING).execute(action)

    async def reconcile(self, copy: Copy) -> list[ScaleAction]:
        return await Reconciler(self.store, self.control, TIMING, 10, copy.version).reconcile_all(
            copy.resources.values()
        )

    async def state(self) -> ScalingState:
        return (await self.store.load("plan-1")).state

    async def deciders(self) -> list[int]:
        """What each decision wanted, oldest first."""
        lines = await self.store.log("plan-1")
        return [e.candidates[0].capacity for e in lines[::-1] if e.kind is EntryKind.DECISION]


async def test_a_copy_that_is_not_in_force_stores_samples_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    metrics = {"backlog": SOURCE, "finished": HubMetric()}
    counts = {"metrics": metrics, "throughput": Throughput(completed_metric="finished")}
    older, newer = Copy("old", 20, counts), Copy("new", 12, counts)
    with caplog.at_level(logging.INFO):
        await world.tick(older)
        await world.tick(newer)
        before = await world.state()
        await world.tick(older)
    after = await world.state()
    assert [len(after.histories["finished"].samples), after.learned] == [3, before.learned]
    actions = [(vars(r)["action"], r.levelname) for r in caplog.records if "version" in r.message]
    activated = ("rules_activated", "INFO")
    assert actions == [activated, activated, ("samples_only", "WARNING")]
    assert "with version old runs too; that copy only stores samples" in caplog.text


async def test_a_copy_that_is_not_in_force_does_not_cut_the_history_of_the_one_that_is() -> None:
    world, short = World(), Copy("old", 20, {"window_seconds": 60, "history_seconds": 60})
    await world.tick(short)
    for _ in range(10):
        await world.tick(NEWER)
    await world.tick(short)
    assert len((await world.state()).histories["backlog"].samples) == 12


async def test_a_laptop_never_decides_beside_a_deployment_and_operators_are_told() -> None:
    """Of an old copy during a deployment they are not told."""
    world, laptop = World(), Copy("local-1", 3)

    async def notified() -> dict[str, str]:
        news = await notify.collect_news(OLDER.resources.values(), world.store, NOW, world.now, 30)
        return {str(each.kind): each.meaning for each in news.conditions}

    for copy in (Copy("older", 19), OLDER, Copy("older", 19)):
        await world.tick(copy)
    assert "rules.differ" not in await notified()
    for _ in range(60):
        await world.tick(laptop)
    assert await world.deciders() == [19, 20]
    stored = await status.read_one(OLDER.resources["plan-1"], world.store, 30)
    beside = (
        "version old of the rules, activated at 2026-03-01 12:00 UTC, decides, but a copy of the "
        "app with version local-1 runs too; that copy only stores samples"
    )
    told = [(each["kind"], each["meaning"]) for each in stored["conditions"]]
    assert ("rules.differ", beside) in told
    assert (await notified())["rules.differ"] == beside
    await world.tick(OLDER, seconds=121)
    assert "rules.differ" not in await notified()


async def test_a_new_version_that_adopts_a_manual_change_is_activated_by_it() -> None:
    world = World()
    await world.scale(OLDER, await world.tick(OLDER))
    world.control.capacities["plan-1"] = 25
    world.now += timedelta(seconds=61)
    await world.reconcile(NEWER)
    rules = (await world.state()).rules
    assert rules is not None
    assert rules.version == "new"


@pytest.mark.parametrize("on_manual_change", ManualChange)
async def test_a_copy_that_is_not_in_force_only_confirms_actions(
    on_manual_change: ManualChange,
) -> None:
    world, older = World(), Copy("old", 20, {"on_manual_change": on_manual_change})
    await world.tick(older)
    await world.tick(NEWER)
    pending = (await world.state()).desired
    world.now += timedelta(seconds=700)
    assert await world.reconcile(older) == []
    world.control.capacities["plan-1"] = 25
    assert await world.reconcile(older) == []
    assert (await world.state()).desired == pending
    world.control.capacities["plan-1"] = 12
    await world.reconcile(older)
    reached = (await world.state()).desired
    assert reached is not None
    assert not reached.pending
    world.control.capacities["plan-1"] = 25
    await world.reconcile(NEWER)
    adopted = (await world.state()).desired
    assert adopted is not None
    assert adopted.target == 25


async def test_each_copy_carries_out_actions_within_its_own_limits_only() -> None:
    """The newer version allows more than the older one, whose copy receives the action."""
    world, small = World(), Copy("old", 10, {"limits": Limits(1, 10)})
    await world.tick(small)
    action = await world.tick(OLDER)
    assert await world.scale(small, action) is EntryKind.IGNORED
    assert "20 is above the maximum of 10" in (await world.store.log("plan-1"))[0].reason
    assert await world.scale(OLDER, action) is EntryKind.CONFIRMED
