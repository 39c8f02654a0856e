"""When a metric counts as silent, and that the stated effect on decisions is the actual one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shared.autoscaling import AzureMonitorMetric, Guards, Mode, Resource, Throughput
from shared.autoscaling.deciding.decide import decide
from shared.autoscaling.declaring import Missing, Then
from shared.autoscaling.learning.counts import COMPLETED, with_counts
from shared.autoscaling.operating import presenting
from shared.autoscaling.operating.conditions import conditions
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.sources import HubMetric
from shared.autoscaling.state import Override, ScalingState
from shared.cli import tables
from shared.values.measurements import CAPACITY_METRIC, Window
from tests.builders import NOW, SOURCE, history, resource, sample, state

BUS = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/group-1/providers"
    "/Microsoft.ServiceBus/namespaces/bus-1"
)
COUNTING = resource(
    metrics={"backlog": SOURCE, "finished": HubMetric()},
    throughput=Throughput(completed_metric="finished"),
)


def silent_for(seconds: float, name: str = "finished", backlog: float = 50) -> ScalingState:
    known = state([backlog] * 6)
    late = replace(history([1]), samples=(sample(120, seconds),))
    return replace(known, histories={**known.histories, name: late})


def stale_conditions(declared: Resource, of: ScalingState) -> list[tuple[str, str]]:
    found = conditions(declared, Snapshot("plan-1", of, NOW), 30)
    return [(each.subject, each.meaning) for each in found if each.kind]


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({}, []),
        ({CAPACITY_METRIC: [600]}, ["capacity", "backlog", "other"]),
        ({CAPACITY_METRIC: [600, 0]}, ["backlog", "other"]),
        ({CAPACITY_METRIC: [600, 0], "other": [600, 0]}, ["backlog"]),
        ({CAPACITY_METRIC: [100, 0]}, []),
        ({CAPACITY_METRIC: [600, 0], "backlog": [0], "other": [0]}, []),
    ],
)
def test_a_metric_that_never_had_a_sample_is_told_since_the_first_sample_of_any_other(
    known: dict[str, list[float]], told: list[str]
) -> None:
    declared = resource(metrics={"backlog": SOURCE, "other": HubMetric()})
    histories = {
        name: Window(tuple(sample(2, age) for age in ages)) for name, ages in known.items()
    }
    found = stale_conditions(declared, ScalingState(histories))
    assert [subject.partition("/")[2] for subject, _ in found] == told


@pytest.mark.parametrize(
    ("guards", "seconds", "stale"),
    [
        (Guards(), 280, False),  # a count is usually minutes late
        (Guards(missing_by_metric={"finished": Missing(after_seconds=120)}), 280, True),
    ],
)
def test_a_count_is_stale_only_after_its_usual_lag_or_its_own_time(
    guards: Guards, seconds: float, stale: bool
) -> None:
    declared, late = replace(COUNTING, guards=guards), silent_for(seconds)
    assert bool(stale_conditions(declared, late)) is stale
    status = presenting.status(declared, Snapshot("plan-1", late, NOW), [])
    assert [metric["stale"] for metric in status["metrics"]] == [False, stale]


def test_a_count_too_old_to_learn_from_is_stale_and_does_not_affect_decisions() -> None:
    gone = silent_for(COUNTING.history_seconds + 60)
    ((subject, text),) = stale_conditions(COUNTING, gone)
    assert subject == "plan-1/finished"
    assert text == (
        "Decisions do not use this metric. Meanwhile the rate per instance stays as it is set or "
        "was counted before, or is estimated from the backlog."
    )
    assert (
        decide(COUNTING, gone, NOW).limited_by == decide(COUNTING, state([50] * 6), NOW).limited_by
    )


def test_the_count_that_the_app_adds_by_itself_is_never_stale() -> None:
    """Nobody asked for it, its role may be missing, and it has no samples while no work comes."""
    counted = with_counts(resource(), {"ServiceBusConnection": BUS})
    assert COMPLETED in counted.metrics
    assert stale_conditions(counted, state([50] * 6)) == []
    assert stale_conditions(counted, silent_for(7200, COMPLETED)) == []
    status = presenting.status(counted, Snapshot("plan-1", state([50] * 6), NOW), [])
    assert [metric["stale"] for metric in status["metrics"]] == [False, False]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("counted", ["completed_metric", "incoming_metric"])
def test_a_declared_count_of_azure_monitor_is_not_stale_while_no_messages_arrive(
    counted: str, streamed: bool
) -> None:
    source = AzureMonitorMetric(BUS, "CompleteMessage", "total", streamed=streamed)
    declared = resource(
        metrics={"backlog": SOURCE, "finished": source},
        throughput=Throughput(**{counted: "finished"}),  # type: ignore[arg-type]
    )
    for night in (state([0] * 6), silent_for(36_000, backlog=0)):
        assert stale_conditions(declared, night) == []
        status = presenting.status(declared, Snapshot("plan-1", night, NOW), [])
        assert [metric["stale"] for metric in status["metrics"]] == [False, False]
    own = replace(declared, guards=Guards(missing_by_metric={"finished": Missing(120)}))
    assert len(stale_conditions(own, silent_for(36_000))) == 1
    read_by_the_policy = replace(declared, throughput=Throughput())
    assert len(stale_conditions(read_by_the_policy, silent_for(36_000))) == 1


PAUSED = "The resource is paused, so no decision is made."
LAST_KNOWN = "The plan cannot be read, so decisions use its last known capacity."


@pytest.mark.parametrize(
    ("changes", "override", "capacity_age", "of_capacity", "of_metric"),
    [
        (
            {},
            None,
            None,
            "The capacity of the plan was never read, so no decision is made.",
            "The capacity of the plan is not known, so no decision is made.",
        ),
        ({"mode": Mode.PAUSED}, None, None, PAUSED, PAUSED),
        ({}, Override(Mode.PAUSED), 3600, PAUSED, PAUSED),
        (
            {"mode": Mode.DRY_RUN},
            None,
            3600,
            LAST_KNOWN,
            "The resource is not scaled in meanwhile. This is a dry run, so only what is logged "
            "changes.",
        ),
        (
            {},
            Override(exact=5),
            3600,
            LAST_KNOWN,
            "An override sets the capacity, so decisions do not use this metric.",
        ),
        (
            {"guards": Guards(missing=Missing(60, 4))},
            None,
            150,
            LAST_KNOWN,
            "The resource is not scaled in meanwhile. With fewer instances, the capacity falls "
            "back to 4, within the limits.",
        ),
        (
            {"guards": Guards(missing=Missing(60, 4))},
            None,
            30,
            None,
            "The resource is not scaled in until a sample arrives, or until 60 s after the first "
            "one of the capacity.",
        ),
    ],
)
def test_command_and_notification_state_the_same_effect_of_silence(
    changes: dict[str, Any],
    override: Override | None,
    capacity_age: float | None,
    of_capacity: str | None,
    of_metric: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    declared, kept = resource(**changes), {"other": Window((sample(1, 3600),))}
    if capacity_age is not None:
        kept[CAPACITY_METRIC] = Window((sample(2, capacity_age),))
    silent = ScalingState(kept, override=override)
    snapshot = Snapshot("plan-1", silent, NOW)
    found = conditions(declared, snapshot, 30)
    told = {each.subject: each.news(NOW).text for each in found if each.kind}
    check = "Run python -m shared validate --connect to find the cause."
    assert told["plan-1/backlog"] == f"{of_metric} {check}"
    assert told.get("plan-1/capacity") == (of_capacity and f"{of_capacity} {check}")
    shown = presenting.status(declared, snapshot, found)
    assert (shown["capacity_stale"], shown["metrics"][0]["stale"]) == (bool(of_capacity), True)
    tables.status([shown])
    printed = capsys.readouterr().out
    assert f"plan-1: no sample of backlog for 60 min. {of_metric}" in printed
    assert ("plan-1: no sample of capacity" in printed) is bool(of_capacity)
    assert (of_capacity or "") in printed


@pytest.mark.parametrize(
    ("then", "effect", "desired"),
    [
        ("hold_in", "The resource is not scaled in meanwhile.", 2),
        ("hold", "The capacity does not change meanwhile.", 2),
        (
            4,
            "The resource is not scaled in meanwhile. With fewer instances, the capacity falls "
            "back to 4, within the limits.",
            4,
        ),
    ],
)
def test_the_stated_effect_of_a_silent_metric_is_what_is_decided(
    then: Then, effect: str, desired: int
) -> None:
    declared = resource(
        metrics={"backlog": SOURCE, "other": SOURCE},
        guards=Guards(missing=Missing(after_seconds=180, then=then)),
    )
    silent = silent_for(240, "other", backlog=1)  # low: without the guard it would scale in
    assert stale_conditions(declared, silent) == [("plan-1/other", effect)]
    assert decide(declared, silent, NOW).desired == desired


def test_a_silent_breaker_metric_does_not_prevent_scale_out_and_the_text_says_so() -> None:
    declared = resource(
        metrics={"backlog": SOURCE, "breaker": SOURCE}, guards=Guards(breaker_metric="breaker")
    )
    silent = silent_for(240, "breaker", backlog=500)
    ((_, text),) = stale_conditions(declared, silent)
    assert "it does not prevent scale-out" in text
    assert decide(declared, silent, NOW).desired == 3
