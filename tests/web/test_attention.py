"""The list of problems at the top of the page: severity, order, description, and remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shared.autoscaling import Mode, Resource
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.operating import presenting
from shared.autoscaling.policy import Recommendation
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import ActionStatus, Override, ScalingState
from shared.ingestion.breaker.breaker import Breaker, BreakerMode
from shared.sampling.trend_rows import Trend
from shared.web import panels
from shared.web.attention import attention
from tests.builders import NOW, ago, desired, history, resource, sample, state

HEALTHY = state([5, 5])
FAILING = Recommendation(2, "the policy raised KeyError: 'x'; holding", "error")
BLOCKED = Recommendation(2, "the policy has been running since noon; holding", "error")


def card(
    declared: Resource, of: ScalingState, newest: LogEntry | None = None, age: float | None = None
) -> dict[str, Any]:
    snapshot = Snapshot("plan-1", of, NOW, {})
    return {
        "status": presenting.status(declared, snapshot, newest),
        "history": {"points": [{"age_minutes": age}]},
        "age_limit_minutes": 5.0,
    }


def line(recommended: Recommendation) -> LogEntry:
    reason, candidates = recommended.reason, (recommended,)
    return LogEntry("plan-1", NOW, EntryKind.DECISION, "d-1", reason, 2, 2, candidates=candidates)


def test_the_list_is_empty_when_nothing_is_wrong() -> None:
    series = panels.trends([Trend("2026-02-28", "checkout", "AppEvents", verdict="normal")])
    closed = [panels.breaker("metric_ingest", Breaker(), "")]
    healthy = card(resource(), HEALTHY, line(Recommendation(2, "holding")), age=4)
    assert attention([healthy], {"breakers": closed, "dead-letters": [], "trends": series}) == []


REFUSED = desired(status=ActionStatus.FAILED, last_error="the identity lacks the right")
PAUSED = Override(Mode.PAUSED, "incident")


@pytest.mark.parametrize(
    ("troubled", "severity", "what", "todo"),
    [
        (
            card(resource(), state([5], capacity=None)),
            "bad",
            "the capacity of the plan cannot be read",
            "validate",
        ),
        (card(resource(), HEALTHY, line(FAILING)), "bad", "raised KeyError", "scaling_rules.py"),
        (
            card(resource(), HEALTHY, replace(line(BLOCKED), limited_by=("policy_unanswered",))),
            "bad",
            "running since noon",
            "restart the app",
        ),
        (
            card(resource(), state([5], 2, REFUSED)),
            "bad",
            "scaling to 3 instances was refused: the id",
            "val",
        ),
        (
            card(resource(), state([5], 5), age=9),
            "bad",
            "longer than the age limit, at the maximum of 5 instances",
            "raise the",
        ),
        (card(resource(), HEALTHY, age=9), "warn", "has waited longer than the age limit", ""),
        (card(resource(), state()), "warn", "backlog: no sample yet", "validate"),
        (card(resource(), state([5], override=PAUSED)), "info", "paused", "operator's override"),
        (card(resource(mode=Mode.DRY_RUN), HEALTHY), "info", "dry run: decisions", "set DryRun"),
        (card(resource(mode=Mode.PAUSED), HEALTHY), "info", "paused: nothing", "scaling_rules.py"),
    ],
)
def test_each_problem_of_a_resource_is_described_together_with_its_remedy(
    troubled: dict[str, Any], severity: str, what: str, todo: str
) -> None:
    (item,) = attention([troubled], {})
    assert (item["severity"], item["href"]) == (severity, "#name-1")
    assert item["what"].startswith("plan-1: ")
    assert what in item["what"]
    assert todo in item["todo"]


def test_a_refused_action_is_not_reported_once_the_rules_desire_the_present_capacity() -> None:
    satisfied, unsatisfied = (line(Recommendation(capacity, "x")) for capacity in (2, 3))
    assert attention([card(resource(), state([5], 2, REFUSED), satisfied)], {}) == []
    assert len(attention([card(resource(), state([5], 2, REFUSED), unsatisfied)], {})) == 1


def test_a_very_long_error_is_cut() -> None:
    letter = {"failed_at": "2026-03-01T12:00", "error": "w" * 5000}
    (item,) = attention([], {"dead-letters": [letter]})
    assert item["what"].startswith("dead letters: 1; the newest: www")
    assert len(item["what"]) < 250


def test_problems_are_sorted_by_severity_and_include_panels_that_cannot_be_read() -> None:
    late = card(resource(), HEALTHY, age=9)
    paused = card(resource("plan-2", mode=Mode.PAUSED), HEALTHY)
    opened = Breaker(mode=BreakerMode.OPEN, reason="12 failures in 30 s", changed_at=NOW)
    lost = Trend("2026-02-28", "checkout", "AppEvents", verdict="events lost", reason="half")
    letters = [
        {"failed_at": "2026-03-01T11:00", "error": "old"},
        {"failed_at": "2026-03-01T12:00", "error": "new"},
    ]
    shown_panels = {
        "breakers": [panels.breaker("metric_ingest", opened, "")],
        "dead-letters": letters,
        "trends": panels.trends([lost]),
    }
    items = attention([late, paused], shown_panels)
    assert [item["severity"] for item in items] == ["bad", "warn", "warn", "warn", "info"]
    assert [item["href"] for item in items] == [
        "#breakers", "#name-1", "#dead-letters", "#trends", "#name-2",
    ]  # fmt: skip
    assert "dead letters: 2; the newest: new" in items[2]["what"]
    (failed,) = attention([], {"dead-letters": {"error": "cannot be shown now: OSError"}})
    assert failed["what"] == "dead letters: cannot be shown now: OSError"


def test_a_metric_without_recent_samples_is_reported_with_its_effect_on_decisions() -> None:
    fresh = replace(HEALTHY, histories={**HEALTHY.histories, "backlog": history([1])})
    assert attention([card(resource(), fresh)], {}) == []
    old = replace(fresh.histories["backlog"], samples=(sample(1, 3600),))
    silent = card(resource(), replace(fresh, histories={**fresh.histories, "backlog": old}))
    (item,) = attention([silent], {})
    what = "plan-1: backlog: no sample for a while. The resource is not scaled in meanwhile."
    assert item["what"] == what
    assert ago(3600) == old.samples[0].time
