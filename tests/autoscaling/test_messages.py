"""The form of queue messages: what is written, what is read, and what is refused."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.hostile_events import INTERESTS, many_readings
from shared.autoscaling.deciding.samples import SAMPLES_KEPT_MAX
from shared.autoscaling.errors import BadMessage
from shared.autoscaling.messages import (
    Samples,
    decode_action,
    decode_samples,
    encode_action,
    named_resource,
)
from shared.autoscaling.messages import split as messages_in
from shared.autoscaling.state import EPOCH_MAX, ScaleAction
from shared.ingestion.decoding.decode import decode
from shared.ingestion.decoding.readings import Decoded, to_effect
from shared.ingestion.model import Stream, split
from shared.values.measurements import DISABLED, Metric, MetricValue
from shared.values.samples import (
    MESSAGE_BYTES_MAX,
    METRICS_OF_A_MESSAGE_MAX,
    RESOURCES_OF_A_MESSAGE_MAX,
    encode_metrics,
    encode_samples,
    together,
)
from tests.builders import NOW, ago, decode_metric, encode_metric, metric

STREAM = Stream("ns", "hub", "$Default", "3")
QUEUE_BYTES_MAX = 48 * 1024
AT = "2026-03-01T12:00:00Z"

ONE = {
    "schema_version": 1,
    "id": "hub:3:7",
    "resource_name": "plan-1",
    "name": "backlog",
    "value": {"time": AT, "value": 5.0},
}
"""A message that an older version left in the queue, in the only form that it reads."""

MANY = {
    "schema_version": 2,
    "id": "hub:3:7",
    "resource_name": "plan-1",
    "samples": {"backlog": [["2026-03-01T11:59:00Z", 5.0], [AT, 6.0]], "other": [[AT, 7.0]]},
}
"""A message that this version may leave in the queue."""

ACTION = json.loads(encode_action(ScaleAction("plan-1", 3, 7, "why", NOW)))
names = st.text(min_size=1, max_size=30).filter(lambda t: t.isprintable())
times = st.datetimes(timezones=st.just(UTC))


statuses = st.sampled_from(["", *DISABLED])


@given(names, names, times, st.floats(0, 1e12), statuses)
def test_a_metric_survives_the_queue(
    name: str, kind: str, time: datetime, value: float, status: str
) -> None:
    sent = Metric(name, kind, MetricValue(time, value, status))
    assert decode_metric(encode_metric(sent)) == sent
    both = (sent, Metric(name, f"{kind}2", MetricValue(time, value)))
    assert decode_samples(encode_samples(both)).metrics == both


@given(names, st.integers(1, 100), st.integers(1, EPOCH_MAX), st.text(max_size=50), times)
def test_an_action_survives_the_queue(
    name: str, target: int, epoch: int, reason: str, time: datetime
) -> None:
    sent = ScaleAction(name, target, epoch, reason, time)
    assert decode_action(encode_action(sent)) == sent


# --- messages for many resources ---


@given(st.lists(st.tuples(names, st.floats(0, 1e12)), max_size=12), st.integers(1, 5))
def test_what_many_resources_send_together_is_read_as_what_each_sends_alone(
    sent: list[tuple[str, float]], resources_max: int
) -> None:
    metrics = [Metric(name, kind, MetricValue(NOW, v)) for name, v in sent for kind in "ab"]
    alone = encode_metrics(metrics, {name: {"plan": {"tier": name}} for name, _ in sent})
    messages = together(alone, resources_max)
    read = [messages_in(each) or [each] for each in messages]
    assert [text for texts in read for text in texts] == alone or read == []
    assert all(len(texts) <= resources_max for texts in read)
    assert len(messages) == -(-len(alone) // resources_max)
    encoded = [base64.b64encode(each.encode()).decode() for each in messages]
    assert [messages_in(each) for each in encoded] == [messages_in(each) for each in messages]


@pytest.mark.parametrize("name", ["n" * 200, "\u00e9" * 60, "<&>" * 60])
def test_a_message_for_many_resources_fits_into_a_queue(name: str) -> None:
    metrics = [
        Metric(f"{name}-{number}", f"{name}-{kind}", MetricValue(NOW, 1 / 3))
        for number in range(1000)
        for kind in range(1, METRICS_OF_A_MESSAGE_MAX + 1)
    ]
    alone = encode_metrics(metrics)
    messages = together(alone, RESOURCES_OF_A_MESSAGE_MAX)
    assert [text for each in messages for text in messages_in(each) or []] == alone
    sizes = [len(each.encode()) for each in messages]
    assert max(sizes) <= MESSAGE_BYTES_MAX < 64 * 1024
    assert min(sizes[:-1]) > MESSAGE_BYTES_MAX - max(map(len, alone)) - 2, "they are well filled"


@pytest.mark.parametrize(("beyond", "count"), [(0, 1), (1, 2)])
def test_a_message_for_many_resources_is_as_long_as_it_may_be(beyond: int, count: int) -> None:
    length = MESSAGE_BYTES_MAX - len(together(["1", "2"], 2)[0]) + 1
    messages = together(["1" * (length + beyond), "2"], 2)
    assert len(messages) == count
    assert len(messages[0]) <= MESSAGE_BYTES_MAX


def test_a_message_for_many_resources_is_refused_where_one_resource_is_expected() -> None:
    """So does a copy of the app that does not know this version."""
    (body,) = together([json.dumps(ONE), json.dumps(ONE)], 2)
    with pytest.raises(BadMessage, match="schema_version is 3, but this app reads 1 and 2; only"):
        decode_samples(body)


@pytest.mark.parametrize("messages", [None, {}, "x", [], [1] * (RESOURCES_OF_A_MESSAGE_MAX + 1)])
def test_a_message_for_many_resources_without_a_bounded_list_is_refused(messages: object) -> None:
    with pytest.raises(BadMessage, match=r"messages is .*, must be a list of 1 to 500") as refused:
        messages_in(json.dumps({"schema_version": 3, "messages": messages}))
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("version", [1, 2, 4, True, 3.0, "3", None])
def test_only_version_3_is_for_many_resources(version: object) -> None:
    assert messages_in(json.dumps({"schema_version": version, "messages": [ONE]})) is None


# --- samples of events ---


@pytest.mark.parametrize(
    ("readings", "message", "metrics"),
    [
        ((metric(5),), ONE, (metric(5),)),
        (
            (metric(5, 60), metric(7, name="other"), metric(6)),
            MANY,
            (metric(5, 60), metric(6), metric(7, name="other")),
        ),
    ],
    ids=["a single sample keeps the form of older versions", "samples of one resource"],
)
def test_the_samples_of_one_resource_form_one_message(
    readings: tuple[Metric, ...], message: dict[str, Any], metrics: tuple[Metric, ...]
) -> None:
    (written,) = to_effect(STREAM, 7, Decoded(readings)).messages
    assert json.loads(written.body) == message
    assert decode_samples(json.dumps(message)) == Samples("plan-1", metrics)


def test_outbox_rows_of_an_older_version_are_sent() -> None:
    rows = split(json.dumps([ONE, ONE]))
    assert [decode_samples(each).metrics for each in rows] == [(metric(5),)] * 2


def texts_of(readings: Sequence[Metric]) -> list[str]:
    """The messages as they are put into the queue, each small enough for it."""
    effect = to_effect(STREAM, 7, Decoded(tuple(readings)))
    texts = [text for message in effect.messages for text in split(message.body)]
    assert max(len(text.encode()) for text in texts) <= QUEUE_BYTES_MAX
    ids = [json.loads(text)["id"] for text in texts]
    assert len(set(ids)) == len(ids)
    return texts


def test_an_event_of_11900_readings_becomes_a_few_messages_with_the_samples_that_are_kept() -> None:
    readings = decode(many_readings(11_900, NOW), INTERESTS, 2**24).readings
    for each in (readings, readings[::-1]):
        texts = texts_of(each)
        assert len(texts) <= 3
        times = {metric.value.time for text in texts for metric in decode_samples(text).metrics}
        assert times == {reading.value.time for reading in readings[-SAMPLES_KEPT_MAX:]}
    assert to_effect(STREAM, 7, Decoded(readings, 5)).ignored == 5 + 11_900 - SAMPLES_KEPT_MAX


def test_all_readings_of_many_metrics_and_resources_are_sent() -> None:
    readings = [
        Metric(f"plan-{n % 3}", f"{'long' * 20}-{n % 119}", MetricValue(ago(n / 1000), n / 7))
        for n in range(9000)
    ]
    metrics = [metric for text in texts_of(readings) for metric in decode_samples(text).metrics]
    assert Counter(metrics) == Counter(readings)


# --- what is read ---


@pytest.mark.parametrize(
    "body",
    [
        base64.b64encode(encode_metric(metric(5)).encode()).decode(),
        json.dumps(ONE).replace(AT, NOW.astimezone(timezone(timedelta(hours=-5))).isoformat()),
        "\ufeff" + json.dumps(ONE, indent=1).replace("\n", "\r\n"),
        base64.b64encode(json.dumps(ONE).encode("utf-8-sig")).decode(),
        base64.b64encode(json.dumps(ONE).encode("utf-16")).decode(),
        base64.encodebytes(json.dumps(ONE).encode()).decode(),
        json.dumps({**ONE, "schema_version": 1.0}),
        json.dumps({**ONE, "schema_version": "1"}),
    ],
    ids=[
        "in base64 as some queue clients send it",
        "a time in another time zone",
        "with a byte order mark",
        "in base64 with a byte order mark",
        "in base64 of UTF-16 as PowerShell makes it",
        "in base64 of several lines as the command base64 makes it",
        "a version with a decimal point",
        "a version as text",
    ],
)
def test_a_message_of_another_sender_is_read(body: str) -> None:
    assert decode_metric(body) == metric(5)


def value(number: object, time: object = AT) -> dict[str, Any]:
    return {**ONE, "value": {"time": time, "value": number}}


def samples(of: object) -> dict[str, Any]:
    return {**MANY, "samples": of}


NO_NUMBER, NO_TIME = "must be a number from 0 to 1e+15", "must be an ISO 8601 time with a time zone"


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({**ONE, "schema_version": 3}, "schema_version is 3, but this app reads 1 and 2"),
        ({**ONE, "schema_version": None}, "schema_version is None"),
        ({**ONE, "schema_version": True}, "schema_version is True"),
        ({**ONE, "resource_name": ""}, "resource_name is ''"),
        ({**ONE, "resource_name": 5}, "resource_name is 5"),
        ({**ONE, "name": None}, "name is None"),
        ({**ONE, "value": 5}, "value is 5"),
        ({**ONE, "value": {"time": AT}}, "value is None"),
        (value("5"), "value is '5'"),
        (value(True), "value is True"),
        (value(-1), "value is -1"),
        (value(10**400), NO_NUMBER),
        (value(float("nan")), NO_NUMBER),
        (value(float("-inf")), NO_NUMBER),
        (value(5, "2026-03-01T12:00:00"), NO_TIME),
        (value(5, "yesterday"), NO_TIME),
        (value(5, "0001-01-01T00:00:00+14:00"), NO_TIME),
        (value(5, 5), "time is 5"),
        (
            {**ONE, "value": {"time": AT, "value": 5, "entity_status": "Active"}},
            "metric value: entity_status is 'Active', must be one of Disabled, Receive",
        ),
        (samples({"backlog": [[AT, 5, None]]}), "sample of 'backlog': entity_status is None, must"),
        (samples({"backlog": [[AT, 5, ["Disabled"]]]}), "entity_status is ['Disabled'], must be"),
        (samples({"backlog": [[AT, 5, "Disabled", 1]]}), "must be a pair [time, value]"),
        (samples({}), "must hold at least one sample"),
        (samples([]), "samples is [], must be a JSON object"),
        (samples({"backlog": 5}), "sample of 'backlog': 5 must be a pair"),
        (samples({"backlog": [[AT]]}), "must be a pair [time, value]"),
        (samples({"backlog": [["yesterday", 5]]}), f"time is 'yesterday', {NO_TIME}"[:50]),
        (samples({"backlog": [[AT, "5"]]}), f"value is '5', {NO_NUMBER}"),
        (samples({"backlog": [[AT, -1]] * 500}), "and 480 more"),
        (
            samples({f"m{n}": [[AT, 5]] for n in range(METRICS_OF_A_MESSAGE_MAX + 1)}),
            "9 metrics; a message may have at most 8",
        ),
    ],
)
def test_an_invalid_field_is_named_with_its_value(message: dict[str, Any], error: str) -> None:
    with pytest.raises(BadMessage) as raised:
        decode_samples(json.dumps(message))
    assert error in str(raised.value)
    assert len(str(raised.value)) < 5000


@pytest.mark.parametrize("change", [{"target": 0}, {"target": 2.0}, {"epoch": -1}, {"epoch": "7"}])
def test_target_and_epoch_of_an_action_must_be_positive_whole_numbers(
    change: dict[str, Any],
) -> None:
    with pytest.raises(BadMessage, match=next(iter(change))):
        decode_action(json.dumps({**ACTION, **change}))


def is_refused(body: str) -> None:
    for decode_body in (decode_samples, decode_action):
        with pytest.raises(BadMessage):
            decode_body(body)
    assert messages_in(body) is None


@pytest.mark.parametrize("body", ["", "plain text", "[1]", '"text"', "{", "=" * 50, "[" * 100_000])
def test_text_that_is_not_a_json_object_is_refused(body: str) -> None:
    is_refused(body)


@given(st.text(max_size=200))
def test_any_text_is_decoded_or_raises_bad_message(body: str) -> None:
    is_refused(body)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ('{"resource_name": "plan-1", "value": -1}', "plan-1"),
        ("not json", None),
        ('{"resource_name": 5}', None),
    ],
)
def test_the_resource_of_an_invalid_message_is_found_if_it_is_named(
    body: str, name: str | None
) -> None:
    assert named_resource(body) == name
