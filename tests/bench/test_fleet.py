"""What the measurements of a fleet count."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from bench import fleet
from bench.fleet_azure import azure
from bench.fleet_process import Watch
from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling.plans.app_service import AppServiceControl
from shared.autoscaling.state import ScalingState
from shared.settings import load
from shared.values.measurements import MetricValue, Window
from tests.builders import NOW


async def test_the_stand_ins_of_a_fleet_count_the_requests_of_the_app_and_the_orders() -> None:
    target = fleet.with_queues(2)[1].target
    with azure(2, lists=False) as running:
        control, since = AppServiceControl(load({"ArmEndpoint": running.arm})), time.time() - 1
        for _ in range(3):
            await control.read(target)
        figures = await running.ask(since=since)
        await control.close()
        assert (figures["reads"], figures["puts"]) == (3, {})
        assert figures["unread"] > 0
        assert (await running.ask(since=time.time() + 5)).get("reads") is None


async def test_a_backlog_is_as_old_as_its_sample_when_a_newer_one_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = 1_000.0
    monkeypatch.setattr("time.time", lambda: seconds)
    store, watch = MemoryStateStore(lambda: NOW), Watch(begun=seconds)
    watch.over(store)
    for sampled, seconds in ((1_001, 1_003), (1_016, 1_022)):  # noqa: B007  read by the clock
        value = MetricValue(datetime.fromtimestamp(sampled, UTC), 5.0)
        state = ScalingState().with_history("backlog", Window((value,)))
        await store.commit(await store.load("plan-0000"), state)
    assert watch.ages == [3, 21]
    seconds = 1_050.0
    assert watch.age_p99(1) == pytest.approx(34, abs=1)
