"""Decisions account for the usual lag of Azure Monitor, and for no more than that."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from local.twins.autoscaling import (
    MemoryCapacityControl,
    MemoryReader,
    MemoryStateStore,
)
from local.twins.platform_metrics import MemoryPlatformMetrics
from shared.autoscaling import (
    AzureMonitorMetric,
    HubMetric,
    MetricRule,
    MetricRules,
    Resource,
)
from shared.autoscaling.azure_monitor.source import LAG_SECONDS_MAX
from shared.autoscaling.deciding.decide import decide
from shared.autoscaling.deciding.samples import merge, observe
from shared.autoscaling.flows import check_connections
from shared.autoscaling.operating import presenting
from shared.autoscaling.operating.conditions import silent_after_seconds
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.sources import Source
from shared.autoscaling.state import ActionStatus, ScalingState
from shared.values.measurements import CAPACITY_METRIC, Window
from tests.builders import NOW, ago, desired, metric, resource, sample

PLAN = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/group-1/providers"
    "/Microsoft.Web/serverfarms/plan-1"
)
CPU = AzureMonitorMetric(PLAN, "CpuPercentage")
RULES = MetricRules((MetricRule("cpu", "<", 30, "in", window_seconds=300),))


def workers(source: Source = CPU, **changes: Any) -> Resource:
    return resource(**{"metrics": {"cpu": source}, "policy": RULES, **changes})


def known(lag_seconds: float, value: float = 5, capacity: int = 3) -> ScalingState:
    """A sample a minute, of which the newest has this age."""
    samples = tuple(sample(value, lag_seconds + 60 * n) for n in range(20, -1, -1))
    return ScalingState({"cpu": Window(samples), CAPACITY_METRIC: Window((sample(capacity),))})


@pytest.mark.parametrize("lag_seconds", [0, 60, 240, 600, 900])
def test_a_metric_that_lags_as_usual_lets_the_capacity_scale_in(lag_seconds: float) -> None:
    assert decide(workers(), known(lag_seconds), NOW).desired == 2


def test_a_metric_that_lags_more_than_usual_counts_as_missing() -> None:
    still = decide(workers(), known(LAG_SECONDS_MAX + 180), NOW)
    late = decide(workers(), known(LAG_SECONDS_MAX + 181), NOW)
    assert (still.desired, late.desired) == (2, 3)
    assert "cpu has had no sample" in late.reason


def test_other_sources_get_no_extra_time() -> None:
    assert decide(workers(HubMetric()), known(240), NOW).desired == 3


def test_a_window_holds_the_newest_minutes_that_are_known() -> None:
    seen = observe(workers(window_seconds=300), known(420), 3, NOW)
    times = [each.time for each in seen.window("cpu").samples]
    assert times == [ago(60 * n) for n in range(5, -1, -1)]
    assert [each.time for each in seen.history("cpu").samples][-1] == NOW


def test_load_from_before_a_change_stays_hidden_from_windows() -> None:
    """Times are compared before they are moved: 420 s of lag must not make old load look new."""
    changed = desired(status=ActionStatus.CONFIRMED, changed_at=ago(300))
    state = ScalingState(known(420).histories, changed)
    assert observe(workers(), state, 3, NOW).window("cpu").samples == ()
    earlier = ScalingState(
        state.histories, desired(status=ActionStatus.CONFIRMED, changed_at=ago(600))
    )
    assert observe(workers(), earlier, 3, NOW).window("cpu").count == 3


def test_late_samples_are_accepted_for_as_long_as_the_lag_is_usual() -> None:
    usual, stale = [metric(5, age + LAG_SECONDS_MAX, "cpu") for age in (600, 601)]
    found = merge(workers(), ScalingState(), [usual, stale], NOW)
    assert (found.accepted, found.stale) == ((usual,), (stale,))


def test_a_longer_interval_is_usually_known_later() -> None:
    five = AzureMonitorMetric(PLAN, "CpuPercentage", time_grain="PT5M")
    assert five.usual_lag_seconds == LAG_SECONDS_MAX + 240


def test_the_page_calls_a_metric_silent_when_decisions_do() -> None:
    assert silent_after_seconds(workers(), "cpu") == LAG_SECONDS_MAX + 180
    assert silent_after_seconds(workers(HubMetric()), "cpu") == 180


def shown(source: Source) -> dict[str, Any]:
    snapshot = Snapshot("plan-1", known(240), NOW)
    status = presenting.status(workers(source), snapshot, [])
    (metric,) = status["metrics"]
    return dict(metric)


def test_the_status_shows_how_far_a_metric_of_azure_monitor_lags_behind() -> None:
    assert (shown(CPU)["lag_seconds"], shown(CPU)["stale"]) == (240, False)
    assert (shown(HubMetric())["lag_seconds"], shown(HubMetric())["stale"]) == (None, True)


async def test_a_check_of_connections_reads_metrics_of_azure_monitor() -> None:
    platform = MemoryPlatformMetrics(lambda: NOW, timedelta(minutes=1))
    control = MemoryCapacityControl(lambda: NOW, {"plan-1": 2})
    reader, store = MemoryReader(lambda: NOW, {}, control, platform), MemoryStateStore(lambda: NOW)
    found = []
    for points in (None, {}, {ago(240): 41.5}):
        platform.restart()
        platform.points = {} if points is None else {CPU: points}
        access = (reader, Allowed(), store)
        checks = await check_connections.check_all([workers()], *access, 1)
        found += [(c["ok"], c["told"]) for c in checks if c["what"] == "metric cpu"]
    assert found == [
        (False, f"ReadFailed: {PLAN}: no answer for CpuPercentage"),
        (True, "is readable, and has no value of the last minutes"),
        (True, "reads 41.5, up to 11:57 UTC"),
    ]


class Allowed:
    """Permissions that lack nothing."""

    async def may_list(self, _target: object) -> bool:
        return True

    async def lacking_to_join(self, _environment: str) -> tuple[str, ...]:
        return ()

    async def lacking(self, _target: object) -> tuple[str, ...]:
        return ()

    async def close(self) -> None: ...
