"""Messages with many samples of a resource lead to one decision and one commit."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.hostile_events import INTERESTS, many_readings
from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling import HubMetric, Mode, Throughput
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.deciding.samples import SAMPLES_KEPT_MAX
from shared.autoscaling.errors import BadMessage, UnknownResource
from shared.autoscaling.flows import poison, scaling_logic
from shared.autoscaling.flows.common import check_metric_name, find
from shared.autoscaling.flows.poison import PoisonMessage
from shared.autoscaling.messages import Samples, decode_samples
from shared.autoscaling.policy import Recommendation
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import Desired, ScalingState
from shared.autoscaling.transition import advance
from shared.ingestion.decoding.decode import decode
from shared.ingestion.decoding.readings import Decoded, DecodedReading, to_effect
from shared.ingestion.model import Stream, split
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.values.samples import METRICS_OF_A_MESSAGE_MAX
from tests.builders import NOW, SOURCE, ago, decode_metric, desired, metric, resource, sample

STREAM = Stream("ns", "hub", "$Default", "3")
QUEUE_BYTES_MAX = 48 * 1024

ONE = (
    '{"schema_version":1,"id":"hub:3:7","resource_name":"plan-1","name":"backlog",'
    '"value":{"time":"2026-03-01T12:00:00Z","value":5.0}}'
)
"""A message that an older version left in the queue, in the only form that it reads."""

MANY = (
    '{"schema_version":2,"id":"hub:3:7","resource_name":"plan-1","samples":'
    '{"backlog":[["2026-03-01T11:59:00Z",5.0],["2026-03-01T12:00:00Z",6.0]],'
    '"other":[["2026-03-01T12:00:00Z",7.0]]}}'
)
"""A message that this version may leave in the queue."""


# --- the form of messages ---------------------------------------------------------------------


def test_a_message_with_a_single_sample_keeps_the_form_of_older_versions() -> None:
    reading = DecodedReading("plan-1", "backlog", NOW, 5)
    (message,) = to_effect(STREAM, 7, Decoded((reading,))).messages
    assert json.loads(message.body) == json.loads(ONE)
    assert decode_samples(ONE) == Samples("plan-1", (decode_metric(ONE),))
    assert decode_metric(ONE) == metric(5)


def test_the_samples_of_one_resource_form_one_message() -> None:
    readings = [
        DecodedReading("plan-1", "backlog", ago(60), 5),
        DecodedReading("plan-1", "other", NOW, 7),
        DecodedReading("plan-1", "backlog", NOW, 6),
    ]
    (message,) = to_effect(STREAM, 7, Decoded(tuple(readings))).messages
    assert json.loads(message.body) == json.loads(MANY)
    assert decode_samples(MANY) == Samples(
        "plan-1", (metric(5, 60), metric(6), metric(7, name="other"))
    )


def test_outbox_rows_of_an_older_version_are_sent() -> None:
    assert [decode_samples(each).metrics for each in split(f"[{ONE},{ONE}]")] == [
        (metric(5),),
        (metric(5),),
    ]


def texts_of(readings: Sequence[DecodedReading]) -> list[str]:
    """The messages as they are put into the queue, each small enough for it."""
    effect = to_effect(STREAM, 7, Decoded(tuple(readings)))
    texts = [text for message in effect.messages for text in split(message.body)]
    assert max(len(text.encode()) for text in texts) <= QUEUE_BYTES_MAX
    ids = [json.loads(text)["id"] for text in texts]
    assert len(set(ids)) == len(ids)
    return texts


def test_an_event_of_11900_readings_becomes_a_few_messages_with_the_samples_that_are_kept() -> None:
    readings = decode(many_readings(11_900, NOW), INTERESTS, 2**24).readings
    backwards = readings[::-1]
    for each in (readings, backwards):
        texts = texts_of(each)
        assert len(texts) <= 3
        times = {metric.value.time for text in texts for metric in decode_samples(text).metrics}
        assert times == {reading.time for reading in readings[-SAMPLES_KEPT_MAX:]}
    assert to_effect(STREAM, 7, Decoded(readings, 5)).ignored == 5 + 11_900 - SAMPLES_KEPT_MAX


def test_all_readings_of_many_metrics_and_resources_are_sent() -> None:
    readings = [
        DecodedReading(f"plan-{n % 3}", f"{'long' * 20}-{n % 119}", ago(n / 1000), n / 7)
        for n in range(9000)
    ]
    metrics = [metric for text in texts_of(readings) for metric in decode_samples(text).metrics]
    expected = [Metric(r.resource_name, r.name, MetricValue(r.time, r.value)) for r in readings]
    assert Counter(metrics) == Counter(expected)


def test_a_message_with_more_metrics_than_a_transaction_holds_is_refused() -> None:
    many = {f"m{n}": [["2026-03-01T12:00:00Z", 5]] for n in range(METRICS_OF_A_MESSAGE_MAX + 1)}
    with pytest.raises(BadMessage, match="9 metrics; a message may have at most 8"):
        decode_samples(json.dumps({**json.loads(MANY), "samples": many}))


@pytest.mark.parametrize(
    ("samples", "error"),
    [
        ({}, "must hold at least one sample"),
        ([], "samples is [], must be a JSON object"),
        ({"backlog": 5}, "sample of 'backlog': 5 must be a pair"),
        ({"backlog": [["2026-03-01T12:00:00Z"]]}, "must be a pair [time, value]"),
        ({"backlog": [["yesterday", 5]]}, "time is 'yesterday', must be an ISO 8601 time"),
        (
            {"backlog": [["2026-03-01T12:00:00Z", "5"]]},
            "value is '5', must be a number from 0 to 1e+15",
        ),
        ({"backlog": [["2026-03-01T12:00:00Z", -1]] * 500}, "and 480 more"),
    ],
)
def test_a_message_without_any_valid_sample_is_refused(samples: Any, error: str) -> None:
    with pytest.raises(BadMessage) as raised:
        decode_samples(json.dumps({**json.loads(MANY), "samples": samples}))
    assert error in str(raised.value)
    assert len(str(raised.value)) < 5000


# --- many samples have the same effect as single ones ------------------------------------------

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


@given(some_metrics, st.sampled_from([None, desired(target=2), desired(target=1)]))
def test_many_samples_together_are_kept_and_confirm_like_single_ones(
    metrics: list[Metric], pending: Desired | None
) -> None:
    start = ScalingState(desired=pending)
    together = advance(COUNTED, start, metrics, NOW)
    state, accepted, refused = start, list[Metric](), list[BadMessage]()
    for each in metrics:
        alone = advance(COUNTED, state, [each], NOW)
        state = alone.state
        accepted += alone.accepted
        refused += alone.refused
    assert (together.state.histories, together.state.desired) == (state.histories, state.desired)
    assert together.accepted == tuple(accepted)
    assert list(map(str, together.refused)) == list(map(str, refused))


def test_one_decision_is_taken_from_all_samples() -> None:
    metrics = [metric(2, 90, CAPACITY_METRIC), *[metric(200, age) for age in (80, 60, 40, 20, 0)]]
    step = advance(resource(), ScalingState(), metrics, NOW)
    assert step.decision is not None
    assert (step.decision.desired, step.accepted) == (3, tuple(metrics))
    assert step.decided_by == metrics[-1]
    assert step.state.desired is not None
    assert step.state.desired.epoch == 1


@pytest.mark.parametrize("pending", [desired(target=2, previous=1), desired(target=5)])
@pytest.mark.parametrize("wanted", [None, 2, 4])
async def test_a_message_that_confirms_an_action_logs_that_action_whatever_it_decides(
    pending: Desired, wanted: int | None
) -> None:
    """It may also request a new action at once, which is not confirmed yet."""
    rule = resource(policy=lambda _: Recommendation(wanted or 2, "busy", paced=True))
    store, started = MemoryStateStore(lambda: NOW), ScalingState(desired=pending)
    await store.commit(await store.load("plan-1"), started)
    samples = [metric(2, 5, CAPACITY_METRIC), *([metric(200)] if wanted else [])]
    confirms = pending.target == 2
    together = advance(rule, started, samples, NOW)
    assert together.confirmed is confirms
    assert (together.decision is not None) is (wanted is not None)
    message = Samples("plan-1", tuple(samples))
    await scaling_logic.process_samples(message, {"plan-1": rule}, store)
    lines = {line.kind: line for line in await store.log("plan-1")}
    assert (EntryKind.CONFIRMED in lines) is confirms
    if confirms:
        line = lines[EntryKind.CONFIRMED]
        assert (line.current, line.desired, line.epoch) == (1, 2, pending.epoch)
        assert line.reason == f"the capacity reads 2, as requested by epoch {pending.epoch}"
    if wanted == 4 and confirms:
        assert (lines[EntryKind.DECISION].epoch, lines[EntryKind.DECISION].desired) == (8, 4)


# --- the flow ---------------------------------------------------------------------------------


class Counting(MemoryStateStore):
    """Counts commits, and may first return snapshots that are out of date."""

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
        return await scaling_logic.process_samples(samples, self.resources, self.store)

    async def lines(self) -> list[LogEntry]:
        return await self.store.log("plan-1")


LOAD = [metric(2, 90, CAPACITY_METRIC), *[metric(200, age) for age in (80, 60, 40, 20, 0)]]


async def test_many_samples_lead_to_one_commit_and_one_log_entry() -> None:
    world = World()
    action = await world.take(*LOAD)
    assert (action.target, action.epoch, world.store.commits) == (3, 1, 1)
    (line,) = await world.lines()
    assert (line.kind, line.metric, line.value) == (EntryKind.DECISION, "backlog", 200)


async def test_a_redelivered_message_repeats_the_pending_action_and_writes_nothing() -> None:
    world = World()
    action = await world.take(*LOAD)
    assert await world.take(*LOAD) == action
    assert world.store.commits == 1


async def test_stale_and_duplicate_samples_do_not_lead_to_a_commit() -> None:
    world = World()
    await world.take(*LOAD)
    await world.take(*[metric(1, 700 + age) for age in range(1000)])
    await world.take(*LOAD, metric(1, 700))
    assert world.store.commits == 1


async def test_invalid_samples_are_logged_and_do_not_affect_the_valid_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    bad = [metric(1, -3600), metric(1, 0, "typo"), metric(0.5, 0, CAPACITY_METRIC)]
    with caplog.at_level(logging.WARNING):
        action = await world.take(*bad, *LOAD, refused=(BadMessage("value is 'x'"),))
    assert action.target == 3
    assert "[samples_refused] plan-1: 4 invalid sample(s)" in caplog.text
    refusal = next(line for line in await world.lines() if line.kind is EntryKind.POISON)
    for text in ("4 sample(s)", "in the future", "'typo'", "not a whole number", "value is 'x'"):
        assert text in refusal.reason
    histories = (await world.store.load("plan-1")).state.histories
    assert len(histories["backlog"].samples) == 5


async def test_a_message_with_only_invalid_samples_raises_an_error() -> None:
    world = World()
    with pytest.raises(BadMessage, match=r"in the future.*not a whole number"):
        await world.take(metric(1, -3600), metric(0.5, 0, CAPACITY_METRIC))
    with pytest.raises(UnknownResource):
        await world.take(metric(1, 0, "typo"))
    assert world.store.commits == 0


async def test_a_poison_message_with_many_samples_is_logged_whole_with_all_errors() -> None:
    world = World()
    late = MANY.replace("2026-03-01T12", "2026-03-01T22")
    message = PoisonMessage("metrics", "message-1", late, NOW)
    await poison.run_metric(message, world.resources, world.store)
    (line,) = await world.lines()
    assert (line.kind, line.body) == (EntryKind.POISON, late)
    assert "in the future" in line.reason
    assert "'other'" in line.reason


async def test_concurrent_messages_lose_no_samples() -> None:
    world = World()
    await world.take(*LOAD[:3])
    fresh = await world.store.load("plan-1")
    await world.take(*LOAD[3:])
    world.store.read_before = [fresh]
    await world.take(metric(7, 10), metric(8, 5))
    kept = (await world.store.load("plan-1")).state.histories["backlog"].samples
    assert {sample(7, 10), sample(8, 5), sample(200, 0)} <= set(kept)


def test_as_many_samples_as_a_message_holds_are_accepted() -> None:
    start = NOW - timedelta(seconds=590)
    metrics = [Metric("plan-1", "backlog", MetricValue(_at(start, n), 5)) for n in range(3000)]
    step = advance(resource(), ScalingState(), metrics[::-1], NOW)
    assert len(step.accepted) == 3000


def _at(start: datetime, number: int) -> datetime:
    return start + timedelta(seconds=number / 10)


def test_an_error_about_a_name_of_any_length_is_short() -> None:
    for name in ("x" * 40_000, "\ud800" * 40_000):
        with pytest.raises(UnknownResource) as refused:
            check_metric_name(resource(), name)
        assert len(str(refused.value)) < 300
        with pytest.raises(UnknownResource) as refused:
            find({}, name)
        assert len(str(refused.value)) < 300
