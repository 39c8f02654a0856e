"""The models that check addresses, queries and JSON bodies, and describe the API."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
    field_validator,
)

from shared.values.text import LINE_PATTERN, odd_character, quoted, utc_by_default
from shared.web.http import NO_LENGTH, Refused, Request

BODY_BYTES_MAX = 16 * 1024
LENGTH_MAX = 500
UNKNOWN_MAX = 5
"""The most unknown names that a refusal repeats."""
OF_THE_HOST = ("code", "clientid")
"""The parameters of a query with which a caller gives the host a key."""

JsonSchema = dict[str, Any]
KEYWORDS = (
    *("type", "format", "enum", "minLength", "maxLength", "pattern", "minimum", "maximum"),
    *("default", "examples", "description"),
)
Line = Annotated[str, StringConstraints(min_length=1, max_length=LENGTH_MAX, pattern=LINE_PATTERN)]
"""One line of text that is not blank."""


def described(pattern: str, length_max: int) -> WithJsonSchema:
    """Describes a text that its operation checks itself."""
    bounds = {"minLength": 1, "maxLength": length_max, "pattern": pattern}
    return WithJsonSchema({"type": "string", **bounds})


Name = Annotated[str, described(LINE_PATTERN, LENGTH_MAX)]
"""A name in an address. Any text is read: who asks for an unknown name is told the known ones."""

FIRST_TIME, LAST_TIME = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
"""Earlier and later times count as these, because some of them have no equivalent in UTC."""


def _time(text: Any) -> datetime:
    return min(max(utc_by_default(str(text).upper()), FIRST_TIME), LAST_TIME)


Time = Annotated[
    datetime, BeforeValidator(_time), WithJsonSchema({"type": "string", "format": "date-time"})
]
"""An ISO 8601 time. One without an offset is in UTC."""


class Given(BaseModel):
    """Unknown parameters and fields are refused, because a misspelled filter must not select
    everything. A field that may be absent is never null.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _present(cls, value: Any) -> Any:
        if value is None:
            raise ValueError
        return value


G = TypeVar("G", bound=Given)


def schemas(model: type[Given]) -> dict[str, JsonSchema]:
    """The JSON Schema of each field."""
    whole = model.model_json_schema()
    return {
        name: _plain(each, whole.get("$defs", {})) for name, each in whole["properties"].items()
    }


def _plain(field: JsonSchema, types: Mapping[str, JsonSchema]) -> JsonSchema:
    kind, *_ = field.get("anyOf", [{}])
    known = {**kind, **field}
    if "$ref" in known:
        known = {**types[known["$ref"].rpartition("/")[2]], **known}
    return {key: known[key] for key in KEYWORDS if known.get(key) is not None}


def rule(schema: JsonSchema) -> str:
    """What a value must be, in words."""
    match schema:
        case {"enum": choices}:
            return f"one of {', '.join(choices)}"
        case {"format": "date-time"}:
            return "an ISO 8601 time, such as 2026-03-01T12:00:00Z"
        case {"type": "boolean"}:
            return "true or false"
        case {"type": "integer", "minimum": low, "maximum": high}:
            return f"a whole number from {low:,} to {high:,}"
        case {"type": "number", "minimum": low, "maximum": high}:
            return f"a number from {low:,g} to {high:,g}"
    *some, last = schema.get("examples", [""])
    such = f", such as {', '.join(some)} or {last}" if last else ""
    return f"1 to {schema['maxLength']:,} characters in one line{such}"


def in_path(request: Request, model: type[G]) -> G:
    """The parameters of the address. Raises Refused."""
    route = {name: text for name, text in request.route.items() if name in model.model_fields}
    return _of_texts("part", model, route)


def in_query(request: Request, model: type[G]) -> G:
    """The parameters of the query. Raises Refused."""
    texts = {name: text for name, text in request.query.items() if name.lower() not in OF_THE_HOST}
    return _of_texts("parameter", model, texts)


def in_body(request: Request, model: type[G]) -> G:
    """The fields of the JSON object in the body. Raises Refused."""
    try:
        document = json.loads(json_body(request), parse_float=_number)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise Refused(400, "the body must be a JSON object")
    # Pydantic accepts no lone surrogates in names, and JSON may contain them.
    named = {name.encode("utf-8", "backslashreplace").decode(): document[name] for name in document}
    return _checked("field", model, named, named)


def _number(text: str) -> float:
    """In JSON, 2.0 is a whole number, too."""
    number = float(text)
    return int(number) if number.is_integer() else number


def json_body(request: Request) -> bytes:
    """The body of a request with JSON, not parsed. Raises Refused.

    The content type prevents cross-site request forgery: before a page of another site can send it,
    the browser sends a preflight request, which the app does not allow.
    """
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise Refused(415, "content-type: must be application/json")
    check_length(request, BODY_BYTES_MAX)
    return request.body


def check_length(request: Request, bytes_max: int) -> None:
    """Raises Refused if the body is too long, or in chunks, which the Functions host drops."""
    if len(request.body) > bytes_max:
        raise Refused(413, f"the body must have at most {bytes_max} bytes")
    if not request.body and "content-length" not in request.headers:
        raise Refused(411, NO_LENGTH)


READERS: Mapping[object, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    bool: (re.compile("true|false"), lambda text: text == "true"),
    int: (re.compile("-?[0-9]{1,20}"), int),
    float: (re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?"), float),
}


def _of_texts(what: str, model: type[G], texts: Mapping[str, str]) -> G:
    fields = model.model_fields

    def stated(name: str, text: str) -> Any:
        kind = fields[name].annotation if name in fields else str
        for each in get_args(kind) or (kind,):
            pattern, read = READERS.get(each, (None, str))
            if pattern and pattern.fullmatch(text):
                return read(text)
        return text

    return _checked(what, model, {n: stated(n, text) for n, text in texts.items()}, texts)


def _checked(what: str, model: type[G], values: Mapping[str, Any], given: Mapping[str, Any]) -> G:
    """The model of the values. Raises Refused with what is wrong of ``given``, its raw form."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        wrong = {str(each["loc"][0]): each["type"] for each in error.errors(include_url=False)}
    known = schemas(model)
    problems = [_problem(name, known[name], given) for name in wrong if name in known]
    if unknown := sorted(wrong.keys() - known.keys())[:UNKNOWN_MAX]:
        names = ", ".join(repr(name[:50]) for name in unknown)
        problems.append(f"unknown {what} {names}; known: {', '.join(known)}")
    raise Refused(400, "; ".join(problems))


def _problem(name: str, schema: JsonSchema, given: Mapping[str, Any]) -> str:
    if name not in given:
        return f"{name}: is missing; must be {rule(schema)}"
    value = given[name]
    odd = odd_character(value) if isinstance(value, str) else ""
    return f"{name} = {quoted(value)}: must be {rule(schema)}{odd and f': {odd}'}"
