"""Samples of a QueueMetric, which senders outside the app write into a queue or post."""

from __future__ import annotations

import json
from typing import Any

import azure.functions as func
import pytest

from shared.autoscaling import HubMetric, QueueMetric, Threshold
from shared.autoscaling.deciding.decide import EntryKind
from shared.autoscaling.deciding.validation import needs_hub, problems
from shared.autoscaling.errors import BadMessage
from shared.autoscaling.flows import metric_collector
from shared.autoscaling.flows.poison import UNATTRIBUTED
from shared.autoscaling.messages import decode_samples
from shared.ingestion.decoding.decode import decode
from shared.ingestion.errors import BadEvent
from shared.values.measurements import CAPACITY_METRIC, Metric
from shared.values.samples import METRICS_OF_A_MESSAGE_MAX, encode_metrics
from shared.wiring.ingestion import subscriptions_of
from tests.bindings.test_function_app import App, app, message, taken
from tests.builders import SOURCE, encode_metric, metric, resource

__all__ = ["app"]

DECLARED = resource(
    metrics={"jobs": QueueMetric(), "backlog": SOURCE, "events": HubMetric()},
    policy=Threshold("jobs", upper=100, lower=10, minimum_samples=1),
)


@pytest.fixture
async def pushed(app: App) -> App:
    """The app with DECLARED, which knows the capacity of the plan."""
    app.module.declared.clear()
    app.module.declared["plan-1"] = DECLARED
    app.module.app.scaling.samples_queue = app.samples
    await app.call("scaling_logic", message(encode_metric(metric(2, 30, CAPACITY_METRIC))))
    return app


async def post(app: App, document: Any, name: str = "plan-1") -> tuple[int, Any]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    request = func.HttpRequest(
        "POST",
        "/",
        headers={"content-type": "application/json", "content-length": str(len(body))},
        route_params={"name": name},
        body=body,
    )
    answer = await app.module.push_metrics(request)
    return answer.status_code, json.loads(answer.get_body())


def fields(sample: Metric) -> Any:
    return json.loads(encode_metric(sample))


async def test_a_sample_in_the_queue_of_senders_leads_to_a_decision(pushed: App) -> None:
    await pushed.call("samples_received", message(encode_metric(metric(500, name="jobs"))))
    (action,) = taken(pushed.actions)
    assert json.loads(action)["target"] == 3
    (line,) = await pushed.store.log("plan-1", 1)
    assert (line.kind, list(line.samples)) == (EntryKind.DECISION, ["jobs"])


REFUSED = [
    (metric(0, name="backlog"), "is a ServiceBusSubscription, not a QueueMetric: the app reads it"),
    (metric(1, name=CAPACITY_METRIC), "is a PlanCapacity, not a QueueMetric: the app reads it"),
    (metric(0, name="events"), "is a HubMetric, not a QueueMetric: send it to the event hub, or "),
    (metric(0, name="typo"), "'typo' of 'plan-1' is not declared in scaling_rules.py"),
]


@pytest.mark.parametrize(("sample", "error"), REFUSED)
async def test_a_sender_cannot_replace_what_the_app_reads_itself(
    pushed: App, sample: Metric, error: str
) -> None:
    """Otherwise it could report that no work waits, or another capacity of the plan."""
    before = (await pushed.store.load("plan-1")).state
    body = encode_metric(sample)
    with pytest.raises(BadMessage, match=error):
        await pushed.call("samples_received", message(body))
    status, answer = await post(pushed, fields(sample))
    assert (status, error in answer["error"]) == (400, True)
    assert (await pushed.store.load("plan-1")).state == before
    assert taken(pushed.samples) == []

    await pushed.call("samples_poison", message(body))
    (line,) = await pushed.store.log("plan-1", 1)
    assert (line.kind, line.body) == (EntryKind.POISON, body)
    assert "message on samples could not be processed: metric " in line.reason
    assert error in line.reason


async def test_valid_samples_beside_refused_ones_are_used(pushed: App) -> None:
    sent = [fields(each) for each, _ in REFUSED] + [fields(metric(500, name="jobs")), 5]
    await pushed.call("samples_received", message(json.dumps(sent)))
    assert len(taken(pushed.actions)) == 1
    refusal = next(e for e in await pushed.store.log("plan-1") if e.kind is EntryKind.POISON)
    assert all(error in refusal.reason for _, error in REFUSED)
    assert "[5] metric: must be a JSON object, is 5" in refusal.reason

    status, answer = await post(pushed, sent)
    assert (status, answer["accepted"], len(answer["refused"])) == (200, 1, 5)
    (text,) = taken(pushed.samples)
    assert decode_samples(text).metrics == (metric(500, name="jobs"),)


async def test_posted_samples_reach_a_decision_through_the_queue_of_senders(pushed: App) -> None:
    samples = [metric(500, age, "jobs") for age in (20, 10, 0)]
    (many,) = encode_metrics(samples)
    for document in ([fields(each) for each in samples], json.loads(many), many.encode()):
        assert await post(pushed, document) == (
            200,
            {"resource": "plan-1", "accepted": 3, "refused": []},
        )
        (text,) = taken(pushed.samples)
        assert decode_samples(text).metrics == tuple(samples)
    await pushed.call("samples_received", message(text))
    assert len(taken(pushed.actions)) == 1


@pytest.mark.parametrize(
    ("document", "status", "error"),
    [
        (b"{", 400, "neither JSON"),
        ([], 400, "must hold at least one sample"),
        ([[]], 400, "[0] metric: must be a JSON object"),
        ({"schema_version": 3}, 400, "this app reads 1 and 2"),
        ({**fields(metric(1, name="jobs")), "resource_name": "plan-2"}, 400, "must be 'plan-1'"),
        (fields(metric(1e300, name="jobs")), 400, "must be a number from 0 to 1e+15"),
        (b"\xff" * 10, 400, "neither JSON"),
        (b" " * 20_000, 413, "at most 16384 bytes"),
    ],
)
async def test_a_body_that_is_no_sample_is_refused_with_the_reason(
    pushed: App, document: Any, status: int, error: str
) -> None:
    answered, answer = await post(pushed, document)
    assert (answered, error in answer["error"]) == (status, True), answer
    assert (await post(pushed, document, "nobody"))[0] == 404


async def test_a_list_of_one_resource_is_one_message(pushed: App) -> None:
    other = Metric("plan-2", "jobs", metric(5).value)
    read = decode_samples(json.dumps([fields(metric(5, name="jobs")), fields(other)]))
    assert (read.resource_name, len(read.metrics)) == ("plan-1", 1)
    assert "[1] resource_name is 'plan-2', must be 'plan-1'" in str(read.refused[0])
    many = [fields(metric(5, name=f"m{n}")) for n in range(METRICS_OF_A_MESSAGE_MAX + 1)]
    with pytest.raises(BadMessage, match="9 metrics; a message may have at most 8"):
        decode_samples(json.dumps(many))
    await pushed.call("samples_poison", message(json.dumps(many)))
    assert await pushed.store.log(UNATTRIBUTED) == []
    assert (await pushed.store.log("plan-1", 1))[0].kind is EntryKind.POISON


def test_a_queue_metric_needs_no_event_hub_and_the_hub_takes_none() -> None:
    own = resource(metrics={"jobs": QueueMetric()}, policy=Threshold("jobs", 100, 10))
    assert not needs_hub([own])
    assert problems([own]) == []
    assert list(metric_collector.sources_of(own)) == [CAPACITY_METRIC]
    with pytest.raises(BadEvent, match="send a QueueMetric\\(\\) to the queue samples"):
        decode(encode_metric(metric(5, name="jobs")).encode(), subscriptions_of([own]))
