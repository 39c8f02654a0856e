"""What the page says needs a person, before anything else."""

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
FAILING = Recommendation(2, "the rule raised KeyError: 'x'; holding", "error")


def card(
    declared: Resource, of: ScalingState, newest: LogEntry | None = None, age: float | None = None
) -> dict[str, Any]:
    snapshot = Snapshot("plan-1", of, NOW, {})
    return {
        "status": presenting.status(declared, snapshot, newest),
        "history": {"points": [{"age_minutes": age}]},
        "age_limit_minutes": 5.0,
    }


def line(wish: Recommendation) -> LogEntry:
    return LogEntry("plan-1", NOW, EntryKind.DECISION, "d-1", wish.reason, 2, 2, candidates=(wish,))


def test_where_nothing_is_wrong_nobody_is_needed() -> None:
    series = panels.trends([Trend("2026-02-28", "checkout", "AppEvents", verdict="normal")])
    closed = [panels.breaker("metric_ingest", Breaker(), "")]
    well = card(resource(), HEALTHY, line(Recommendation(2, "holding")), age=4)
    assert attention([well], {"breakers": closed, "dead-letters": [], "trends": series}) == []


REFUSED = desired(status=ActionStatus.FAILED, last_error="the identity lacks the right")
PAUSED = Override(Mode.PAUSED, "incident")


@pytest.mark.parametrize(
    ("wrong", "severity", "said", "todo"),
    [
        (
            card(resource(), state([5], capacity=None)),
            "bad",
            "the plan does not answer",
            "validate",
        ),
        (card(resource(), HEALTHY, line(FAILING)), "bad", "raised KeyError", "scaling_rules.py"),
        (
            card(resource(), state([5], 2, REFUSED)),
            "bad",
            "3 instances were refused: the id",
            "val",
        ),
        (card(resource(), state([5], 5), age=9), "bad", "late, at the maximum of 5", "raise the"),
        (card(resource(), HEALTHY, age=9), "warn", "older than it should get", ""),
        (card(resource(), state()), "warn", "backlog: never seen", "validate"),
        (card(resource(), state([5], override=PAUSED)), "info", "paused", "a person's word"),
        (card(resource(mode=Mode.DRY_RUN), HEALTHY), "info", "dry run: nothing", "set DryRun"),
        (card(resource(mode=Mode.PAUSED), HEALTHY), "info", "paused: nothing", "scaling_rules.py"),
    ],
)
def test_what_is_wrong_with_a_resource_is_said_with_what_to_do(
    wrong: dict[str, Any], severity: str, said: str, todo: str
) -> None:
    (item,) = attention([wrong], {})
    assert (item["severity"], item["href"]) == (severity, "#name-1")
    assert item["what"].startswith("plan-1: ")
    assert said in item["what"]
    assert todo in item["todo"]


def test_a_refusal_of_old_that_nobody_wants_undone_is_no_news() -> None:
    content, wanting = (line(Recommendation(capacity, "x")) for capacity in (2, 3))
    assert attention([card(resource(), state([5], 2, REFUSED), content)], {}) == []
    assert len(attention([card(resource(), state([5], 2, REFUSED), wanting)], {})) == 1


def test_an_error_as_long_as_a_book_does_not_hide_the_rest() -> None:
    letter = {"failed_at": "2026-03-01T12:00", "error": "w" * 5000}
    (item,) = attention([], {"dead-letters": [letter]})
    assert item["what"].startswith("dead letters: 1; the newest: www")
    assert len(item["what"]) < 250


def test_the_worst_comes_first_and_a_panel_that_fails_is_no_silence() -> None:
    late = card(resource(), HEALTHY, age=9)
    paused = card(resource("plan-2", mode=Mode.PAUSED), HEALTHY)
    opened = Breaker(mode=BreakerMode.OPEN, reason="12 failures in 30 s", changed_at=NOW)
    lost = Trend("2026-02-28", "checkout", "AppEvents", verdict="events lost", reason="half")
    letters = [
        {"failed_at": "2026-03-01T11:00", "error": "old"},
        {"failed_at": "2026-03-01T12:00", "error": "new"},
    ]
    shown = {
        "breakers": [panels.breaker("metric_ingest", opened, "")],
        "dead-letters": letters,
        "trends": panels.trends([lost]),
    }
    found = attention([late, paused], shown)
    assert [item["severity"] for item in found] == ["bad", "warn", "warn", "warn", "info"]
    assert [item["href"] for item in found] == [
        "#breakers", "#name-1", "#dead-letters", "#trends", "#name-2",
    ]  # fmt: skip
    assert "dead letters: 2; the newest: new" in found[2]["what"]
    (failed,) = attention([], {"dead-letters": {"error": "cannot be shown now: OSError"}})
    assert failed["what"] == "dead letters: cannot be shown now: OSError"


def test_a_source_that_has_fallen_silent_is_said() -> None:
    silent = replace(HEALTHY, histories={**HEALTHY.histories, "backlog": history([1])})
    later = card(resource(), silent)
    assert attention([later], {}) == []
    old = replace(silent.histories["backlog"], samples=(sample(1, 3600),))
    quiet = card(resource(), replace(silent, histories={**silent.histories, "backlog": old}))
    (item,) = attention([quiet], {})
    said = "plan-1: backlog: no sample for a while. Nothing is scaled in meanwhile."
    assert item["what"] == said
    assert ago(3600) == old.samples[0].time
