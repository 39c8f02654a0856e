"""Decoding events: readings, rejections, messages, and the decisions that follow from them."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling import HubMetric, Threshold
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.messages import decode_samples
from shared.ingestion.decoding.azure_monitor import key
from shared.ingestion.decoding.decode import decode
from shared.ingestion.decoding.metric_handler import MetricHandler
from shared.ingestion.decoding.readings import (
    BODY_CHARACTERS_MAX,
    MetricSubscriptions,
    SubscribedMetric,
)
from shared.ingestion.errors import BadEvent
from shared.ingestion.model import Event, OutboxMessage, Stream, split
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from tests.builders import NOW, as_message, decode_metric, encode_metric, resource

BUS = (
    "/subscriptions/00000000-0000-0000-0000-00000000000a/resourceGroups/Shop"
    "/providers/Microsoft.ServiceBus/namespaces/shop-bus"
)
AVERAGE = SubscribedMetric("plan-1", "backlog")
INTERESTS = MetricSubscriptions(
    frozenset({("plan-1", "pushed"), ("plan-1", "other")}),
    {key(BUS, "ActiveMessages"): (AVERAGE, SubscribedMetric("plan-2", "most", "maximum"))},
)
STREAM = Stream("ns", "hub", "$Default", "3")
BOTH = {"backlog": 31.5, "most": 63}
LOG = {"time": "2026-03-07T22:19:49Z", "resourceId": BUS, "category": "FunctionAppLogs"}
SINGLE_QUOTED = json.dumps({"records": [LOG]})[:-3].encode() + b", \"properties\": {'a': 'b'}}]}"
AT = datetime(2026, 3, 1, 11, 59, tzinfo=UTC)


def record(**changes: Any) -> dict[str, Any]:
    """A record as Azure Monitor writes it; a field set to None is omitted."""
    fields = {
        "count": 4,
        "total": 126,
        "minimum": 0,
        "maximum": 63,
        "average": 31.5,
        "resourceId": BUS.upper(),
        "time": "2026-03-01T11:59:00.0000000Z",
        "metricName": "ActiveMessages",
        "timeGrain": "PT1M",
        **changes,
    }
    return {name: value for name, value in fields.items() if value is not None}


def body(*records: Any) -> bytes:
    return json.dumps({"records": records}).encode()


def own(value: float = 5, name: str = "pushed", at: datetime = AT, **changes: Any) -> bytes:
    text = encode_metric(Metric("plan-1", name, MetricValue(at, value)))
    return json.dumps({**json.loads(text), **changes}).encode()


def values(event_body: bytes, subscriptions: MetricSubscriptions = INTERESTS) -> dict[str, float]:
    readings = decode(event_body, subscriptions).readings
    return {reading.name: reading.value.value for reading in readings}


def interests(aggregation: str) -> MetricSubscriptions:
    metric = SubscribedMetric("plan-1", "backlog", aggregation)
    return MetricSubscriptions(monitored={key(BUS, "ActiveMessages"): (metric,)})


def test_a_reading_has_the_resource_and_the_time_of_its_source() -> None:
    assert decode(own(), INTERESTS).readings == (Metric("plan-1", "pushed", MetricValue(AT, 5)),)
    assert decode(body(record()), INTERESTS).readings == (
        Metric("plan-1", "backlog", MetricValue(AT, 31.5)),
        Metric("plan-2", "most", MetricValue(AT, 63)),
    )


ONE = body(record())
MIXED = SINGLE_QUOTED.replace(b'"records": [', b'"records": [' + ONE[13:-2] + b", ")


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(json.dumps(record()).encode(), id="a single record without a list"),
        pytest.param(body(record(resourceId=BUS.lower(), metricName="activemessages")), id="lower"),
        pytest.param(body(record(resourceId=BUS.upper(), metricName="ACTIVEMESSAGES")), id="upper"),
        pytest.param(body(record(resourceId=f"{BUS}/")), id="a slash at the end"),
        pytest.param(body(record(average=None)), id="a missing average is computed"),
        pytest.param(body(record(), record()), id="two records of one time that agree"),
        pytest.param(body(record(location="westeurope")), id="a field that does not divide"),
        pytest.param(body(record(dimensions={"Tenant": ""})), id="an empty dimension"),
        pytest.param(body(record(percentile=5)), id="another field"),
        pytest.param(gzip.compress(ONE), id="gzip"),
        pytest.param(gzip.compress(ONE[:40]) + gzip.compress(ONE[40:]), id="two gzip members"),
        pytest.param(MIXED, id="beside a log in single quotes"),
        pytest.param(b"[" + ONE + b"]", id="a list of batches, as a forwarder writes"),
    ],
)
def test_a_record_is_read_however_azure_writes_and_packs_it(event: bytes) -> None:
    assert values(event) == BOTH


@pytest.mark.parametrize("version", [1, 1.0, "1", "1.0"])
def test_the_version_may_be_any_number_or_text_that_means_one(version: Any) -> None:
    assert values(own(schema_version=version)) == {"pushed": 5}


@pytest.mark.parametrize("version", [True, 2, 1.5, "one", None, [1]])
def test_another_version_is_rejected(version: Any) -> None:
    with pytest.raises(BadEvent, match="this app reads 1"):
        decode(own(schema_version=version), INTERESTS)


@pytest.mark.parametrize(
    "other",
    [
        {"metricName": "Size"},
        {"resourceId": BUS.upper() + "2"},
        {"metricName": None, "category": "OperationalLogs"},
        {"timeGrain": "PT1H"},
        {"metricName": 5},
    ],
)
def test_items_of_unsubscribed_metrics_are_counted_and_ignored(other: dict[str, Any]) -> None:
    decoded = decode(body(record(**other), record()), INTERESTS)
    assert (len(decoded.readings), decoded.ignored, decoded.rejected) == (2, 1, ())
    alone = decode(body(record(**other)), INTERESTS)
    assert (alone.readings, alone.ignored) == ((), 1)


@pytest.mark.parametrize("aggregation", ["average", "total", "minimum", "maximum"])
def test_a_record_with_count_zero_has_no_value_whether_alone_or_among_others(
    aggregation: str,
) -> None:
    subscribed = interests(aggregation)
    empty = record(count=0, total=0, minimum=0, maximum=0, average=0)
    for missing in (empty, record(count=0, average=None, total=None)):
        for event in (body(missing), body(missing, missing)):
            decoded = decode(event, subscribed)
            assert (decoded.readings, decoded.rejected) == ((), ())
        both = values(body(missing, record(minimum=1)), subscribed)
        assert both == values(body(record(minimum=1)), subscribed) != {}
    assert values(body(record(count=0)), interests("count")) == {"backlog": 0}


@pytest.mark.parametrize("aggregation", ["average", "total", "minimum", "maximum", "count"])
@pytest.mark.parametrize(
    ("dimensions", "named"),
    [
        ({"EntityName": ""}, "'EntityName'"),
        ({"ApiName": "GetBlob", "GeoType": "Primary"}, "'ApiName', 'GeoType'"),
        ({"dimensions": {"Role": "web"}}, "'Role'"),
    ],
)
def test_records_that_are_divided_by_a_dimension_have_no_value_and_are_named(
    dimensions: dict[str, Any], named: str, aggregation: str
) -> None:
    subscribed = interests(aggregation)
    part, other = record(**dimensions), record(count=1, total=74, **dimensions)
    for event in (body(part, other), body(part), json.dumps(part).encode()):
        decoded = decode(event, subscribed)
        assert (decoded.readings, decoded.rejected) == ((), ())
        assert f"the records of ActiveMessages are divided by {named}: " in decoded.set_aside
        assert "streamed=False" in decoded.set_aside
    assert values(body(part, record()), subscribed) == values(body(record()), subscribed) != {}


def test_the_account_that_storage_repeats_in_each_record_is_not_a_dimension() -> None:
    account = {"AccountResourceId": "/subscriptions/s/storageAccounts/shop"}
    assert values(body(record(**account))) == values(body(record())) != {}


def test_records_of_one_time_that_disagree_have_no_value() -> None:
    decoded = decode(body(record(), record(average=40)), INTERESTS)
    assert [reading.name for reading in decoded.readings] == ["most"]
    assert "divided by something that they do not name" in decoded.notes[0]


def test_a_bad_record_is_reported_and_does_not_affect_the_good_ones() -> None:
    bad = record(time="yesterday")
    decoded = decode(body(bad, record(), "no record"), INTERESTS)
    assert len(decoded.readings) == 2
    assert decoded.rejected[0].startswith("records[0] (ActiveMessages): time is 'yesterday'")
    assert decoded.rejected[-1] == "records[2] is 'no record'; it must be an object"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"<xml/>", "the body is not JSON"),
        (b"\xff\xfe\xfd", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"\x1f\x8bnot gzip", "begins like gzip, but cannot be unpacked"),
        (gzip.compress(b"{}", mtime=0)[:-9], "the compressed body is truncated"),
        (b"5", "the event is neither metric JSON"),
        (b'{"name": "jobs", "value": 21}', "the event is neither metric JSON"),
        (b'{"records": 5}', "records is 5; it must be a list"),
        (own(schema_version=2), "schema_version is 2; this app reads 1"),
        (own(name="typo"), "does not declare the metric 'typo' of 'plan-1' as HubMetric"),
        (own(resource_name=5), "resource_name is 5; it must be a text"),
        (own(value=-1), "value is -1; it must be a number from 0 to 1e+15"),
        (own(value=float("nan")), "value is nan; it must be a number from 0 to"),
        (own(value=10**400), "value is 1000"),
        (body(record(maximum=True, average="5")), "maximum is True"),
        (body(record(average=None, total=None, maximum=None)), "has neither an average nor"),
        (own().replace(b":00Z", b":00"), "an ISO 8601 time with a zone"),
    ],
)
def test_an_invalid_event_is_rejected_with_the_reason(bad: bytes, reason: str) -> None:
    with pytest.raises(BadEvent) as raised:
        decode(bad, INTERESTS)
    assert reason in str(raised.value)


TABLE = {"time": "2026-03-01T12:00:00Z", "resourceId": BUS, "Type": "AppMetrics", "Name": "n"}


@pytest.mark.parametrize(
    ("foreign", "what"),
    [
        (b"", "an empty event"),
        (b"Obj\x01\x04\x14avro.codec", "an Avro file"),
        (SINGLE_QUOTED, "a log of Azure Monitor"),
        (gzip.compress(SINGLE_QUOTED), "a log of Azure Monitor"),
        (
            SINGLE_QUOTED.replace(b"'b'", b"'it's {'"),
            "a log of Azure Monitor that is not valid JSON",
        ),
        (LOG, "a log of Azure Monitor"),
        ({"records": [LOG, TABLE]}, "a log of Azure Monitor"),
        ({"records": [{"operationName": "write", "time": "2026-03-01"}]}, "a log of Azure"),
        ({"records": [TABLE]}, "a row of Log Analytics or Application Insights"),
        ([{"TimeGenerated": "2026", "MetricName": "Cpu", "Average": "4"}], "metrics in columns of"),
        (
            [{"eventType": "t", "eventTime": "2026", "data": {"name": "a"}}],
            "an event of Event Grid",
        ),
        ({"specversion": "1.0", "type": "t", "source": "s", "data": {}}, "a CloudEvent"),
        (
            {"specversion": "1.0", "type": "t", "source": "s", "data": {"schema_version": 3}},
            "a CloudEvent",
        ),
        ({"schema": {"type": "struct"}, "payload": {"op": "c"}}, "a change of Kafka Connect"),
        ({"before": None, "after": {"id": 1}, "op": "c", "ts_ms": 1}, "a change of Debezium"),
        ({"deviceId": "d", "name": "temperature", "value": 21}, "a message of a device"),
        ({"temperature": 27.4, "humidity": 66.1}, "JSON of another kind"),
        ({"name": "kitchen", "temperature": 27.4}, "JSON of another kind"),
        ({"value": 27.4, "unit": "C"}, "JSON of another kind"),
    ],
)
def test_what_is_certainly_not_a_metric_is_set_aside(foreign: Any, what: str) -> None:
    event = foreign if isinstance(foreign, bytes) else json.dumps(foreign).encode()
    decoded = decode(event, INTERESTS)
    assert decoded.set_aside.startswith(what)
    assert (decoded.readings, decoded.rejected) == ((), ())


@pytest.mark.parametrize(
    "damaged",
    [
        {**json.loads(own()), "schema_version": 3, "category": "jobs", "deviceId": "d"},
        {"specversion": "1.0", "type": "t", "source": "s", "data": json.loads(own())},
        {"schemaVersion": 1, "resourceName": "plan-1", "Name": "pushed"},
        {"MetricName": "ActiveMessages", "ResourceId": BUS, "Average": "5"},
        {"resource_name": "plan-1"},
        {"records": [LOG, {"schema_version": 3}]},
        SINGLE_QUOTED.replace(b'"category"', b'"metricName": "ActiveMessages", "category"'),
        {"Metric_Name": "ActiveMessages", "Average": 5},
        {"SCHEMAVERSION": 1, "value": 5},
        {"Resource_Name": "plan-1", "category_": "jobs"},
        b'{"temperature": 21',
        b'{"category": "jobs", "metricName": "ActiveMessages", "average": 5',
        b'{"operationName": "write", "resource_name" : "plan-1"',
        b"5",
    ],
)
def test_what_may_be_a_damaged_metric_is_rejected_not_set_aside(damaged: Any) -> None:
    event = damaged if isinstance(damaged, bytes) else json.dumps(damaged).encode()
    with pytest.raises(BadEvent):
        decode(event, INTERESTS)


def test_an_event_is_set_aside_only_if_nothing_in_it_is_a_metric() -> None:
    for metric in (record(), record(metricName="Size")):
        decoded = decode(body(LOG, metric), INTERESTS)
        assert (decoded.set_aside, decoded.ignored > 0) == ("", True)


@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_arbitrary_bytes_are_decoded_or_rejected(anything: bytes) -> None:
    with suppress(BadEvent):
        decode(anything, INTERESTS)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(record())), json_values))
def test_arbitrary_records_are_decoded_or_rejected(changes: dict[str, Any]) -> None:
    fields = {**record(), **changes}
    with suppress(BadEvent):
        for reading in decode(json.dumps({"records": [fields]}).encode(), INTERESTS).readings:
            assert reading.value.value >= 0
            assert reading.value.time.tzinfo is UTC


def test_an_event_may_have_one_object_a_line_and_a_bad_line_stops_no_other() -> None:
    lines = [own(1), b"", own(2, name="other"), b"{", body(record()), json.dumps(LOG).encode()]
    decoded = decode(b"\r\n".join(lines), INTERESTS)
    assert [reading.value.value for reading in decoded.readings] == [31.5, 63, 1, 2]
    assert (decoded.ignored, decoded.rejected_count) == (1, 1)
    assert decoded.rejected[0].startswith("line 3: it is not JSON: ")
    with pytest.raises(BadEvent, match="the body is not JSON"):
        decode(b"{\n" + own(), INTERESTS)


# --- from an event to messages ----------------------------------------------------------------


async def messages(event_body: bytes, sequence: int = 7) -> tuple[OutboxMessage, ...]:
    handler = MetricHandler(STREAM, INTERESTS)
    effect = await handler(Event(sequence, "@", NOW, event_body))
    return effect.messages


async def test_a_reading_becomes_a_message_that_the_scaling_logic_understands() -> None:
    (message,) = await messages(own())
    assert message.message_id == json.loads(message.body)["id"] == "hub:3:7"
    assert decode_metric(message.body) == Metric("plan-1", "pushed", MetricValue(AT, 5))


async def test_the_readings_of_an_event_share_one_row_and_have_ids_of_their_own() -> None:
    (message,) = await messages(body(record()))
    each = json.loads(message.body)
    assert message.message_id == "hub:3:7:0"
    assert [one["id"] for one in each] == ["hub:3:7:0", "hub:3:7:1"]
    assert decode_metric(json.dumps(each[1])).value == MetricValue(AT, 63)


async def test_a_metric_that_arrives_with_another_time_grain_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler, hourly = MetricHandler(STREAM, INTERESTS), body(record(timeGrain="PT1H"))
    reason = (
        "backlog of plan-1 is not read from records of ActiveMessages with the time grain 'PT1H', "
        "because scaling_rules.py declares PT1M"
    )
    for sequence in (3, 4):
        effect = await handler(Event(sequence, "@", NOW, hourly))
        assert effect.set_aside.startswith(reason)
    assert caplog.text.count(f"[records_unused] hub/3 3: {reason}") == 1
    assert "hub/3 4" not in caplog.text
    assert decode(body(record(), record(timeGrain="PT1H")), INTERESTS).set_aside == ""


async def test_thousands_of_readings_fit_into_one_transaction() -> None:
    times = [AT + timedelta(minutes=n) for n in range(3000)]
    found = await messages(body(*[record(time=at.isoformat()) for at in times]))
    assert len(found) < 99
    assert all(len(message.body) <= BODY_CHARACTERS_MAX for message in found)
    each = [metric for message in found for metric in _sent(message)]
    assert len({(one.resource_name, one.value.time) for one in each}) == len(each) == 6000
    assert len({message.message_id for message in found}) == len(found)


def _sent(message: OutboxMessage) -> list[Metric]:
    return [one for text in split(message.body) for one in decode_samples(text).metrics]


async def test_an_event_without_readings_needs_no_row_and_rejections_are_kept_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = MetricHandler(STREAM, INTERESTS)
    nothing = await handler(Event(7, "@", NOW, body(record(metricName="Size"))))
    assert (nothing.rows, nothing.ignored) == (0, 1)
    for sequence in (3, 4):
        foreign = await handler(Event(sequence, "@", NOW, body(LOG)))
        assert (foreign.rows, foreign.set_aside) == (0, "a log of Azure Monitor")
    assert caplog.text.count("[set_aside] hub/3 3: a log of Azure Monitor, not a metric.") == 1
    assert "[set_aside] hub/3 4" not in caplog.text, "each kind is reported once"
    kept = await handler(Event(8, "@", NOW, body(record(time="never\ud800"), record())))
    assert kept.value is not None
    assert "time is 'never" in kept.value
    assert (
        "[records_rejected] hub/3 8: 2 rejected: records[0] (ActiveMessages): time is"
        in caplog.text
    )


async def test_redelivered_events_lead_to_the_same_single_decision() -> None:
    """A sample is identified by the time of its source, so a redelivered one changes nothing."""
    busy = resource(metrics={"pushed": HubMetric()}, policy=Threshold("pushed", 100, 10))
    store = MemoryStateStore(lambda: NOW)
    resources = {busy.name: busy}
    capacity = Metric(busy.name, CAPACITY_METRIC, MetricValue(NOW, 2))
    await scaling_logic.process_samples(as_message(capacity), resources, store)
    ordered = []
    for _ in range(3):
        for minute in range(5):
            event = own(500, at=NOW - timedelta(minutes=5 - minute))
            for message in await messages(event, sequence=minute):
                metric = decode_metric(message.body)
                ordered.append(
                    await scaling_logic.process_samples(as_message(metric), resources, store)
                )
    actions = [action for action in ordered if action is not None]
    assert {(action.target, action.epoch) for action in actions} == {(3, 1)}
    state = (await store.load(busy.name)).state
    assert len(state.histories["pushed"].samples) == 5
