"""Reads a file of exported metrics as a table of texts: CSV, the tables of `az`, and JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BYTES_MAX = 200_000_000
"""More than two years of rows a minute in the most verbose form, the JSON of `az`."""

AZ_JSON = (
    "az monitor metrics list --resource ID --metric IncomingMessages --aggregation Total "
    "--interval PT1M --start-time TIME --end-time TIME --output json"
)
AZURE = "the JSON of Azure Monitor"
COUNTER = re.compile(r"_(total|count|sum|bucket)")
DASHES = re.compile(r"\s*-{2,}(\s+-{2,})*\s*")
MAGIC = (
    (b"PK\x03\x04", "an Excel workbook or another ZIP file", "Save the sheet as CSV UTF-8"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook", "Save the sheet as CSV UTF-8"),
    (b"\x1f\x8b", "compressed", "Unpack it"),
    (b"BZh", "compressed", "Unpack it"),
    (b"<", "a page of HTML or XML", "Export CSV or JSON"),
)
Record = Mapping[str, Any]


class Refused(Exception):
    """The arguments of a TraceError except the file: place, problem and fix."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts, the header among them, each with its number: a line or a row of the file."""

    form: str
    rows: Sequence[tuple[int, list[str]]]
    place: str = "line"
    rates_possible: bool = False
    comma_decimal: bool = False


def read_table(path: Path) -> Table:
    """All rows of the file, the header among them. Raises `Refused`."""
    text = _text(path)
    return _json(text) if text.lstrip()[:1] in ("{", "[") else _lines(text)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise Refused(None, f"cannot be read ({reason})", "Check the path") from None
    if len(data) > BYTES_MAX:
        raise Refused(None, f"larger than {BYTES_MAX // 1_000_000} MB", "Export a shorter time")
    for magic, what, fix in MAGIC:
        if data.lstrip().startswith(magic):
            raise Refused(None, f"the file is {what}", fix)
    try:
        return data.decode(_encoding(data))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        value = error.object[error.start : error.end]
        what = f"{value!r} is not {error.encoding.upper()} text"
        raise Refused(f"line {line}", what, "Save the file as CSV in UTF-8") from None


def _encoding(data: bytes) -> str:
    """UTF-16 is what PowerShell 5.1 writes. Without a byte order mark, it has zero bytes."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    return {b"\0": "utf-16-le"}.get(data[1:2]) or {b"\0": "utf-16-be"}.get(data[:1], "utf-8-sig")


def _lines(text: str) -> Table:
    first, _, rest = text.lstrip().partition("\n")
    if DASHES.fullmatch(rest.partition("\n")[0]):
        return Table("a table of az", list(_fixed_width(text)))
    chosen = re.fullmatch(r'"?sep=(.)"?\s*', first)
    if chosen:  # its line stays, so that the lines keep their numbers
        start = text.index(first)
        text = text[:start] + "\n" + rest
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    middle = re.sub(r'"[^"]*"', "", lines[len(lines) // 2])
    delimiter = chosen[1] if chosen else next((d for d in "\t;" if d in middle), ",")
    rows = list(_delimited(text, delimiter))
    form = "Grafana CSV" if chosen else _form(rows[0][1] if rows else [], delimiter)
    rates = form == "Grafana CSV"
    return Table(form, rows, rates_possible=rates, comma_decimal=delimiter != ",")


def _form(header: Sequence[str], delimiter: str) -> str:
    names = [name.casefold() for name in header]
    if any(re.fullmatch(r".*\((sum|avg|min|max|count)\)", name) for name in names):
        return "CSV of the Azure portal"
    is_wide = header[:1] == ["Time"] and names[1:2] != ["arrivals"]
    if is_wide or names == ["series", "time", "value"]:
        return "Grafana CSV"
    if any(name.startswith("timegenerated") for name in names):
        return "Log Analytics CSV"
    if names[:1] in (["full label"], ["label"]):
        return "CloudWatch CSV"
    return {"\t": "TSV", ";": "CSV with semicolons"}.get(delimiter, "CSV")


def _delimited(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each row that is not blank, with the number of the line on which it ends."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                yield reader.line_num, [field.strip() for field in fields]
    except csv.Error as error:
        what = f"not a CSV row ({error})"
        raise Refused(f"line {reader.line_num}", what, "Save the file as plain CSV") from None


def _fixed_width(text: str) -> Iterator[tuple[int, list[str]]]:
    spans: list[tuple[int, int]] = []
    lines = text.splitlines()
    for line in lines:
        if DASHES.fullmatch(line):
            starts = [found.start() for found in re.finditer(r"-+", line)]
            spans = list(zip(starts, [*starts[1:], 100_000], strict=True))
            break
    for number, line in enumerate(lines, 1):
        if line.strip() and not DASHES.fullmatch(line):
            yield number, [line[start:end].strip() for start, end in spans]


# --- JSON -------------------------------------------------------------------------------------


def _json(text: str) -> Table:
    try:
        data = _parsed(text)
    except json.JSONDecodeError as error:
        what = f"not JSON ({error.msg})"
        raise Refused(f"line {error.lineno}", what, "Export the file again") from None
    except (ValueError, RecursionError) as error:
        raise Refused(None, f"not JSON ({error})", "Export the file again") from None
    form, records = _records(data)
    return Table(form, _rows(list(records)), "row", rates_possible=form.startswith("Prometheus"))


def _parsed(text: str) -> Any:
    """One value, or the values of lines. Line breaks before a line keep its number in errors."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise
        lines = enumerate(text.splitlines())
        return [json.loads("\n" * n + line) for n, line in lines if line.strip()]


def _rows(records: Sequence[Any]) -> list[tuple[int, list[str]]]:
    """A header of all names, and the records as rows. Lists have no names."""
    if records and all(isinstance(record, list) for record in records):
        filled = [(n, record) for n, record in enumerate(records, 1) if record]
        return [(n, [_cell(value) for value in record]) for n, record in filled]
    names: dict[str, None] = {}
    for record in records:
        names.update(dict.fromkeys(record if isinstance(record, dict) else ()))
    rows = [[_cell(record.get(name)) for name in names] for record in _dicts(records)]
    return [(0, list(names)), *enumerate(rows, 1)] if names else []


def _records(data: Any) -> tuple[str, Iterable[Any]]:
    """The name of the form, and one record for each time and series."""
    if isinstance(data, dict):
        return _records_of_answer(data)
    while _is_nested(data):
        data = data[0]
    series = list(_dicts(data))
    if any("timeseries" in one for one in series):
        return AZURE, _azure(data)
    if any("metadatavalues" in one for one in series):
        return AZURE, _azure([{"timeseries": data}])
    if any("metric" in one and "values" in one for one in series):
        return "Prometheus JSON", _prometheus(data)
    return "JSON", data


def _is_nested(data: Sequence[Any]) -> bool:
    """Whether a list holds one list of records, as a JMESPath query without `[]` leaves it."""
    inner = data[0] if len(data) == 1 and isinstance(data[0], list) else ()
    return any(isinstance(one, dict | list) for one in inner)


def _records_of_answer(data: Record) -> tuple[str, Iterable[Any]]:
    if "error" in data or "errorType" in data:
        what = f"the file holds the error {json.dumps(data)[:200]}"
        raise Refused(None, what, "Repeat the export")
    for key, form, records in ANSWERS:
        if key in data:
            return form, records(data)
    if isinstance(data.get("data"), dict):
        return _records_of_answer(data["data"])
    inner = data.get("data")
    return _records(inner if isinstance(inner, list) else [data])


def _azure(metrics: Any) -> Iterator[Record]:
    """`az monitor metrics list`, the REST API, and parts of them chosen with `--query`."""
    for metric in _dicts(metrics):
        name = metric.get("name")
        for series in _dicts(metric.get("timeseries")):
            labels = {
                _name(one.get("name")): one.get("value")
                for one in _dicts(series.get("metadatavalues"))
            }
            for point in _dicts(series.get("data")):
                when = {key: point[key] for key in point if key.casefold() == "timestamp"}
                unit = {"unit": metric["unit"]} if "unit" in metric else {}
                yield {**when, "metric": _name(name), **unit, **labels, **point}


def _batch(data: Record) -> Iterator[Record]:
    """The batch API: one answer for each resource."""
    for answer in _dicts(data["values"]):
        for record in _azure(answer.get("value")):
            yield {"resource": answer.get("resourceid"), **record}


def _name(name: Any) -> str:
    return _cell(name.get("value") if isinstance(name, dict) else name)


def _prometheus(result: Any) -> Iterator[Record]:
    for series in _dicts(result):
        metric = series.get("metric")
        labels = {k: _cell(v) for k, v in metric.items()} if isinstance(metric, dict) else {}
        name = labels.get("__name__", "")
        if COUNTER.search(name):
            what = f"{name} is a running total"
            raise Refused(None, what, f"Query sum(increase({name}[1m])) with a step of 60 s")
        if "values" not in series:
            raise Refused(None, "an instant query of Prometheus", "Query a range: query_range")
        label = ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))
        for pair in series["values"] if isinstance(series["values"], list) else ():
            if isinstance(pair, list) and len(pair) == 2:
                yield {"time": pair[0], "series": label, "value": pair[1]}


def _cloudwatch(data: Record) -> Iterator[Record]:
    if data.get("NextToken"):
        raise Refused(None, "the answer is one page of several", "Read all pages (NextToken)")
    for series in _dicts(data["MetricDataResults"]):
        times, values = series.get("Timestamps"), series.get("Values")
        if isinstance(times, list) and isinstance(values, list):
            for when, value in zip(times, values, strict=False):
                label = series.get("Label") or series.get("Id")
                yield {"time": when, "Label": label, "value": value}


def _datapoints(data: Record) -> Iterator[Record]:
    return ({"Label": data.get("Label"), **point} for point in _dicts(data["Datapoints"]))


def _log_analytics(data: Record) -> Iterator[Record]:
    for table in list(_dicts(data["tables"]))[:1]:
        names = [_cell(column.get("name")) for column in _dicts(table.get("columns"))]
        rows = table.get("rows")
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, list):
                yield dict(zip(names, row, strict=False))


ANSWERS: tuple[tuple[str, str, Callable[[Record], Iterable[Any]]], ...] = (
    ("MetricDataResults", "CloudWatch JSON", _cloudwatch),
    ("Datapoints", "CloudWatch JSON", _datapoints),
    ("tables", "Log Analytics JSON", _log_analytics),
    ("resultType", "Prometheus JSON", lambda data: _prometheus(data.get("result"))),
    ("metric", "Prometheus JSON", lambda data: _prometheus([data])),
    ("values", AZURE, _batch),
    ("value", AZURE, lambda data: _azure(data["value"])),
)


def _dicts(values: Any) -> Iterator[dict[str, Any]]:
    return (one for one in (values if isinstance(values, list) else ()) if isinstance(one, dict))


def _cell(value: Any) -> str:
    return "" if value is None or isinstance(value, dict | list) else str(value).strip()
