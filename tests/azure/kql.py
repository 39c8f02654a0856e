"""Reads queries in the part of the Kusto language that the workbook and the alerts use.

The reader refuses every name that it does not know: a table, a column, an operator, a function. It
also collects what a query expects of the telemetry, so that a test can compare that with what the
functions emit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""\s*(?:(?P<text>"[^"]*"|'[^']*')|(?P<number>\d+(?:\.\d+)?[smhd]?)|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<sign>==|!=|>=|<=|[-+*/<>=(),.|]))"""
)
COMPONENT = {"timestamp", "customDimensions", "cloud_RoleName"}
COLUMNS = {
    "customMetrics": COMPONENT
    | {"name", "value", "valueCount", "valueSum", "valueMin", "valueMax"},
    "traces": COMPONENT | {"message", "severityLevel"},
    "requests": COMPONENT | {"name", "success", "duration", "resultCode"},
    "AppTraces": {"TimeGenerated", "Message", "SeverityLevel"},
    "AppRequests": {"TimeGenerated", "Name", "Success", "DurationMs", "ResultCode"},
}
"""The columns of each table, by the documentation of Application Insights and Log Analytics."""
METRIC_NAME = {"customMetrics": "name"}
LINE = {"traces": "message", "AppTraces": "Message"}
FUNCTION_NAME = {"requests": "name", "AppRequests": "Name"}
AGGREGATES = {"arg_max", "count", "countif", "max", "maxif", "percentile", "sum"}
FUNCTIONS = AGGREGATES | {"bin", "case", "iff", "strcat", "tostring"}
WORDS = {"and", "or", "in", "startswith", "contains", "true", "false", "asc", "desc", "by", "with"}
CHARTS = {"timechart", "barchart"}


class BadQuery(Exception):
    """The query has a name or a form that the reader does not know."""


@dataclass
class Expected:
    """What a query expects of the telemetry."""

    table: str = ""
    metrics: set[str] = field(default_factory=set)
    dimensions: set[str] = field(default_factory=set)
    values: set[tuple[str, str]] = field(default_factory=set)
    """Values that a dimension is compared with."""
    functions: set[str] = field(default_factory=set)
    starts: set[str] = field(default_factory=set)
    """The beginnings of the log lines that are searched for."""
    parts: set[str] = field(default_factory=set)
    """Texts that a log line contains."""


@dataclass(frozen=True)
class Token:
    kind: str
    text: str

    @property
    def value(self) -> str:
        """The text without quotes."""
        return self.text[1:-1] if self.kind == "text" else self.text


def read(query: str) -> Expected:
    """What the query expects. Raises BadQuery."""
    first, *stages = _stages(_tokens(query))
    if len(first) != 1 or first[0].text not in COLUMNS:
        raise BadQuery(f"unknown table: {' '.join(token.text for token in first)}")
    reader = _Reader(Expected(first[0].text), set(COLUMNS[first[0].text]))
    for stage in stages:
        reader.stage(stage)
    return reader.expected


def _tokens(query: str) -> Iterator[Token]:
    at, text = 0, query.strip()
    while at < len(text):
        found = TOKEN.match(text, at)
        if found is None:
            raise BadQuery(f"cannot read: {text[at : at + 30]}")
        kind = str(found.lastgroup)
        yield Token(kind, found[kind])
        at = found.end()


def _stages(tokens: Iterator[Token]) -> list[list[Token]]:
    stages: list[list[Token]] = [[]]
    for token in tokens:
        if token.text == "|":
            stages.append([])
        else:
            stages[-1].append(token)
    return stages


class _Reader:
    """Reads the stages of a query one after the other, with the columns that are in scope."""

    def __init__(self, expected: Expected, columns: set[str]) -> None:
        self.expected = expected
        self.columns = columns
        self.dimension_of: dict[str, str] = {}
        """The dimension that a column holds."""

    def stage(self, tokens: Sequence[Token]) -> None:
        operator, rest = tokens[0].text if tokens else "", tokens[1:]
        read = getattr(self, f"_{operator}", None)
        if read is None:
            raise BadQuery(f"unknown operator: {operator}")
        read(rest)

    def _where(self, tokens: Sequence[Token]) -> None:
        self._expression(tokens)
        for at, token in enumerate(tokens[:-2]):
            comparison, values = tokens[at + 1].text, _compared(tokens[at + 2 :])
            if token.kind == "name" and comparison in ("==", "in", "startswith", "contains"):
                self._compare(token.text, comparison, values)

    def _compare(self, column: str, comparison: str, values: set[str]) -> None:
        table, expected = self.expected.table, self.expected
        if METRIC_NAME.get(table) == column:
            expected.metrics |= values
        elif FUNCTION_NAME.get(table) == column:
            expected.functions |= values
        elif LINE.get(table) == column:
            (expected.starts if comparison == "startswith" else expected.parts).update(values)
        elif column in self.dimension_of:
            expected.values |= {(self.dimension_of[column], value) for value in values}

    def _extend(self, tokens: Sequence[Token]) -> None:
        self.columns |= self._named(tokens)

    def _project(self, tokens: Sequence[Token]) -> None:
        self.columns = self._named(tokens)

    _distinct = _project

    def _summarize(self, tokens: Sequence[Token]) -> None:
        at = next((n for n, token in enumerate(tokens) if token.text == "by"), len(tokens))
        self.columns = self._named(tokens[:at]) | self._named(tokens[at + 1 :])

    def _parse(self, tokens: Sequence[Token]) -> None:
        column, word, *pattern = tokens
        self._expression([column])
        if word.text != "with" or any(token.kind not in ("text", "name") for token in pattern):
            raise BadQuery('parse must have the form: column with "text" name …')
        self.columns |= {token.text for token in pattern if token.kind == "name"}

    def _order(self, tokens: Sequence[Token]) -> None:
        self._expression(tokens)

    def _take(self, tokens: Sequence[Token]) -> None:
        if [token.kind for token in tokens] != ["number"]:
            raise BadQuery("take needs one number")

    def _render(self, tokens: Sequence[Token]) -> None:
        if [token.text for token in tokens if token.text in CHARTS] != [t.text for t in tokens]:
            raise BadQuery("unknown chart")

    def _named(self, tokens: Sequence[Token]) -> set[str]:
        """The columns that a list of expressions defines, such as ``total = sum(value), name``."""
        names: set[str] = set()
        for part in _split(tokens):
            alias, expression = None, part
            if len(part) > 1 and part[1].text == "=":
                alias, expression = part[0].text, part[2:]
            self._expression(expression)
            dimension = _dimension(expression)
            if alias and dimension:
                self.dimension_of[alias] = dimension
            inner = [token.text for token in expression if token.text in self.columns]
            names |= {alias} if alias else set(inner)
        return names

    def _expression(self, tokens: Sequence[Token]) -> None:
        """Check every name of an expression."""
        texts = [token.text for token in tokens]
        for at, token in enumerate(tokens):
            after = texts[at + 1] if at + 1 < len(texts) else ""
            if token.kind != "name" or (token.text in WORDS and token.text not in self.columns):
                continue
            if at and texts[at - 1] == ".":
                if at < 2 or texts[at - 2] != "customDimensions":
                    raise BadQuery(f"{token.text} is not a dimension of customDimensions")
                self.expected.dimensions.add(token.text)
            elif after == "(" and token.text not in FUNCTIONS:
                raise BadQuery(f"unknown function: {token.text}")
            elif after != "(" and token.text not in self.columns:
                raise BadQuery(f"unknown column: {token.text}")


def _compared(tokens: Sequence[Token]) -> set[str]:
    """The values after a comparison: one, or several in parentheses."""
    if tokens[0].text != "(":
        return {tokens[0].value} if tokens[0].kind == "text" else set()
    until = next((n for n, token in enumerate(tokens) if token.text == ")"), len(tokens))
    return {token.value for token in tokens[:until] if token.kind == "text"}


def _dimension(tokens: Sequence[Token]) -> str | None:
    """The dimension, if the expression is ``tostring(customDimensions.NAME)``."""
    texts = [token.text for token in tokens]
    plain = len(texts) == 6 and texts[:4] == ["tostring", "(", "customDimensions", "."]
    return texts[4] if plain else None


def _split(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """The parts between commas that are not in parentheses."""
    part: list[Token] = []
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.text == "," and not depth:
            yield part
            part = []
        else:
            part.append(token)
    if part:
        yield part
