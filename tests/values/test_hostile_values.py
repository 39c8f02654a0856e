"""Decoders of external input, tested with malicious numbers, sizes and types.

Each decoder either returns a valid value or raises the one error that it declares.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.errors import BadMessage, OverrideRefused
from shared.autoscaling.messages import decode_action, decode_samples, encode_action, named_resource
from shared.autoscaling.operating.overrides import Change, check
from shared.autoscaling.state import EPOCH_MAX, Override, ScaleAction
from shared.autoscaling.store.entries import log_row
from shared.autoscaling.store.rows import (
    ScalingRowUnreadable,
    override_of,
    profile_of,
    state_of,
    state_row,
)
from shared.ingestion.errors import BadDelivery
from shared.ingestion.events.trigger_batch import SEQUENCE_MAX, parse_batch
from shared.messaging.lines import read_messages
from shared.messaging.model import BadLines
from shared.sampling.profile import UsualWeek, profile_row
from shared.trends.datasets import flows
from shared.trends.datasets.arrivals import decode_arrival
from shared.trends.datasets.periods import Period
from shared.trends.datasets.processing import UnreadableMessage, decode_work, schedule_processing
from shared.values.measurements import CAPACITY_SANE_MAX, WeekProfile
from shared.values.messages import Message, Result
from shared.web import board
from shared.web import given as web
from shared.web.board import Board
from shared.web.http import Refused, Request
from tests.builders import (
    NOW,
    decode_metric,
    encode_metric,
    metric,
    resource,
    sample,
    state,
)

numbers = st.one_of(
    st.sampled_from([2**31, 2**31 - 1, 2**53, 2**63, -(2**63), 10**400, -1, 0, 1]),
    st.sampled_from([1e308, -1e308, 1e15, 1e16, 5e-324, -0.0]),
    st.sampled_from([float("nan"), float("inf"), -float("inf")]),
)
texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            "9" * 5000,
            str(2**63),
            "1e308",
            "NaN",
            "x" * 200_000,
            "\0",
            "\ud800",
            "0001-01-01T00:00:00+14:00",
            "0001-01-01T00:00:00Z",
            "9999-12-31T23:59:59Z",
            "9999-12-31T23:59:59-14:00",
            "2026-03-01T12:00:00Z",
        ]
    ),
)
leaves = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
DEEP = "[" * 900 + "]" * 900


def changed(fields: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The fields, with arbitrary values in some of them."""
    return st.dictionaries(st.sampled_from(sorted(fields)), values).map(lambda new: fields | new)


ACTION = json.loads(encode_action(ScaleAction("plan-1", 3, 7, "why", NOW)))
METRIC = json.loads(encode_metric(metric(5)))
SAMPLES = {"schema_version": 2, "resource_name": "plan-1", "samples": {"backlog": []}}
PERIODS = [Period(timedelta(days=1)), Period(timedelta(hours=2)), Period(timedelta(days=6))]


def body_of(message: Message) -> bytes:
    """The body of a scheduled message, which is a single byte string."""
    assert isinstance(message.body, bytes)
    return message.body


WORK = json.loads(body_of(schedule_processing("sales", PERIODS[0], NOW)))
ARRIVAL = {
    "specversion": "1.0",
    "type": "Microsoft.Storage.BlobCreated",
    "subject": "/blobServices/default/containers/sales/blobs/y=2026/m=03/d=01/x.json",
    "id": "1",
    "time": "2026-03-01T12:00:00Z",
    "data": {},
}


# --- queue messages ---------------------------------------------------------------------------


@pytest.mark.parametrize("decode", [decode_metric, decode_samples, decode_action])
@given(changed(METRIC) | changed(ACTION) | changed(SAMPLES) | values)
def test_a_message_is_decoded_or_raises_bad_message(
    decode: Callable[[str], object], fields: object
) -> None:
    text = json.dumps(fields)
    named_resource(text)
    with suppress(BadMessage):
        decode(text)


@pytest.mark.parametrize("decode", [decode_metric, decode_samples, decode_action])
def test_a_deeply_nested_message_is_decoded_or_raises_bad_message(
    decode: Callable[[str], object],
) -> None:
    for fields in (METRIC, ACTION, SAMPLES):
        for name in fields:
            text = json.dumps({**fields, name: "DEEP"}).replace('"DEEP"', DEEP)
            with suppress(BadMessage):
                decode(text)


@given(st.lists(values, max_size=4))
def test_each_pair_of_time_and_value_is_decoded_or_refused(pairs: list[object]) -> None:
    good = ["2026-03-01T12:00:00Z", 5]
    fields = {**SAMPLES, "samples": {"backlog": [*pairs, good]}}
    decoded = decode_samples(json.dumps(fields))
    assert decoded.metrics[-1] == metric(5)
    assert len(decoded.metrics) + len(decoded.refused) == len(pairs) + 1


@given(changed(ACTION))
def test_a_decoded_action_can_be_written_to_the_log(fields: dict[str, Any]) -> None:
    with suppress(BadMessage):
        action = decode_action(json.dumps(fields))
        assert 1 <= action.target <= CAPACITY_SANE_MAX < 2**31
        assert 1 <= action.epoch <= EPOCH_MAX < 2**31
        line = LogEntry(
            "plan-1", NOW, EntryKind.IGNORED, "i", "r", None, action.target, action.epoch
        )
        assert "|-" not in log_row(line)["RowKey"]


@pytest.mark.parametrize("change", [{"target": 2**31}, {"epoch": 2**31}, {"target": 1001}])
def test_a_forged_action_with_a_value_out_of_bounds_is_refused(change: dict[str, int]) -> None:
    (name,) = change
    with pytest.raises(BadMessage, match=f"action: {name} is"):
        decode_action(json.dumps({**ACTION, **change}))


# --- data sets --------------------------------------------------------------------------------


@given(changed(WORK) | values)
def test_a_work_message_is_decoded_or_unreadable(fields: object) -> None:
    with suppress(UnreadableMessage):
        work = decode_work(json.dumps(fields))
        assert work.end - work.start <= timedelta(days=7)
        assert len(work.message_id) <= 200


class Sending:
    """Accepts every message."""

    async def send(self, messages: Any, *_: Any) -> Result:
        return Result(len(messages), 1, 0, 0, 0, ())


paths = st.one_of(
    texts,
    st.sampled_from(
        [
            "y=0001/m=01/d=01/x",
            "y=9999/m=12/d=31/x",
            "y=1969/m=12/d=31/h=23/x",
            "9999-12-31/23/x",
            "y=2026/m=02/d=31/x",
            "y=\u0662\u0660\u0662\u0666/m=\u0660\u0663/d=\u0660\u0661/x",
        ]
    ),
)


@given(changed(ARRIVAL) | values, paths, st.sampled_from(PERIODS))
async def test_an_arrival_is_scheduled_or_unreadable(
    fields: Any, path: str, period: Period
) -> None:
    if isinstance(fields, dict) and "subject" in fields:
        fields = {**fields, "subject": f"/blobServices/default/containers/sales/blobs/{path}"}
    with suppress(UnreadableMessage):
        arrival = decode_arrival(json.dumps(fields))
        (message,) = await flows.schedule_data_set(arrival, [period], Sending(), NOW, set())
        assert decode_work(body_of(message)).dataset == arrival.container


@given(st.dictionaries(st.sampled_from(["body", "time_to_live_seconds", "scheduled_at"]), values))
def test_a_line_of_a_message_file_is_read_or_refused(fields: dict[str, Any]) -> None:
    with suppress(BadLines):
        read_messages([json.dumps(fields)])


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ('{"body": {"x": NaN}}', "body.x is NaN"),
        ('{"body": {"x": [1, 1e400]}}', r"body.x\[1\] is infinite or above 1.8e308"),
        ('{"body": -Infinity}', "body is infinite"),
        ('{"body": "a", "application_properties": {"p": NaN}}', "application_properties.p is NaN"),
        ('{"body": "a", "time_to_live_seconds": Infinity}', "time_to_live_seconds is infinite"),
    ],
)
def test_a_line_with_a_number_that_json_lacks_is_refused_with_its_place(
    line: str, place: str
) -> None:
    good = '{"body": {"x": 1e308, "y": "NaN"}}'
    with pytest.raises(BadLines, match=f"line 2: {place}"):
        read_messages([good, line])
    with pytest.raises(BadLines, match=f"line 1: {place}"):
        read_messages([line], raw=True)
    assert read_messages([good])[0].body == '{"x":1e+308,"y":"NaN"}'


# --- the trigger ------------------------------------------------------------------------------

SYSTEM = {"SequenceNumber": 5, "Offset": "1", "EnqueuedTimeUtc": "2026-03-01T12:00:00Z"}


@given(changed(SYSTEM) | values, values, values)
def test_a_delivery_of_the_trigger_is_parsed_or_refused(
    system: object, properties: object, context: Any
) -> None:
    metadata = {
        "PartitionContext": {"PartitionId": context},
        "SystemPropertiesArray": [system],
        "PropertiesArray": [properties],
    }
    with suppress(BadDelivery):
        (event,) = parse_batch([b"x"], metadata).events
        assert 0 <= event.sequence <= SEQUENCE_MAX
        assert event.enqueued_at.tzinfo is UTC


# --- operators --------------------------------------------------------------------------------

OVERRIDE = {"mode": "paused", "reason": "r", "by": "b", "for": "2h", "floor": 3}
JSON = {"content-type": "application/json"}


@given(changed({**OVERRIDE, "freeze_scale_in": False, "clear": False}) | values)
@example({"\ud800": 1})
async def test_an_override_of_an_operator_is_set_or_refused(fields: Any) -> None:
    store = MemoryStateStore(lambda: NOW)
    served = Board({"plan-1": resource()}, store, 30)
    body = json.dumps(fields).encode()
    request = Request(route={"name": "plan-1"}, headers=JSON, body=body)
    reply = await board.override(request, served)
    assert reply.status in (200, 400, 413)
    for line in await store.log("plan-1"):
        log_row(line)


# --- rows -------------------------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from(["mode", "floor", "exact", "expires_at", "reason"]), values))
def test_any_row_of_an_override_is_read_with_plausible_capacities(row: dict[str, Any]) -> None:
    override = override_of(row)
    assert override.floor is None or override.floor >= 0
    for capacity in (override.floor, override.exact):
        assert capacity is None or capacity < 2**31


@pytest.mark.parametrize("number", [2**31, 2**63, "9" * 5000, 10**400])
def test_an_override_row_with_an_impossible_capacity_pauses_the_resource(number: object) -> None:
    override = override_of({"floor": number, "reason": "r"})
    assert override.mode == "paused"
    assert len(override.reason) < 300


@given(values.map(json.dumps) | texts)
def test_invalid_samples_in_a_row_are_left_out_or_the_row_is_unreadable(text: str) -> None:
    row = {**state_row("plan-1", "metric|backlog", state([1]).histories["backlog"])}
    row["samples_0"] = text
    with suppress(ScalingRowUnreadable):
        (loaded, _) = state_of([row])
        assert all(0 <= kept.value <= 1e15 for kept in loaded.histories["backlog"].samples)


def test_a_sample_in_a_row_that_is_too_large_is_left_out_and_the_others_are_kept() -> None:
    history = state([1, 2]).histories["backlog"]
    row = state_row("plan-1", "metric|backlog", history)
    row["samples_0"] = row["samples_0"].replace(",1]", ",1e200]")
    assert state_of([row])[0].histories["backlog"].samples == (sample(2),)


def test_the_error_about_a_huge_floor_is_short() -> None:
    with pytest.raises(OverrideRefused) as raised:
        check(Change(Override(floor=10**400, reason="r"), "anna", "id"), resource())
    assert len(str(raised.value)) < 300
    asked = Request(headers=JSON, body=json.dumps({"floor": 10**4000}).encode())
    with pytest.raises(Refused) as refused:
        web.in_body(asked, board.OverrideGiven)
    assert len(str(refused.value)) < 300


# --- single bounds ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"SequenceNumber": float("inf")},
        {"SequenceNumber": float("nan")},
        {"SequenceNumber": 2**63},
        {"SequenceNumber": -1},
        {"SequenceNumber": "9" * 5000},
        {"SequenceNumber": "1_0"},
        {"SequenceNumber": "\u0663"},
        {"EnqueuedTimeUtc": "0001-01-01T00:00:00+14:00"},
        {"EnqueuedTimeUtc": "2" * 100_000},
    ],
)
def test_a_delivery_with_a_value_out_of_bounds_is_refused_with_a_short_error(
    change: dict[str, Any],
) -> None:
    metadata = {
        "PartitionContext": {"PartitionId": "3"},
        "SystemPropertiesArray": [{**SYSTEM, **change}],
    }
    with pytest.raises(BadDelivery, match="an event has an invalid system property") as raised:
        parse_batch([b"x"], metadata)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("load", [1e16, 1e308, float("inf"), float("nan"), -1.0])
def test_a_week_profile_with_an_impossible_load_is_refused(load: float) -> None:
    sound = (5.0,) * 168
    read = profile_of(profile_row("plan-1", UsualWeek(sound, "UTC", ())))
    assert read == WeekProfile(sound)
    with pytest.raises(ValueError, match="items per minute"):
        profile_of(profile_row("plan-1", UsualWeek((*sound[1:], load), "UTC", ())))
