from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.autoscaling.errors import BadMessage
from shared.autoscaling.messages import decode_action, encode_action, named_resource
from shared.autoscaling.state import EPOCH_MAX, ScaleAction
from shared.values.measurements import Metric, MetricValue
from tests.builders import NOW, decode_metric, encode_metric, metric

GOOD = json.loads(encode_metric(metric(5)))
names = st.text(min_size=1, max_size=30).filter(lambda t: t.isprintable())
times = st.datetimes(timezones=st.just(UTC))


@given(names, names, times, st.floats(0, 1e12))
def test_a_metric_survives_the_queue(name: str, kind: str, time: datetime, value: float) -> None:
    sent = Metric(name, kind, MetricValue(time, value))
    assert decode_metric(encode_metric(sent)) == sent


@given(names, st.integers(1, 100), st.integers(1, EPOCH_MAX), st.text(max_size=50), times)
def test_an_action_survives_the_queue(
    name: str, target: int, epoch: int, reason: str, time: datetime
) -> None:
    sent = ScaleAction(name, target, epoch, reason, time)
    assert decode_action(encode_action(sent)) == sent


def test_a_message_in_base64_as_some_queue_clients_send_it_is_read() -> None:
    text = encode_metric(metric(5))
    assert decode_metric(base64.b64encode(text.encode()).decode()) == metric(5)


def test_a_time_in_another_time_zone_is_converted_to_utc() -> None:
    there = NOW.astimezone(timezone(timedelta(hours=-5)))
    body = {**GOOD, "value": {"time": there.isoformat(), "value": 5}}
    assert decode_metric(json.dumps(body)) == metric(5)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"schema_version": 3}, "schema_version is 3, but this app reads 1 and 2"),
        ({"schema_version": None}, "schema_version is None"),
        ({"schema_version": True}, "schema_version is True"),
        ({"resource_name": ""}, "resource_name is ''"),
        ({"resource_name": 5}, "resource_name is 5"),
        ({"name": None}, "name is None"),
        ({"value": 5}, "value is 5"),
        ({"value": {"time": "2026-03-01T12:00:00Z", "value": "5"}}, "value is '5'"),
        ({"value": {"time": "2026-03-01T12:00:00Z", "value": True}}, "value is True"),
        ({"value": {"time": "2026-03-01T12:00:00Z", "value": -1}}, "value is -1"),
        ({"value": {"time": "2026-03-01T12:00:00Z", "value": 10**400}}, "a number from 0 to"),
        ({"value": {"time": "2026-03-01T12:00:00Z"}}, "value is None"),
        (
            {"value": {"time": "2026-03-01T12:00:00", "value": 5}},
            "must be an ISO 8601 time with a time zone",
        ),
        ({"value": {"time": "yesterday", "value": 5}}, "ISO 8601"),
        ({"value": {"time": "0001-01-01T00:00:00+14:00", "value": 5}}, "ISO 8601"),
        ({"value": {"time": 5, "value": 5}}, "time is 5"),
    ],
)
def test_an_invalid_field_is_named_with_its_value(change: dict[str, Any], error: str) -> None:
    with pytest.raises(BadMessage) as raised:
        decode_metric(json.dumps({**GOOD, **change}))
    assert error in str(raised.value)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_valid_json_are_refused(number: str) -> None:
    body = encode_metric(metric(5.0)).replace("5.0", number)
    with pytest.raises(BadMessage, match="a number from 0 to"):
        decode_metric(body)


@pytest.mark.parametrize("body", ["", "plain text", "[1]", '"text"', "{", "=" * 50, "[" * 100_000])
def test_text_that_is_not_a_json_object_is_refused(body: str) -> None:
    for decode in (decode_metric, decode_action):
        with pytest.raises(BadMessage):
            decode(body)


@given(st.text(max_size=200))
def test_any_text_is_decoded_or_raises_bad_message(body: str) -> None:
    for decode in (decode_metric, decode_action):
        with pytest.raises(BadMessage):
            decode(body)


@pytest.mark.parametrize("change", [{"target": 0}, {"target": 2.0}, {"epoch": -1}, {"epoch": "7"}])
def test_target_and_epoch_of_an_action_must_be_positive_whole_numbers(
    change: dict[str, Any],
) -> None:
    good = json.loads(encode_action(ScaleAction("plan-1", 3, 7, "why", NOW)))
    with pytest.raises(BadMessage, match=next(iter(change))):
        decode_action(json.dumps({**good, **change}))


def test_the_resource_of_an_invalid_message_is_found_if_it_is_named() -> None:
    assert named_resource('{"resource_name": "plan-1", "value": -1}') == "plan-1"
    assert named_resource("not json") is None
    assert named_resource('{"resource_name": 5}') is None
