"""Reads queries in the parts of PromQL and LogQL that the Grafana dashboard uses.

The reader refuses every function that it does not know, and collects the metrics and labels that a
query expects, so that a test can compare them with what the functions emit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.azure.receiver import Point

FUNCTIONS = {"clamp_min", "histogram_quantile", "label_values", "max", "rate", "sum"}
WORDS = {"by", "offset", "or"}
OWN_LABELS = {"job", "instance"}
"""Prometheus makes these labels of the name of the service and of the process."""
STRING = r'"(?:[^"\\]|\\.)*"'
SELECTOR = re.compile(rf"([a-zA-Z_]\w*)\s*\{{((?:{STRING}|[^\"}}])*)\}}")
MATCHER = re.compile(rf"(\w+)\s*(=~|!~|!=|=)\s*({STRING})")
GROUP = re.compile(r"\bby\s*\(([^)]*)\)")
VALUES = re.compile(r"label_values\((.+),\s*(\w+)\)")
RANGE = re.compile(r"\[[^\]]*\]|\$__interval")
NAME = re.compile(r"[a-zA-Z_]\w*")
PIPELINE = re.compile(rf"\{{(?P<stream>[^}}]*)\}}(?P<rest>(?:\s*\|\s*\w+\s*(?:=~|=)\s*{STRING})*)")
PER_UNIT = {"s": "second", "m": "minute", "h": "hour", "d": "day"}
UNITS = {"s": "seconds", "ms": "milliseconds", "By": "bytes", "%": "percent"}


class BadQuery(Exception):
    """The query has a name or a form that the reader does not know."""


@dataclass
class Expected:
    """What a query expects of the telemetry."""

    series: set[str] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)
    """The labels by which the result is grouped, or from which a variable takes its values."""
    matchers: set[tuple[str, str, str]] = field(default_factory=set)
    """Label, operator and value."""


def read(query: str) -> Expected:
    """What a PromQL query or the query of a variable expects. Raises BadQuery."""
    expected = Expected()
    if variable := VALUES.fullmatch(query.strip()):
        query, label = variable[1], variable[2]
        expected.labels.add(label)
        query = query if "{" in query else query + "{}"
    for name, matchers in SELECTOR.findall(query):
        expected.series.add(name)
        expected.matchers |= set(_matchers(matchers))
    rest = SELECTOR.sub(" ", query)
    for labels in GROUP.findall(rest):
        expected.labels |= {label.strip() for label in labels.split(",")}
    rest = RANGE.sub(" ", GROUP.sub(" by ", rest))
    for name in NAME.findall(rest):
        if name not in FUNCTIONS | WORDS:
            raise BadQuery(f"unknown function, or a metric without braces: {name}")
    if not expected.series:
        raise BadQuery("no metric")
    return expected


def read_logs(query: str) -> Expected:
    """What a LogQL query expects. Raises BadQuery."""
    found = PIPELINE.fullmatch(query.strip())
    if found is None:
        raise BadQuery('the form must be {label=~"…"} | attribute="…"')
    return Expected(matchers={*_matchers(found["stream"]), *_matchers(found["rest"])})


def _matchers(text: str) -> Iterator[tuple[str, str, str]]:
    for label, operator, value in MATCHER.findall(text):
        yield label, operator, value[1:-1]
    if left := MATCHER.sub(" ", text).replace(",", " ").replace("|", " ").strip():
        raise BadQuery(f"cannot read the matchers: {left}")


def matches(operator: str, value: str, emitted: str) -> bool:
    """Whether an emitted value passes a matcher."""
    if operator in ("=", "!="):
        return (value == emitted) == (operator == "=")
    return bool(re.fullmatch(value, emitted)) == (operator == "=~")


# --- the names that Prometheus gives ----------------------------------------------------------


def series_of(points: Iterable[Point]) -> Mapping[str, list[Point]]:
    """The points by the names of their series in Prometheus, by its default translation of OTLP."""
    series: dict[str, list[Point]] = {}
    for point in points:
        name = translated(point.name, point.unit, point.kind)
        endings = ("_bucket", "_count", "_sum") if point.kind == "histogram" else ("",)
        for ending in endings:
            series.setdefault(name + ending, []).append(point)
    return series


def translated(name: str, unit: str, kind: str) -> str:
    """Characters that Prometheus does not allow become underscores, and the unit is appended."""
    words = re.split(r"\W+", name)
    main, _, per = unit.partition("/")
    if main in UNITS and UNITS[main] not in words:
        words.append(UNITS[main])
    if per:
        words.append(f"per_{PER_UNIT.get(per, per)}")
    if kind == "sum":
        words.append("total")
    if kind == "gauge" and unit == "1":
        words.append("ratio")
    return "_".join(words)
