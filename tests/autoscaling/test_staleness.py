"""When a metric counts as silent, and whether what is said of it is what decisions do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.autoscaling import Guards, Resource, Throughput
from shared.autoscaling.deciding.decide import decide
from shared.autoscaling.declaring import HubMetric, Missing, Then
from shared.autoscaling.operating import presenting
from shared.autoscaling.operating.notices import conditions
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import ScalingState
from shared.web.attention import attention
from tests.builders import NOW, SOURCE, history, resource, sample, state

COUNTING = resource(
    metrics={"backlog": SOURCE, "finished": HubMetric()},
    throughput=Throughput(completed_metric="finished"),
)


def silent_for(seconds: float, name: str = "finished", backlog: float = 50) -> ScalingState:
    known = state([backlog] * 6)
    late = replace(history([1]), samples=(sample(120, seconds),))
    return replace(known, histories={**known.histories, name: late})


def told(declared: Resource, of: ScalingState) -> list[tuple[str, str]]:
    return [(news.subject, news.text) for news in conditions(declared, of, [], NOW, 30)]


def test_a_count_that_is_minutes_late_by_nature_is_not_stale() -> None:
    late = silent_for(280)
    assert told(COUNTING, late) == []
    shown = presenting.status(COUNTING, Snapshot("plan-1", late, NOW), None)
    assert [metric["stale"] for metric in shown["metrics"]] == [False, False]


def test_a_count_that_can_teach_nothing_any_more_is_stale_and_no_decision_is_said_to_wait() -> None:
    gone = silent_for(COUNTING.history_seconds + 60)
    ((subject, text),) = told(COUNTING, gone)
    assert subject == "plan-1/finished"
    assert text == (
        "Decisions do not use it; the rate of an instance is not learned from it meanwhile."
    )
    assert (
        decide(COUNTING, gone, NOW).limited_by == decide(COUNTING, state([50] * 6), NOW).limited_by
    )
    card = {
        "status": presenting.status(COUNTING, Snapshot("plan-1", gone, NOW), None),
        "history": {"points": []},
        "age_limit_minutes": 5,
    }
    (item,) = attention([card], {})
    assert item["what"] == f"plan-1: finished: no sample for a while. {text}"


def test_a_limit_of_its_own_for_a_count_is_kept() -> None:
    guards = Guards(missing_by_metric={"finished": Missing(after_seconds=120)})
    assert len(told(replace(COUNTING, guards=guards), silent_for(280))) == 1


@pytest.mark.parametrize(
    ("then", "said", "desired"),
    [
        ("hold_in", "Nothing is scaled in meanwhile.", 2),
        ("hold", "The capacity stays as it is meanwhile.", 2),
        (4, "The capacity goes to 4 meanwhile, within the limits.", 4),
    ],
)
def test_what_is_told_of_a_silent_metric_is_what_is_decided(
    then: Then, said: str, desired: int
) -> None:
    declared = resource(
        metrics={"backlog": SOURCE, "other": SOURCE},
        guards=Guards(missing=Missing(after_seconds=180, then=then)),
    )
    silent = silent_for(240, "other", backlog=1)  # low: without the guard it would scale in
    assert told(declared, silent) == [("plan-1/other", said)]
    assert decide(declared, silent, NOW).desired == desired


def test_a_silent_breaker_metric_is_said_to_prevent_no_scale_out() -> None:
    declared = resource(
        metrics={"backlog": SOURCE, "breaker": SOURCE}, guards=Guards(breaker_metric="breaker")
    )
    silent = silent_for(240, "breaker", backlog=500)
    ((_, text),) = told(declared, silent)
    assert "it prevents no scale-out" in text
    assert decide(declared, silent, NOW).desired == 3
