"""A line that the decoder accepts means the same to the reference, ``shared.sampling``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.sampling.diagnostic_export import DELIVERY_COLUMNS, KEY_COLUMNS
from shared.sampling.model import NOTICES
from shared.sampling.series import Shape
from spark_jobs.read import lines
from spark_jobs.read.blocks import joined
from spark_jobs.read.files import SourceFile
from spark_jobs.read.lines import batches_of
from tests.spark_jobs.telemetry import event, total_of

FILE = SourceFile("y=2017/m=05/d=15/h=09/m=00/PT1H.json", 0)
SHAPE = Shape("Amount", ("tenant", "AppRoleName"), "Australia/Adelaide")
GOOD = {"time": "2017-05-15T09:30:00.0Z", "Type": "AppEvents", "Name": "A", "ItemCount": 1}
BROKEN = ('{"a":1,}', '{"a":[1, ]}', '{"a": -inf}', "[1,nan]", '{"a":1,\t}', "01", "1.", "'a'")
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["AppEvents", "AppTraces", "AppMetrics", "AppExceptions", "3", "30", {}, []]),
    st.dictionaries(
        st.sampled_from(
            ["Amount", "tenant", "microsoft.sample_rate", "{OriginalFormat}", "_MS.MetricId"]
        ),
        st.one_of(st.none(), st.text(max_size=3), st.integers(-9, 10**17), st.floats()),
        max_size=3,
    ),
)
COLUMNS = [*lines.Line.__struct_fields__, "Unread", "IKey"]
STAMPS = st.one_of(
    st.from_regex(lines.STAMP, fullmatch=True, alphabet=st.characters(max_codepoint=127)),
    st.sampled_from(
        [
            "2017-05-15T09:30:60.1Z",
            "2017-05-15T09:30:59.Z",
            "2017-05-15T09:30:59Z",
            "2017-05-15T09:30:59.12345678Z",
            "2017-05-15T23:59:59.9999999Z",
            "2017-05-15T09:30:59.1/3Z",
            "2017-05-15 09:30:59.123Z",
            "2017-05-15T09:30:59.123z",
            "2017-05-15T09:30:59.1Z\n",
            "2017-02-29T09:30:59.1Z",
            "1899-05-15T09:30:59.1Z",
            "2017-05-15T09:30:59.1+02:00",
            "\uff12017-05-15T09:30:59.1Z",
            "20é7-05-15T09:30:59.1Z",
            "20170515T093059",
            "",
        ]
    ),
    st.text(max_size=32),
)
Records = list[tuple[Any, ...]]


def read(some: Sequence[bytes | str], shape: Shape = SHAPE) -> list[pa.RecordBatch]:
    text = b"\n".join(line if isinstance(line, bytes) else line.encode() for line in some)
    return list(batches_of([(FILE, text)], shape))


def records(batches: Sequence[pa.RecordBatch], keys: bool = False) -> Records:
    """Returns sorted records with date and series; NaN is a text, so that it equals itself."""
    found = []
    for row in (row for batch in batches for row in batch.to_pylist() if row["reason"] is None):
        (series, senders), block = joined([(row["names"], row["block"])])
        hidden = () if keys else ("key", "unit")
        names = [name for name in block.dtype.names or () if name not in hidden]
        for record in block:
            values = {name: record[name].item() for name in names}
            values |= {"x": repr(values["x"]), "series": series[record["series"]]}
            values["sender"] = senders[record["sender"]]
            found.append((row["event_date"], *values.values()))
    return sorted(found)


def reasons(batches: Sequence[pa.RecordBatch]) -> list[str]:
    """Returns the reasons why lines were quarantined."""
    found = (reason for batch in batches for reason in batch.column("reason").to_pylist())
    return sorted(reason for reason in found if reason and reason not in NOTICES)


def notices(batches: Sequence[pa.RecordBatch]) -> list[tuple[str, str]]:
    rows = (row for batch in batches for row in batch.to_pylist())
    return [(row["reason"], row["field"]) for row in rows if row["reason"] in NOTICES]


def by_reference(some: Sequence[bytes | str]) -> list[pa.RecordBatch]:
    def none_is_plain(text: bytes) -> list[tuple[bytes, None]]:
        return [(raw, None) for raw in text.split(b"\n")]

    with (
        mock.patch.object(lines, "_decoded", none_is_plain),
        mock.patch.object(lines, "_plain_content", return_value=b""),
    ):
        return read(some)


@given(st.dictionaries(st.sampled_from(COLUMNS), VALUES, max_size=4), st.booleans())
def test_the_reference_reads_a_line_that_the_decoder_accepts_alike(
    changes: dict[str, Any], ascii: bool
) -> None:
    line = json.dumps({**GOOD, **changes}, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    found, wanted = read([line]), by_reference([line])
    assert records(found) == records(wanted)
    assert (reasons(found), notices(found)) == (reasons(wanted), notices(wanted))


@given(st.lists(STAMPS, max_size=8))
def test_the_reference_reads_times_alike(stamps: list[str]) -> None:
    some = [json.dumps({**GOOD, "time": stamp}) for stamp in stamps]
    found, wanted = read(some), by_reference(some)
    assert records(found) == records(wanted)
    assert reasons(found) == reasons(wanted)


@given(st.dictionaries(st.sampled_from(COLUMNS), VALUES, max_size=4))
def test_a_record_has_the_same_key_on_a_line_of_its_own_and_in_a_body(
    changes: dict[str, Any],
) -> None:
    record = {**GOOD, **changes, "records": None}
    plain = json.dumps(record)
    other = {**dict(reversed(record.items())), "_BilledSize": 3}
    some = [plain, f"\ufeff{plain}", json.dumps({"records": [other]}), f" {json.dumps(other)}\r"]
    found = [records(read([line]), keys=True) for line in some]
    assert found == [found[0]] * 4


@pytest.mark.parametrize("line", BROKEN)
@pytest.mark.parametrize("more", ['"more":', '"Properties":'])
def test_a_line_that_only_a_lenient_reader_would_accept_is_quarantined(
    line: str, more: str
) -> None:
    good = json.dumps(GOOD)
    batches = read([good, f"{good[:-1]},{more}{line}}}"])
    assert (len(records(batches)), reasons(batches)) == (1, ["not_json"])


@pytest.mark.parametrize("length", range(3))
def test_a_broken_line_of_any_characters_is_quarantined(length: int) -> None:
    assert reasons(read([f"{{'{'x' * length}{'☃' * 99}}}"])) == ["not_json"]


def test_a_line_with_bad_utf8_in_an_unread_column_is_quarantined() -> None:
    good = json.dumps(GOOD).encode()
    batches = read([good, good[:-1] + b',"Unread":"\xff"}', good[:-1] + ',"Unread":"é"}'.encode()])
    assert (len(records(batches)), reasons(batches)) == (2, ["not_text"])


def test_a_record_that_spans_two_lines_is_quarantined_as_two_lines() -> None:
    first, second = json.dumps(GOOD).split(", ", 1)
    assert reasons(read([first + ",", second])) == ["not_json", "not_json"]


def test_records_that_differ_in_one_property_are_not_copies() -> None:
    """They are read together, singly (because a property is not a text), or in a body."""
    line = json.dumps({**GOOD, "Properties": "?"}).replace('"?"', '{"tenant": "t1"%s}')
    entries = ["", ', "b": "1"', ', "b": "2"', ', "b": 2', ', "c": {"d": [1, 2], "e": 2}']
    written = [line % entry for entry in entries]
    bodies = [f'{{"records": [{one}, {one}]}}' for one in written]
    turned = [line.replace('"tenant": "t1"%s', '"b": "1", "tenant": "t1"')]
    ((sums, _),) = total_of(read([*written, *bodies, *turned]))[0].values()
    assert (sums.records, sums.duplicates) == (5, 11)


@pytest.mark.parametrize("together", [1, 3, 18])
@pytest.mark.parametrize("held_bytes_max", [1, lines.HELD_BYTES_MAX])
def test_records_are_the_same_however_many_lines_are_read_together(
    together: int, held_bytes_max: int
) -> None:
    some = [event(f"2017-05-15T09:30:{n:02d}", OperationId=str(n // 2)) for n in range(9)] * 2
    pieces = [
        (FILE, "\n".join(some[at : at + together]).encode()) for at in range(0, len(some), together)
    ]
    with mock.patch.object(lines, "HELD_BYTES_MAX", held_bytes_max):
        batches = list(batches_of(pieces, SHAPE))
    assert len(records(batches)) == 18
    ((sums, _),) = total_of(batches)[0].values()
    assert (sums.records, sums.duplicates) == (9, 9)


@pytest.mark.parametrize("column", [name for name in KEY_COLUMNS if name not in GOOD])
def test_records_that_differ_in_any_column_of_the_application_are_not_copies(column: str) -> None:
    """They are read together, singly (because a time has an offset), or in a body."""
    some = [{**GOOD, column: {"a": "1"} if column in ("Properties", "Measurements") else value}
            for value in ("a", "b")]  # fmt: skip
    if column in ("Properties", "Measurements", "DurationMs"):
        some = [{**GOOD, column: {"a": n} if column != "DurationMs" else n} for n in (1, 2)]
    written = [json.dumps(record) for record in [GOOD, *some]]
    for form in (written, [f'{{"records": [{line}]}}' for line in written]):
        ((sums, _),) = total_of(read([*form, *written], Shape()))[0].values()
        assert (sums.records, sums.duplicates) == (3, 3)


@pytest.mark.parametrize("column", [*sorted(DELIVERY_COLUMNS), "AddedTomorrow", "_added", "a b"])
def test_copies_may_differ_in_columns_that_were_added_on_delivery(column: str) -> None:
    """A column that is not documented is named once."""
    some = [json.dumps({**GOOD, column: value}) for value in ("a", 2, [3], {"b": 4}, None)]
    some += [json.dumps(GOOD), json.dumps({"records": [{**GOOD, column: 5}]})]
    batches = read([*some, json.dumps({"Type": "AppExceptions", "ProblemId": "p"})])
    ((sums, _),) = total_of(batches)[0].values()
    assert (sums.records, sums.duplicates) == (1, len(some) - 1)
    unknown = [] if column in DELIVERY_COLUMNS else [("unknown_column", column)]
    assert notices(batches) == [("other_table", "AppExceptions"), *unknown]


def test_lines_with_very_many_unknown_columns_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LOOKED_AT", 1_000)
    some = [json.dumps({**GOOD, "Id": str(n), f"new{n}": n}) for n in range(300)]
    batches = read(some)
    ((sums, _),) = total_of(batches)[0].values()
    assert (sums.records, sums.duplicates) == (300, 0)
    assert len(notices(batches)) == lines.COLUMNS_MAX


def test_the_same_event_in_the_exports_of_both_rules_is_counted_once() -> None:
    time = "2017-05-15T09:30:00.120000{}Z"
    common = {"Type": "AppEvents", "Name": "A", "Properties": {"tenant": "t1"}, "ItemCount": 2}
    setting = {"time": time.format(""), "resourceId": "/R", "IKey": "k", **common}
    rule = {**common, "TenantId": "t", "TimeGenerated": time.format("0"), "_ResourceId": "/r"}
    as_text = {**rule, "Properties": '{"tenant": "t1"}', "time": None}
    ((sums, _),) = total_of(read(list(map(json.dumps, [setting, rule, as_text]))))[0].values()
    assert (sums.records, sums.duplicates) == (1, 2)


def test_a_value_that_cannot_be_read_is_told_and_its_record_counts() -> None:
    values: list[Any] = [1, "NaN", None, {"a": 1}, "2"]
    some = [json.dumps({**GOOD, "Id": str(n), "Measurements": {"Amount": v, "Rate": "NaN"}})
            for n, v in enumerate(values)]  # fmt: skip
    batches = read([*some, json.dumps({**GOOD, "Measurements": "{"})])
    ((sums, _),) = total_of(batches)[0].values()
    assert (sums.records, sums.valued, sums.raw_sum, reasons(batches)) == (6, 2, 3, [])
    fields = ["Measurements", "Measurements.Amount", "Measurements.Amount"]
    assert sorted(notices(batches)) == [("bad_value", field) for field in fields]
    assert notices(read(some, Shape("Other"))) == notices(read(some, Shape())) == []


def test_hashes_never_change() -> None:
    """Records in partials of different runs are matched by their hashes."""
    found = lines._hashed(["a1", b"a1", "é"]).tolist()
    assert found == [5117438720084766524, 5117438720084766524, 16908809132758853863]


@pytest.mark.parametrize("path", [FILE.path, "undated.json"])
def test_a_time_that_cannot_be_that_of_its_file_is_quarantined(path: str) -> None:
    """The file is of 2017-05-15. A date of .NET that was not set is the first day of year 1."""
    near = ["2017-04-14T00:00:00.0Z", "2017-05-17T23:59:59.0Z"]
    far = ["2017-04-13T23:59:59.0Z", "2017-05-18T00:00:00.0Z", "2017-05-18T00:00:00"]
    never = ["0001-01-01T00:00:00.0Z", "9999-12-31T23:59:59.0Z", "0001-01-01T00:00:00"]
    some = [json.dumps({**GOOD, "time": time}) for time in [*near, *far, *never]]
    dated = path == FILE.path
    for zone in ("America/New_York", "Australia/Adelaide"):
        for form in (some, [f'{{"records": [{line}]}}' for line in some]):
            piece = SourceFile(path, 0), "\n".join(form).encode()
            batches = list(batches_of([piece], Shape(time_zone=zone)))
            assert len(records(batches)) == (2 if dated else 5)
            fields = [row["field"] for batch in batches for row in batch.to_pylist()]
            assert fields.count("time") == (6 if dated else 3)
