"""An OpenAPI description of the HTTP API, from the operations that shared/web declares.

https://spec.openapis.org/oas/v3.1.0
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, get_args, get_origin

from local.json_schema import UNIONS, Schemas, plain
from shared.web import board, breaker_http, dead_letters_http, page, samples_http
from shared.web.given import Given, schemas
from shared.web.http import Reply, error_reply
from shared.web.operation import Operation

ROOT = Path(__file__).parents[1]
FUNCTIONS = (
    *page.OPERATIONS,
    *board.OPERATIONS,
    samples_http.push_metrics,
    breaker_http.breakers,
    *breaker_http.OPERATIONS,
    *dead_letters_http.OPERATIONS,
)
KEYS = {
    "key_header": {"type": "apiKey", "in": "header", "name": "x-functions-key"},
    "key_query": {"type": "apiKey", "in": "query", "name": "code"},
}
ABOUT = """\
The HTTP API of the autoscaler. Each function has its own key; a host key opens all functions.
Operations with the tags `breakers` and `dead-letters` exist only if `EventHubConnection` is set.
While settings or rules are wrong, only `dashboard` exists, and lists the problems. An address that
does not exist, or that has no such method, is answered with status 404 and an empty body."""


JSON = "application/json"
HTML = "text/html"
STATUSES: Mapping[int, str] = {
    200: "done",
    400: "a parameter or field is wrong; the text says what is needed",
    401: "no key, or no token",
    403: "the token is not valid, or has expired",
    404: "no such address, resource, breaker or dead letter, or the address has no such method",
    409: "somebody else changed the state at the same time; try again",
    411: "the request has no `Content-Length`: the Functions host drops a body sent in chunks",
    413: "the body is too large",
    415: "the content type must be `application/json`",
    500: "the state of the app is inconsistent; the log says more",
    503: "storage, the hub or a handler fails, or does not answer within eight seconds; for a "
    "change, the text then says that its outcome is unknown",
}


class Error(TypedDict):
    """Why a request was refused, or failed."""

    error: str


class Undescribed(Exception):
    """The model of an address does not fit its route."""


def operations() -> Sequence[Operation]:
    """Every operation of the API. Raises Undescribed."""
    described = [form for function in FUNCTIONS for form in function.forms or (function,)]
    for each in described:
        declared = set(schemas(each.given["path"])) if "path" in each.given else set()
        if declared != set(re.findall(r"{(\w+)}", each.route)):
            raise Undescribed(f"{each.name}: its model does not fit /{each.route}")
    return described


def document() -> dict[str, Any]:
    """The description as a JSON value."""
    types = Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations():
        described = _operation(operation, types)
        paths.setdefault(f"/{operation.route}", {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": _info(),
        "servers": [
            {
                "url": "https://{app}.azurewebsites.net/api",
                "variables": {"app": {"default": "MY-APP", "description": "the Function App"}},
            }
        ],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(types.by_name.items())),
            "securitySchemes": KEYS,
        },
    }


def _info() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        "title": project["name"],
        "version": project["version"],
        "description": plain(ABOUT),
        "license": {"name": project["license"], "identifier": project["license"]},
    }


def _operation(operation: Operation, types: Schemas) -> dict[str, Any]:
    given = operation.given
    return {
        "operationId": operation.name,
        "tags": [operation.route.split("/")[0]],
        "summary": about(operation),
        "security": [{key: []} for key in KEYS] if operation.keyed else [],
        "parameters": [
            parameter
            for place in ("path", "query")
            if place in given
            for parameter in _parameters(place, given[place])
        ],
        **_body(operation, types),
        "responses": dict(_responses(operation, types)),
    }


def about(operation: Operation) -> str:
    return plain(operation.serve.__doc__ or "")


def _parameters(place: str, model: type[Given]) -> Iterator[dict[str, Any]]:
    for name, schema in schemas(model).items():
        yield {
            "name": name,
            "in": place,
            "required": name in required(model),
            "description": schema.pop("description"),
            "schema": schema,
        }


def required(model: type[Given]) -> list[str]:
    """The names of the fields that a request must have."""
    fields = model.model_fields.items()
    return [field.alias or name for name, field in fields if field.is_required()]


def example(model: type[Given]) -> dict[str, Any]:
    """A body of the model; empty if the model has none."""
    extra: Any = model.model_config.get("json_schema_extra", {})
    found: dict[str, Any] = extra.get("example", {})
    return found


def _body(operation: Operation, types: Schemas) -> dict[str, Any]:
    if operation.document:
        content: dict[str, Any] = {JSON: {"schema": types.of(operation.document)}}
        return {"requestBody": {"required": True, "content": content}}
    if (model := operation.given.get("body")) is None:
        return {}
    schema = {
        "type": "object",
        "properties": schemas(model),
        "required": required(model),
        "additionalProperties": False,
    }
    shown = {"example": example(model)} if example(model) else {}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema, **shown}}}}


def _responses(operation: Operation, types: Schemas) -> Iterator[tuple[str, dict[str, Any]]]:
    """The reply of each status. A function that returns a Reply has a page, and its refusals are
    pages too if it makes them itself."""
    hint = operation.hints["return"]
    kinds = get_args(hint) if get_origin(hint) in UNIONS else (hint,)
    refusal = {JSON: Error, **({HTML: str} if operation.refuse is not error_reply else {})}
    content = {
        200: {HTML if kind is Reply else JSON: str if kind is Reply else kind for kind in kinds}
    }
    content |= dict.fromkeys(operation.statuses, refusal)
    if operation.keyed:
        content.setdefault(401, {})
    for status in operation.told_by:
        content[status] = {HTML: str, JSON: operation.told_by[status]}
    for status, each in sorted(content.items()):
        reply: dict[str, Any] = {"description": STATUSES[status]}
        if each:
            reply["content"] = {kind: {"schema": types.of(each[kind])} for kind in each}
        yield str(status), reply
