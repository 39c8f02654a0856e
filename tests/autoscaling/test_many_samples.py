"""Messages of many samples of a resource: one decision, one commit, none in another's way."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.hostile_events import INTERESTS, many_readings
from shared.adapters.memory.autoscaling import MemoryStateStore
from shared.adapters.queues.outbox_sender import split
from shared.autoscaling import HubMetric, Mode, Throughput
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.deciding.samples import SAMPLES_KEPT_MAX
from shared.autoscaling.errors import BadMessage, UnknownResource
from shared.autoscaling.flows import poison, scaling_logic
from shared.autoscaling.flows.common import check_metric_name, find
from shared.autoscaling.flows.poison import PoisonMessage
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.autoscaling.messages import (
    METRICS_OF_A_MESSAGE_MAX,
    Samples,
    decode_metric,
    decode_samples,
)
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import Desired, ScalingState
from shared.autoscaling.transition import advance, advance_all
from shared.ingestion.decoding.decoding import decode
from shared.ingestion.decoding.readings import Decoded, Reading, to_effect
from shared.ingestion.model import Stream
from tests.builders import NOW, SOURCE, ago, desired, metric, resource, sample

STREAM = Stream("ns", "hub", "$Default", "3")
QUEUE_BYTES_MAX = 48 * 1024

ONE = (
    '{"schema_version":1,"id":"hub:3:7","resource_name":"plan-1","name":"backlog",'
    '"value":{"time":"2026-03-01T12:00:00Z","value":5.0}}'
)
"""What apps of an older version have left in the queue, and what they understand."""

MANY = (
    '{"schema_version":2,"id":"hub:3:7","resource_name":"plan-1","samples":'
    '{"backlog":[["2026-03-01T11:59:00Z",5.0],["2026-03-01T12:00:00Z",6.0]],'
    '"other":[["2026-03-01T12:00:00Z",7.0]]}}'
)
"""What may wait in the queue once this version has run."""


# --- the form of messages ---------------------------------------------------------------------


def test_a_message_of_a_single_sample_has_the_form_that_it_always_had() -> None:
    reading = Reading("plan-1", "backlog", NOW, 5)
    (message,) = to_effect(STREAM, 7, Decoded((reading,))).messages
    assert json.loads(message.body) == json.loads(ONE)
    assert decode_samples(ONE) == Samples("plan-1", (decode_metric(ONE),))
    assert decode_metric(ONE) == metric(5)


def test_samples_of_one_resource_are_one_message() -> None:
    readings = [
        Reading("plan-1", "backlog", ago(60), 5),
        Reading("plan-1", "other", NOW, 7),
        Reading("plan-1", "backlog", NOW, 6),
    ]
    (message,) = to_effect(STREAM, 7, Decoded(tuple(readings))).messages
    assert json.loads(message.body) == json.loads(MANY)
    assert decode_samples(MANY) == Samples(
        "plan-1", (metric(5, 60), metric(6), metric(7, name="other"))
    )


def test_rows_that_an_older_version_left_in_the_outbox_are_sent() -> None:
    assert [decode_samples(each).metrics for each in split(f"[{ONE},{ONE}]")] == [
        (metric(5),),
        (metric(5),),
    ]


def texts_of(readings: Sequence[Reading]) -> list[str]:
    """The messages of the queue, each as the storage takes it."""
    effect = to_effect(STREAM, 7, Decoded(tuple(readings)))
    texts = [text for message in effect.messages for text in split(message.body)]
    assert max(len(text.encode()) for text in texts) <= QUEUE_BYTES_MAX
    ids = [json.loads(text)["id"] for text in texts]
    assert len(set(ids)) == len(ids)
    return texts


def test_an_event_of_11900_readings_is_a_few_messages_of_the_samples_that_can_be_kept() -> None:
    readings = decode(many_readings(11_900, NOW), INTERESTS, 2**24).readings
    backwards = readings[::-1]
    for each in (readings, backwards):
        texts = texts_of(each)
        assert len(texts) <= 3
        found = {metric.value.time for text in texts for metric in decode_samples(text).metrics}
        assert found == {reading.time for reading in readings[-SAMPLES_KEPT_MAX:]}
    assert to_effect(STREAM, 7, Decoded(readings, 5)).ignored == 5 + 11_900 - SAMPLES_KEPT_MAX


def test_readings_of_many_metrics_and_resources_are_all_handed_on() -> None:
    readings = [
        Reading(f"plan-{n % 3}", f"{'long' * 20}-{n % 119}", ago(n / 1000), n / 7)
        for n in range(9000)
    ]
    found = [metric for text in texts_of(readings) for metric in decode_samples(text).metrics]
    expected = [Metric(r.resource_name, r.name, MetricValue(r.time, r.value)) for r in readings]
    assert Counter(found) == Counter(expected)


def test_a_message_of_more_metrics_than_a_transaction_takes_is_refused() -> None:
    many = {f"m{n}": [["2026-03-01T12:00:00Z", 5]] for n in range(METRICS_OF_A_MESSAGE_MAX + 1)}
    with pytest.raises(BadMessage, match="9 metrics, at most 8"):
        decode_samples(json.dumps({**json.loads(MANY), "samples": many}))


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ({}, "there are none"),
        ([], "samples is [], a dict is needed"),
        ({"backlog": 5}, "sample of 'backlog': 5 is no pair"),
        ({"backlog": [["2026-03-01T12:00:00Z"]]}, "is no pair of time and value"),
        ({"backlog": [["yesterday", 5]]}, "time is 'yesterday', an ISO 8601 time is needed"),
        ({"backlog": [["2026-03-01T12:00:00Z", "5"]]}, "value is '5', a number from 0 to 1e+15"),
        ({"backlog": [["2026-03-01T12:00:00Z", -1]] * 500}, "and 480 more"),
    ],
)
def test_a_message_without_any_good_sample_is_refused(samples: Any, said: str) -> None:
    with pytest.raises(BadMessage) as raised:
        decode_samples(json.dumps({**json.loads(MANY), "samples": samples}))
    assert said in str(raised.value)
    assert len(str(raised.value)) < 5000


# --- many samples are as one after the other --------------------------------------------------

COUNTED = resource(
    metrics={"backlog": SOURCE, "finished": HubMetric()},
    throughput=Throughput(completed_metric="finished"),
    mode=Mode.PAUSED,
)
some_metrics = st.lists(
    st.builds(
        metric,
        st.sampled_from([0, 1, 1, 2, 2.5, 5, 1e200]),
        st.one_of(st.integers(-90, 650), st.sampled_from([599, 600, 601, 1800, 1900])),
        st.sampled_from(["backlog", "finished", CAPACITY_METRIC]),
    ),
    max_size=25,
)


def one_by_one(
    one: Resource, start: ScalingState, metrics: list[Metric]
) -> tuple[ScalingState, int, list[str]]:
    """The state, how many samples were accepted, and why others were refused."""
    state, accepted, refused = start, 0, list[str]()
    for each in metrics:
        try:
            step = advance(one, state, each, NOW)
        except BadMessage as error:
            refused.append(str(error))
        else:
            state = step.state
            accepted += step.outcome == "accepted"
    return state, accepted, refused


@given(some_metrics, st.sampled_from([None, desired(target=2), desired(target=1)]))
def test_many_samples_are_kept_and_confirm_as_one_after_the_other_does(
    metrics: list[Metric], ordered: Desired | None
) -> None:
    start = ScalingState(desired=ordered)
    together = advance_all(COUNTED, start, metrics, NOW)
    refused = [str(error) for error in together.refused]
    state, accepted, refused_apart = one_by_one(COUNTED, start, metrics)
    assert together.step.state.histories == state.histories
    assert together.step.state.desired == state.desired
    assert (together.accepted, refused) == (accepted, refused_apart)


@given(some_metrics.filter(bool), st.sampled_from([COUNTED, resource()]))
def test_a_single_sample_does_what_it_always_did(metrics: list[Metric], one: Resource) -> None:
    *before, last = metrics
    state = advance_all(one, ScalingState(), before, NOW).step.state
    together = advance_all(one, state, [last], NOW)
    if together.refused:
        with pytest.raises(BadMessage):
            advance(one, state, last, NOW)
    else:
        alone = advance(one, state, last, NOW)
        assert together.step == replace(alone, outcome=together.step.outcome)


def test_the_decision_is_taken_once_on_all_samples() -> None:
    metrics = [metric(2, 90, CAPACITY_METRIC), *[metric(200, age) for age in (80, 60, 40, 20, 0)]]
    steps = advance_all(resource(), ScalingState(), metrics, NOW)
    assert steps.step.decision is not None
    assert (steps.step.decision.desired, steps.accepted) == (3, 6)
    assert steps.decided_by == metrics[-1]
    assert steps.step.state.desired is not None
    assert steps.step.state.desired.epoch == 1


# --- the flow ---------------------------------------------------------------------------------


class Counting(MemoryStateStore):
    """Counts commits, and may answer at first with what was read before others wrote."""

    commits = 0
    read_before: Sequence[Snapshot] = ()

    async def load(self, resource_name: str) -> Snapshot:
        if self.read_before:
            first, *self.read_before = self.read_before
            return first
        return await super().load(resource_name)

    async def commit(self, snapshot: Snapshot, state: ScalingState, entries: Any = ()) -> None:
        self.commits += 1
        await super().commit(snapshot, state, entries)


class World:
    def __init__(self) -> None:
        self.store = Counting(lambda: NOW)
        self.resources = {"plan-1": resource()}

    async def take(self, *metrics: Metric, refused: tuple[BadMessage, ...] = ()) -> Any:
        samples = Samples("plan-1", metrics, refused)
        return await scaling_logic.run_all(samples, self.resources, self.store)

    async def lines(self) -> list[LogEntry]:
        return await self.store.log("plan-1")


LOAD = [metric(2, 90, CAPACITY_METRIC), *[metric(200, age) for age in (80, 60, 40, 20, 0)]]


async def test_many_samples_are_one_commit_and_one_line_of_the_log() -> None:
    world = World()
    action = await world.take(*LOAD)
    assert (action.target, action.epoch, world.store.commits) == (3, 1, 1)
    (line,) = await world.lines()
    assert (line.kind, line.metric, line.value) == (EntryKind.DECISION, "backlog", 200)


async def test_a_message_that_comes_again_repeats_the_order_and_writes_nothing() -> None:
    world = World()
    action = await world.take(*LOAD)
    assert await world.take(*LOAD) == action
    assert world.store.commits == 1


async def test_stale_samples_cost_no_commit_even_beside_others_that_are_known() -> None:
    world = World()
    await world.take(*LOAD)
    await world.take(*[metric(1, 700 + age) for age in range(1000)])
    await world.take(*LOAD, metric(1, 700))
    assert world.store.commits == 1


async def test_bad_samples_are_told_and_do_not_stop_the_good_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    bad = [metric(1, -3600), metric(1, 0, "typo"), metric(0.5, 0, CAPACITY_METRIC)]
    with caplog.at_level(logging.WARNING):
        action = await world.take(*bad, *LOAD, refused=(BadMessage("value is 'x'"),))
    assert action.target == 3
    assert "[samples_refused] plan-1: 4 sample(s)" in caplog.text
    refusal = next(line for line in await world.lines() if line.kind is EntryKind.POISON)
    for said in ("4 sample(s)", "in the future", "'typo'", "not a whole number", "value is 'x'"):
        assert said in refusal.reason
    histories = (await world.store.load("plan-1")).state.histories
    assert len(histories["backlog"].samples) == 5


async def test_a_message_of_bad_samples_only_goes_to_the_poison_queue() -> None:
    world = World()
    with pytest.raises(BadMessage, match=r"in the future.*not a whole number"):
        await world.take(metric(1, -3600), metric(0.5, 0, CAPACITY_METRIC))
    with pytest.raises(UnknownResource):
        await world.take(metric(1, 0, "typo"))
    assert world.store.commits == 0


async def test_a_poison_message_of_many_samples_is_written_down_whole_with_what_is_wrong() -> None:
    world = World()
    late = MANY.replace("2026-03-01T12", "2026-03-01T22")
    message = PoisonMessage("metrics", "message-1", late, NOW)
    await poison.run_metric(message, world.resources, world.store)
    (line,) = await world.lines()
    assert (line.kind, line.body) == (EntryKind.POISON, late)
    assert "in the future" in line.reason
    assert "'other'" in line.reason


async def test_samples_of_one_event_and_a_fresh_one_race_without_losing_any() -> None:
    world = World()
    await world.take(*LOAD[:3])
    fresh = await world.store.load("plan-1")
    await world.take(*LOAD[3:])
    world.store.read_before = [fresh]
    await world.take(metric(7, 10), metric(8, 5))
    kept = (await world.store.load("plan-1")).state.histories["backlog"].samples
    assert {sample(7, 10), sample(8, 5), sample(200, 0)} <= set(kept)


def test_as_many_samples_as_a_message_holds_are_taken_in_quickly() -> None:
    start = NOW - timedelta(seconds=590)
    metrics = [Metric("plan-1", "backlog", MetricValue(_at(start, n), 5)) for n in range(3000)]
    steps = advance_all(resource(), ScalingState(), metrics[::-1], NOW)
    assert steps.accepted == 3000


def _at(start: datetime, number: int) -> datetime:
    return start + timedelta(seconds=number / 10)


def test_a_name_of_any_length_is_told_in_a_line() -> None:
    for name in ("x" * 40_000, "\ud800" * 40_000):
        with pytest.raises(UnknownResource) as refused:
            check_metric_name(resource(), name)
        assert len(str(refused.value)) < 300
        with pytest.raises(UnknownResource) as refused:
            find({}, name)
        assert len(str(refused.value)) < 300
