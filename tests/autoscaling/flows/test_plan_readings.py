"""The collector reads each plan once a minute, and nothing is taken for missing in between."""

from __future__ import annotations

from datetime import timedelta

import pytest

from local.twins.autoscaling import MemoryCapacityControl, MemoryReader, MemoryStateStore
from shared.autoscaling import PlanCapacity, Source
from shared.autoscaling.declaring import AppServicePlan, Guards, Missing
from shared.autoscaling.errors import CapacityPostponed
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.flows.metric_collector import Collection, collect
from shared.autoscaling.flows.reading import PlanReadings
from shared.autoscaling.messages import decode_samples
from shared.autoscaling.operating.conditions import conditions
from shared.autoscaling.policy import Resource
from shared.autoscaling.sources import Reading
from shared.values.measurements import CAPACITY_METRIC, MetricValue
from tests.builders import NOW, SOURCE, plan, resource

AHEAD = timedelta(seconds=200)
"""How far the clock of Resource Manager is ahead of the app's own."""


class Dated(Source):
    """A number of the user, which no server dates."""

    async def read(self, _at: Reading) -> float:
        return 7


class World(MemoryCapacityControl):
    """Plans that are read through a limit, and the runs of the collector."""

    def __init__(self, *names: str) -> None:
        self.now = NOW
        super().__init__(lambda: self.now + AHEAD, dict.fromkeys(names, 2))
        self.limit = 1000
        self.asked: list[str] = []
        self.readings = PlanReadings()
        self.reader = MemoryReader(lambda: self.now, {SOURCE: 42.0}, self)

    async def describe(self, target: AppServicePlan) -> MetricValue:
        if len(self.asked) >= self.limit:
            raise CapacityPostponed("the limit is used up")
        self.asked.append(target.name)
        return await super().describe(target)

    async def run(self, seconds: float, *resources: Resource) -> Collection:
        self.now += timedelta(seconds=seconds)
        self.asked.clear()
        return await collect(resources, self.reader, 1, readings=self.readings)


@pytest.mark.parametrize(
    ("seconds", "reads"),
    [
        ([15] * 12, "x...x...x...x"),
        ([15.4, 14.6, 15.2, 14.7] * 3, "x...x...x...x"),  # a timer is not exact
        ([10] * 12, "x.....x.....x"),
        ([20] * 6, "x..x..x"),
        ([30] * 6, "x.x.x.x"),
        ([45] * 4, "xxxxx"),
        ([60] * 4, "xxxxx"),
        ([300] * 4, "xxxxx"),
        ([1] * 130, f"x{'.' * 59}x{'.' * 59}x{'.' * 10}"),
        ([15, 15, -3600, 15], "x..x."),  # the clock is set back
    ],
)
async def test_a_plan_is_read_once_a_minute_or_in_each_run(
    seconds: list[float], reads: str
) -> None:
    world, declared = World("plan-1"), resource()
    found = ""
    for each in [0, *seconds]:
        collection = await world.run(each, declared)
        assert [m.name for m in collection.metrics if m.name == "backlog"] == ["backlog"]
        assert (CAPACITY_METRIC in {m.name for m in collection.metrics}) is bool(world.asked)
        found += "x" if world.asked else "."
    assert found[: len(reads)] == reads


async def test_what_the_limit_cuts_off_comes_first_in_the_next_run_and_is_no_failure() -> None:
    names = [f"plan-{n}" for n in range(5)]
    world, declared = World(*names), [resource(name) for name in names]
    world.limit = 2
    for expected in (names[:2], names[2:4], names[4:]):
        collection = await world.run(15, *declared)
        assert (world.asked, collection.failures) == (expected, ())
    await world.run(30, *declared)
    assert world.asked == names[:2]


async def test_plans_that_cannot_be_read_are_tried_again_but_keep_no_other_from_being_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone, there = [f"gone-{n}" for n in range(4)], ["plan-1", "plan-2"]
    world = World(*there)
    declared = [resource(name) for name in [*gone, *there]]
    world.limit = 4
    assert len((await world.run(0, *declared)).failures) == 4
    caplog.clear()
    await world.run(15, *declared)
    assert world.asked[:2] == there
    assert len(world.asked) == 4, "the others are tried again"
    lines = [each.message for each in caplog.records if "source_failed" in each.message]
    assert [line.split(":")[0] for line in lines] == [
        f"[source_failed] {name}" for name in gone[:2]
    ]
    world.capacities.update(dict.fromkeys(gone, 1))
    world.limit = 1000
    assert (await world.run(15, *declared)).failures == ()


async def test_one_line_of_each_run_says_how_many_plans_are_unread_since_when(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = [f"plan-{n}" for n in range(9)]
    world, declared = World(*names), [resource(name) for name in names]
    await world.run(0, *declared)
    world.limit = 2
    for _ in range(24):
        await world.run(15, *declared)
    assert caplog.records == []  # nine plans are read within two minutes
    world.limit = 0
    for _ in range(9):
        await world.run(15, *declared)
    caplog.clear()
    await world.run(15, *declared)
    (told,) = (each.getMessage() for each in caplog.records)
    assert told.startswith("[source_failed] several resources: 9 resources: the plan has not been")
    assert "since 12:" in told


async def test_few_plans_that_cannot_be_read_are_named_one_by_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await World("plan-1").run(0, resource("gone"), resource("plan-1"))
    assert "[source_failed] gone: capacity could not be read" in caplog.text


async def test_a_value_without_a_time_gets_that_of_resource_manager_also_between_its_readings() -> (
    None
):
    world, declared = World("plan-1"), resource(metrics={"mine": Dated()})
    for _ in range(5):
        collection = await world.run(15, declared)
        (mine,) = [each for each in collection.metrics if each.name == "mine"]
        assert mine.value.time == world.now + AHEAD


async def test_the_capacity_of_another_plan_that_a_policy_reads_is_read_in_each_run() -> None:
    world = World("plan-1", "plan-2")
    declared = [
        resource("plan-1", metrics={"peer": PlanCapacity(plan("plan-2"))}),
        resource("plan-2"),
    ]
    for _ in range(3):
        collection = await world.run(15, *declared)
        assert "peer" in {each.name for each in collection.metrics}
    assert world.asked == ["plan-2"]


@pytest.mark.parametrize("missing", [Missing(), Missing(after_seconds=30)])
async def test_a_plan_is_called_unread_when_two_readings_are_missing_and_not_between_them(
    missing: Missing,
) -> None:
    world = World("plan-1")
    declared = resource(guards=Guards(missing=missing))
    store = MemoryStateStore(lambda: world.now + AHEAD)
    told = list[str]()

    class Fresh(MemoryReader):
        async def message_count(self, _source: object) -> MetricValue:
            return MetricValue(world.now + AHEAD, 42)

    world.reader = Fresh(lambda: world.now, {}, world)
    for tick in range(40):
        if tick == 20:
            world.limit = 0
        for text in (await world.run(15, declared)).messages():
            await scaling_logic.process_samples(decode_samples(text), {"plan-1": declared}, store)
        snapshot = await store.load("plan-1")
        found = conditions(declared, snapshot, 30)
        told += [f"{tick} {each.kind} {each.what}" for each in found if "capacity" in each.what]
    assert told[0].startswith("25 source.stale plan-1: no sample of capacity for 2 min")
