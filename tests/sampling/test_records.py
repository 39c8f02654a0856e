"""Reading records in all export formats, quarantine of bad lines, keys, and weights."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.sampling.diagnostic_export import KEY_COLUMNS
from shared.sampling.model import (
    Ignored,
    Outcome,
    Quarantined,
    Reason,
    Record,
    RecordKind,
    Weight,
)
from shared.sampling.records import TEXT_MAX, read_line, read_lines
from shared.sampling.weights import weigh

SAMPLES = Path(__file__).parents[1] / "data" / "telemetry"
EVENT: dict[str, Any] = {
    "time": "2017-05-15T09:30:01.1234567Z",
    "Type": "AppEvents",
    "Name": "PointsReceived",
    "OperationId": "op",
    "ItemCount": 2,
    "Measurements": {"PointCount": 1.5},
}


def sample(name: str) -> list[Outcome]:
    return list(read_lines((SAMPLES / name).read_bytes().splitlines()))


def read(**changes: Any) -> Outcome:
    (outcome,) = read_line(json.dumps({**EVENT, **changes}))
    return outcome


def record(**changes: Any) -> Record:
    outcome = read(**changes)
    assert isinstance(outcome, Record), outcome
    return outcome


def test_events_of_the_diagnostic_export_are_read() -> None:
    *events, cut = sample("app_events.json")
    fields = [
        (e.operation_id[:4], e.weight, dict(e.measurements))
        for e in events
        if isinstance(e, Record)
    ]
    assert fields == [
        ("4bf9", Weight(4), {"PointCount": 12.5}),
        ("4bf9", Weight(4), {}),
        ("", Weight(1), {}),
        ("a3ce", Weight(100 / 30, exact=True), {"PointCount": 3}),
    ]
    assert isinstance(cut, Quarantined)
    assert cut.reason is Reason.NOT_JSON
    assert cut.text.startswith('{"time":')
    assert len(cut.text) == TEXT_MAX


def test_requests_dependencies_traces_and_metrics_are_read() -> None:
    request, dependency, trace, metric = sample("other_tables.json")
    assert isinstance(request, Record)
    assert isinstance(dependency, Record)
    assert (request.kind, request.name) == (RecordKind.REQUEST, "POST Orders/Place")
    assert request.measurements == {"DurationMs": 9.1593}
    assert (dependency.kind, dependency.weight.value) == (RecordKind.DEPENDENCY, 8)
    assert isinstance(trace, Record)
    assert (trace.kind, trace.name) == (RecordKind.TRACE, "Order {OrderId} placed")
    assert not trace.weight.trusted
    assert isinstance(metric, Record)
    assert (metric.kind, metric.weight.value) == (RecordKind.METRIC, 1), (
        "a metric is aggregated before sampling"
    )


def test_a_bad_record_in_the_body_of_an_event_does_not_affect_the_others() -> None:
    good, drifted, foreign, number = sample("event_hub.json")
    assert good == sample("app_events.json")[0]
    assert isinstance(drifted, Record)
    assert drifted.unreadable.keys() == {"DurationMs"}
    assert isinstance(foreign, Quarantined)
    assert foreign.reason is Reason.OTHER_PRODUCT
    assert isinstance(number, Quarantined)
    assert number.text == "7"


@pytest.mark.parametrize(
    ("written", "hour"),
    [
        ("2017-05-15T09:30:01.1234567Z", 9),
        ("2017-05-15T09:30:01.123456", 9),
        ("2017-05-15T11:30:01.123456+02:00", 9),
        ("2017-05-15T00:30:01.123456-09:00", 9),
    ],
)
def test_times_are_converted_to_utc(written: str, hour: int) -> None:
    assert record(time=written).time == datetime(2017, 5, 15, hour, 30, 1, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"time": "yesterday"}, "time"),
        ({"time": 1494840601}, "time"),
        ({"time": "9999-12-31T23:59:59-05:00"}, "time"),
        ({"Name": None}, "Name"),
        ({"Name": 5}, "Name"),
        ({"time": None}, "time"),
        ({"time": "today", "TimeGenerated": "now"}, "time"),
        ({"time": "0001-01-01T00:00:00Z"}, "time"),
        ({"time": "3000-01-01T00:00:00Z"}, "time"),
    ],
)
def test_a_field_with_a_wrong_value_is_named(changes: dict[str, Any], field: str) -> None:
    outcome = read(**changes)
    assert isinstance(outcome, Quarantined)
    assert (outcome.reason, outcome.field) == (Reason.BAD_FIELD, field)
    assert outcome.detail.startswith(field)


@pytest.mark.parametrize(
    "changes",
    [
        {"OperationId": 5},
        {"SDKVersion": {"a": 1}},
        {"AppRoleName": [1]},
        {"Properties": 5},
        {"Properties": "{"},
        {"DurationMs": "soon"},
        {"Measurements": {"PointCount": 1.5, "Rate": "NaN"}},
        {"time": None, "TimeGenerated": EVENT["time"]},
        {"time": "", "TimeGenerated": EVENT["time"]},
    ],
)
def test_a_wrong_value_in_a_column_that_is_not_needed_does_not_remove_the_record(
    changes: dict[str, Any],
) -> None:
    found = record(**changes)
    assert (found.time, found.weight, found.measurements) == (
        record().time,
        record().weight,
        {"PointCount": 1.5},
    )


@pytest.mark.parametrize("count", [0, -3, "many", "1_0", "\u0662", True, 10**400, [2], {}])
def test_a_record_whose_item_count_cannot_be_read_counts_once_and_is_not_trusted(
    count: Any,
) -> None:
    assert record(ItemCount=count).weight == Weight(1.0, trusted=False)
    rated = record(ItemCount=count, Properties={"microsoft.sample_rate": "25"})
    assert rated.weight == Weight(4.0, exact=True)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"Measurements": [1]}, "Measurements"),
        ({"Measurements": "{"}, "Measurements"),
        ({"Measurements": {"PointCount": "lots"}}, "Measurements.PointCount"),
        ({"Measurements": {"PointCount": "inf"}}, "Measurements.PointCount"),
        ({"Measurements": {"Other": "lots"}}, ""),
        ({"Measurements": None}, ""),
        ({}, ""),
    ],
)
def test_a_measurement_that_cannot_be_read_is_told_from_a_missing_one(
    changes: dict[str, Any], field: str
) -> None:
    error = record(**changes).error_of("PointCount")
    assert (error.field if error else "") == field


@pytest.mark.parametrize(
    ("changes", "measurements"),
    [
        ({"Measurements": None}, {}),
        ({"Measurements": {}}, {}),
        ({"Measurements": {"PointCount": None}}, {}),
        ({"Measurements": '{"PointCount": 2}'}, {"PointCount": 2}),
        ({"Measurements": {"PointCount": "2.5"}}, {"PointCount": 2.5}),
        ({"Measurements": "", "Other": [{}]}, {}),
    ],
)
def test_missing_and_null_measurements_are_left_out(
    changes: dict[str, Any], measurements: dict[str, float]
) -> None:
    assert record(**changes).measurements == measurements


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\xff\xfe{", Reason.NOT_TEXT),
        ("[" * 100_000, Reason.NOT_JSON),
        ('{"time":', Reason.NOT_JSON),
        ('{"ItemCount": nan}', Reason.NOT_JSON),
        ("[[]]", Reason.OTHER_PRODUCT),
        ("null", Reason.OTHER_PRODUCT),
        ('{"Type": "StorageBlobLogs"}', Reason.OTHER_PRODUCT),
        ('{"Type": ["AppEvents"]}', Reason.OTHER_PRODUCT),
    ],
)
def test_a_line_that_is_not_a_record_is_quarantined(line: str | bytes, reason: Reason) -> None:
    (outcome,) = read_line(line)
    assert isinstance(outcome, Quarantined)
    assert outcome.reason is reason


def test_blank_lines_and_empty_bodies_have_no_records() -> None:
    assert list(read_lines(["", " \r\n", b"\xef\xbb\xbf", "[]", '{"records": []}'])) == []


def nested(leaves: st.SearchStrategy[Any], names: st.SearchStrategy[str]) -> Any:
    return st.recursive(leaves, lambda s: st.lists(s) | st.dictionaries(names, s), max_leaves=10)


NAMES = ["Type", "time", "Name", "context", "event", "records", "custom", "data", "metrics"]
ANYTHING = nested(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    st.sampled_from(NAMES) | st.text(),
)


@given(st.text() | st.binary() | ANYTHING.map(json.dumps))
def test_no_line_raises(line: str | bytes) -> None:
    assert all(isinstance(o, Record | Quarantined | Ignored) for o in read_line(line))


@given(st.sampled_from([*EVENT, "Properties", "SDKVersion", "DurationMs"]), ANYTHING)
def test_no_value_of_any_column_raises(column: str, value: Any) -> None:
    (outcome,) = read_line(json.dumps({**EVENT, column: value}))
    assert isinstance(outcome, Record | Quarantined)


@pytest.mark.parametrize(
    ("depth", "outcome"),
    [
        (400, Record),
        (2000, Quarantined),
    ],
)
def test_a_line_nested_too_deeply_for_python_is_quarantined(depth: int, outcome: type) -> None:
    deep = json.dumps(EVENT).replace("}}", '}, "deep": {"a": ' + "[" * depth + "]" * depth + "}}")
    (read_outcome,) = read_line(deep)
    assert isinstance(read_outcome, outcome)


def test_the_last_of_duplicate_names_in_an_object_is_used() -> None:
    line = json.dumps(EVENT).replace('"ItemCount": 2', '"ItemCount": 9, "ItemCount": 2')
    (parsed,) = read_line(line.replace('"PointCount"', '"PointCount": 7, "PointCount"'))
    assert parsed == record()


@given(st.integers(min_value=0, max_value=149))
def test_every_truncated_line_is_quarantined(length: int) -> None:
    line = json.dumps(EVENT)
    outcomes = list(read_line(line[: min(length, len(line) - 1)]))
    assert all(isinstance(o, Quarantined) for o in outcomes)
    assert len(outcomes) == (length > 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"_BilledSize": 3},
        {"Unknown": 1},
        {"resourceId": "/OTHER"},
        {"Properties": None},
        {"_ItemId": "b", "_TimeReceived": "2017-05-15T10:00:00Z", "TenantId": "t"},
        {"time": "2017-05-15T09:30:01.12345670Z"},
        {"time": None, "TimeGenerated": EVENT["time"], "SourceSystem": "Azure"},
        {"Measurements": '{"PointCount": 1.5}', "Properties": None},
    ],
)
def test_copies_of_a_record_have_the_same_key(changes: dict[str, Any]) -> None:
    assert record(**changes).key == record().key


@pytest.mark.parametrize(
    "changes",
    [
        {"time": "2017-05-15T09:30:01.1234568Z"},
        {"Name": "Other"},
        {"OperationId": "op2"},
        {"Measurements": {"PointCount": 1.6}},
        {"Properties": {"tenant": "t3"}},
        *({name: "other"} for name in KEY_COLUMNS if name not in {"Type", *EVENT}),
    ],
)
def test_different_records_have_different_keys(changes: dict[str, Any]) -> None:
    assert record(**changes).key != record().key


OTEL, CLASSIC = "py3.11:otel1.25.0:ext1.0", "aspnet5c:2.20.0"


@pytest.mark.parametrize(
    ("item_count", "rate", "sdk", "expected"),
    [
        (4, None, CLASSIC, Weight(4)),
        (4, 25, CLASSIC, Weight(4, exact=True)),
        (3, 30, CLASSIC, Weight(100 / 30, exact=True)),
        (2, 60, CLASSIC, Weight(100 / 60, exact=True)),
        (1, 100, OTEL, Weight(1, exact=True)),
        (1, 12.5, OTEL, Weight(8, exact=True)),
        (None, 12.5, OTEL, Weight(8, exact=True)),
        (None, None, CLASSIC, Weight(1)),
        (None, None, OTEL, Weight(1, trusted=False)),
        (1, None, OTEL, Weight(1, trusted=False)),
        (5, None, OTEL, Weight(5)),
        (1, None, CLASSIC, Weight(1)),
        (1, None, "py3.9.18:oc0.11.3:ext1.1.13", Weight(1, trusted=False)),
        (1, None, "lf_py3.11:OTel1.25:ext1.6", Weight(1, trusted=False)),
        (5, None, "py3.9.18:oc0.11.3:ext1.1.13", Weight(5)),
        (1, None, "", Weight(1, trusted=False)),  # the collector writes no version
        (1, None, "docker:octo1", Weight(1)),
        (8, 50, CLASSIC, Weight(8, trusted=False)),
        (3, 10, CLASSIC, Weight(10, trusted=False)),
        (5000, None, CLASSIC, Weight(5000)),
        (5000, 0.02, OTEL, Weight(5000, exact=True)),
    ],
)
def test_the_weight_follows_from_item_count_sampling_rate_and_sdk(
    item_count: float | None,
    rate: float | None,
    sdk: str,
    expected: Weight,
) -> None:
    weight = weigh(item_count, rate, sdk)
    assert weight.value == pytest.approx(expected.value)
    assert weight[1:] == expected[1:]


@pytest.mark.parametrize("rate", ["0", "-5", "101", "nan", "half", None])
def test_an_invalid_sample_rate_is_ignored(rate: str | None) -> None:
    weight = record(Properties={"microsoft.sample_rate": rate}).weight
    assert weight == Weight(2)
