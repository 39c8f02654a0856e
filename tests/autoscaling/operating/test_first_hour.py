"""What an operator is told of the time before the rate per instance is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shared.autoscaling import (
    BacklogTarget,
    HubMetric,
    QueueAge,
    Resource,
    ServiceBusQueue,
    StorageQueue,
    Threshold,
    Throughput,
    highest,
)
from shared.autoscaling.learning.counts import with_counts
from shared.autoscaling.operating import presenting
from shared.autoscaling.operating.first_hour import first_hour
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import BusyIntervals, Learned
from tests.builders import NOW, resource, state

BUS = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/group-1/providers"
    "/Microsoft.ServiceBus/namespaces/bus-1"
)
POLICY = QueueAge("backlog", until_known=Threshold("backlog", 100, 10))
QUEUE = ServiceBusQueue("jobs", connection="OfficeBus")


def workers(**changes: Any) -> Resource:
    return resource(**{"metrics": {"backlog": QUEUE}, "policy": POLICY, **changes})


NOT_COUNTED = "messages are not counted: "
COUNTED = Throughput(completed_metric="done")
SEVERAL = highest(POLICY, BacklogTarget("more"))


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (workers(throughput=Throughput(30, trust_rate=True)), None),
        (workers(metrics={"backlog": HubMetric()}), None),
        (workers(metrics={"backlog": ServiceBusQueue("jobs", "dead_letter")}), None),
        (workers(), f"{NOT_COUNTED}ServiceBusNamespaceIds has no namespace of OfficeBus."),
        (
            workers(metrics={"backlog": StorageQueue("jobs")}),
            f"{NOT_COUNTED}Azure Monitor has no such counts of storage queues.",
        ),
        (
            with_counts(workers(), {"OfficeBus": BUS}),
            "Azure Monitor counts completed messages in bus-1, one to four minutes late.",
        ),
        (
            workers(metrics={"backlog": QUEUE, "done": HubMetric()}, throughput=COUNTED),
            "With the metric done, the app is sure sooner.",
        ),
        (
            workers(metrics={"backlog": QUEUE, "more": QUEUE}, policy=SEVERAL),
            "cannot be learned, because the policy reads several backlogs (backlog, more).",
        ),
        (workers(), "until_known decides"),
        (
            workers(policy=Threshold("backlog", 100, 10)),
            "A policy that needs it waits until it is sure.",
        ),
    ],
)
def test_the_source_of_the_throughput_is_named_or_why_there_is_none_and_what_decides_meanwhile(
    declared: Resource, said: str | None
) -> None:
    """Nothing is said where the throughput is given, and of no queue and dead letters."""
    text = first_hour(declared)
    if said is None:
        assert text == ""
    else:
        assert text.startswith("The rate per instance is not set.")
        assert said in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, f"{NOT_COUNTED}ServiceBusNamespaceIds has no namespace of OfficeBus."),
        ({"metrics": {"backlog": StorageQueue("jobs")}}, "has no such counts of storage queues."),
        (
            {"metrics": {"backlog": QUEUE, "more": QUEUE}, "policy": SEVERAL},
            "cannot be compared with what is seen, because the policy reads several backlogs",
        ),
    ],
)
def test_it_is_said_with_what_a_rate_that_is_set_is_compared(
    changes: dict[str, Any], said: str
) -> None:
    declared = workers(throughput=Throughput(30), **changes)
    assert first_hour(declared).startswith("The rate per instance is set. ")
    assert said in first_hour(declared)
    counted = with_counts(workers(throughput=Throughput(30)), {"OfficeBus": BUS})
    assert "Azure Monitor counts completed messages in bus-1" in first_hour(counted)


def test_the_status_says_which_throughput_is_at_work_and_how_sure_it_is() -> None:
    def estimate(learned: Learned, rate: float | None = None) -> Any:
        known = replace(state([50] * 6), learned=learned)
        shown = presenting.status(
            workers(throughput=Throughput(rate)), Snapshot("plan-1", known, NOW), []
        )
        return shown["estimate"]

    assert estimate(Learned()) is None
    told = estimate(Learned(), 30)
    assert (told["source"], told["likely"], told["sure"]) == ("settings", 30, True)
    one = estimate(Learned(work=BusyIntervals(recent=((80.0, 2.0),))))
    assert one == {
        "said": "rate per instance 40 a minute, counted ± 30%, not sure yet",
        "certainty": "counted ± 30%, not sure yet",
        "source": "counted",
        "likely": 40.0,
        "low": pytest.approx(27.5, rel=0.01),
        "relative_error": 0.3,
        "sure": False,
    }
