"""What a request may contain: declarations that check requests and describe the API.

Each parameter of an address or a query, and each field of a JSON body, is declared once. The code
reads requests through the declarations, and `python -m local.http_reference` writes docs/http.md
and docs/openapi.json from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from shared.values.text import LINE_PATTERN, line_problem, odd_character, quoted
from shared.web.http import NO_LENGTH, Refused, Request

BODY_BYTES_MAX = 16 * 1024
NUMBER = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?")
WHOLE = re.compile(r"-?[0-9]{1,20}")

OF_THE_HOST = ("code", "clientid")
"""The parameters of a query with which a caller gives the host a key."""

JsonSchema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """A named value of a request. ``default`` is used if it is absent."""

    name: str
    meaning: str
    _: KW_ONLY
    required: bool = False
    default: Any = None

    @property
    def rule(self) -> str:
        """What a value must be."""
        raise NotImplementedError

    @property
    def schema(self) -> JsonSchema:
        """The same as JSON Schema."""
        raise NotImplementedError

    def accepts(self, value: Any) -> bool:
        raise NotImplementedError

    def of_text(self, text: str) -> Any:
        """The value that a text in an address states; None if it states none."""
        return text

    def parsed(self, text: str) -> Any:
        """The value that a text in an address states. Raises Refused."""
        value = self.of_text(text)
        if value is None or not self.accepts(value):
            raise self._refusal(text)
        return value

    def checked(self, value: Any) -> Any:
        """The value itself. Raises Refused if the declaration does not accept it."""
        if not self.accepts(value):
            raise self._refusal(value)
        return value

    def _refusal(self, value: Any) -> Refused:
        return Refused(400, f"{self.name} = {quoted(value)}: must be {self.rule}")


@dataclass(frozen=True, slots=True)
class Number(Field):
    """A number from ``low`` to ``high``."""

    low: float
    high: float

    @property
    def rule(self) -> str:
        return f"a number from {self.low:,g} to {self.high:,g}"

    @property
    def schema(self) -> JsonSchema:
        return {"type": "number", "minimum": self.low, "maximum": self.high}

    def accepts(self, value: Any) -> bool:
        return type(value) in (int, float) and self.low <= value <= self.high

    def of_text(self, text: str) -> float | None:
        return float(text) if NUMBER.fullmatch(text) else None


@dataclass(frozen=True, slots=True)
class Whole(Field):
    """A whole number from ``low`` to ``high``."""

    low: int
    high: int

    @property
    def rule(self) -> str:
        return f"a whole number from {self.low:,} to {self.high:,}"

    @property
    def schema(self) -> JsonSchema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def accepts(self, value: Any) -> bool:
        return type(value) is int and self.low <= value <= self.high

    def of_text(self, text: str) -> int | None:
        return int(text) if WHOLE.fullmatch(text) else None


@dataclass(frozen=True, slots=True)
class Text(Field):
    """One line of text that is not blank, such as ``example``."""

    _: KW_ONLY
    length_max: int = 500
    pattern: str = LINE_PATTERN
    example: str = ""

    @property
    def rule(self) -> str:
        such = f", such as {self.example}" if self.example else ""
        return f"1 to {self.length_max:,} characters in one line{such}"

    @property
    def schema(self) -> JsonSchema:
        bounds = {"minLength": 1, "maxLength": self.length_max}
        return {"type": "string", **bounds, "pattern": self.pattern}

    def accepts(self, value: Any) -> bool:
        return (
            isinstance(value, str)
            and not line_problem(value, self.length_max)
            and re.search(self.pattern, value) is not None
        )

    def _refusal(self, value: Any) -> Refused:
        refused = Field._refusal(self, value)
        odd = odd_character(value) if isinstance(value, str) else ""
        return Refused(refused.status, f"{refused}: {odd}") if odd else refused


@dataclass(frozen=True, slots=True)
class Choice(Field):
    """One of several texts."""

    choices: Sequence[str]

    @property
    def rule(self) -> str:
        return f"one of {', '.join(self.choices)}"

    @property
    def schema(self) -> JsonSchema:
        return {"type": "string", "enum": [str(each) for each in self.choices]}

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str) and value in tuple(self.choices)


@dataclass(frozen=True, slots=True)
class Flag(Field):
    """True or false."""

    @property
    def rule(self) -> str:
        return "true or false"

    @property
    def schema(self) -> JsonSchema:
        return {"type": "boolean"}

    def accepts(self, value: Any) -> bool:
        return isinstance(value, bool)

    def of_text(self, text: str) -> bool | None:
        return {"true": True, "false": False}.get(text)


def in_query(
    request: Request, fields: Sequence[Field], *, others_allowed: bool = False
) -> dict[str, Any]:
    """The value of each parameter of the query. Raises Refused.

    An unknown parameter is refused, because a misspelled filter must not select everything.
    """
    given = {name: text for name, text in request.query.items() if name.lower() not in OF_THE_HOST}
    if not others_allowed:
        _refuse_unknown("parameter", given, fields)
    return {
        field.name: field.parsed(given[field.name]) if field.name in given else field.default
        for field in fields
    }


def in_path(request: Request, field: Field) -> Any:
    """The value of a parameter of the address. Raises Refused."""
    return field.parsed(request.route.get(field.name, ""))


def in_body(request: Request, fields: Sequence[Field]) -> dict[str, Any]:
    """The value of each field of the JSON object in the body. Raises Refused.

    The content type must be application/json, which prevents cross-site request forgery: before a
    page of another site can send this type, the browser sends a preflight request, which the app
    does not allow.
    """
    document = _object(request)
    _refuse_unknown("field", document, fields)
    return {field.name: _value(document, field) for field in fields}


def _refuse_unknown(what: str, given: Mapping[str, Any], fields: Sequence[Field]) -> None:
    if unknown := sorted(set(given) - {field.name for field in fields}):
        known = ", ".join(field.name for field in fields)
        raise Refused(400, f"unknown {what} {unknown[0][:50]!r}; known: {known}")


def _value(document: Mapping[str, Any], field: Field) -> Any:
    if field.name in document:
        return field.checked(document[field.name])
    if field.required:
        raise Refused(400, f"{field.name}: is missing; must be {field.rule}")
    return field.default


def _object(request: Request) -> dict[str, Any]:
    try:
        document = json.loads(json_body(request))
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise Refused(400, "the body must be a JSON object")
    return document


def json_body(request: Request) -> bytes:
    """The body of a request with JSON, not parsed. Raises Refused."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise Refused(415, "content-type: must be application/json")
    if request.lost_its_body:
        raise Refused(411, NO_LENGTH)
    if len(request.body) > BODY_BYTES_MAX:
        raise Refused(413, f"the body must have at most {BODY_BYTES_MAX} bytes")
    return request.body
