"""An OpenAPI description of the HTTP API.

Addresses, methods, keys and summaries come from function_app.py; parameters, bodies and replies
from the endpoints that the modules of shared/web declare.
https://spec.openapis.org/oas/v3.1.0
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import azure.functions as func

from local.functions_host.routes import compile_route
from local.json_schema import JsonSchema, Schemas, plain
from shared.web import board, breaker_http, dead_letters_http, page, panels
from shared.web.endpoint import JSON, STATUSES, Content, Endpoint
from shared.web.fields import Field

ROOT = Path(__file__).parents[1]
MODULES = (page, board, panels, breaker_http, dead_letters_http)
KEYS = {
    "key_header": {"type": "apiKey", "in": "header", "name": "x-functions-key"},
    "key_query": {"type": "apiKey", "in": "query", "name": "code"},
}
ABOUT = """\
The HTTP API of the autoscaler. Each function has its own key; a host key opens all functions.
Operations with the tags `breakers` and `dead-letters` exist only if `EventHubConnection` is set.
While settings or rules are wrong, only `dashboard` exists, and lists the problems. An address that
does not exist, or that has no such method, is answered with status 404 and an empty body."""


class Undescribed(Exception):
    """A route of function_app.py has no endpoint, or an endpoint has no route."""


@dataclass(frozen=True, slots=True)
class Route:
    """An HTTP function of function_app.py."""

    function: str
    template: str
    method: str
    keyed: bool
    about: str

    def leads_to(self, path: str) -> bool:
        return compile_route("", self.template).match(path) is not None


@dataclass(frozen=True, slots=True)
class Operation:
    """An endpoint with its route."""

    endpoint: Endpoint
    route: Route

    @property
    def name(self) -> str:
        return self.endpoint.name or self.endpoint.function

    @property
    def path(self) -> str:
        return f"/{self.endpoint.path or self.route.template}"

    @property
    def about(self) -> str:
        return self.endpoint.about or self.route.about


def operations() -> Sequence[Operation]:
    """Every operation of the API. Raises Undescribed."""
    found = routes()
    by_function = {route.function: route for route in found}
    endpoints = [endpoint for module in MODULES for endpoint in module.ENDPOINTS]
    if unknown := {each.function for each in endpoints} - by_function.keys():
        raise Undescribed(f"function_app.py has no HTTP function {', '.join(sorted(unknown))}")
    described = [Operation(each, by_function[each.function]) for each in endpoints]
    for route in found:
        _check(route, [each for each in described if each.route.template == route.template])
    return described


def _check(route: Route, described: Sequence[Operation]) -> None:
    """A route without optional parts has one operation; otherwise, each form of it has one."""
    if not any(each.route.method == route.method for each in described):
        raise Undescribed(f"no module of shared/web has an endpoint for {route.function}")
    forms = {len(_segments(each.path)) for each in described}
    longest = len(_segments(route.template))
    if forms != set(range(longest - route.template.count("?"), longest + 1)):
        raise Undescribed(f"{route.function}: a form of /{route.template} has no endpoint")
    for each in described:
        declared = {field.name for field in each.endpoint.in_path}
        if not route.leads_to(each.path) or declared != set(re.findall(r"{(\w+)}", each.path)):
            raise Undescribed(f"{each.name}: {each.path} does not fit /{route.template}")


def _segments(path: str) -> list[str]:
    return path.strip("/").split("/")


def routes() -> Sequence[Route]:
    """The HTTP functions that function_app.py declares, whatever the settings are."""
    import function_app  # noqa: PLC0415  it reads the settings

    app = func.FunctionApp()
    for each in vars(function_app).values():
        if isinstance(each, func.Blueprint):
            app.register_functions(each)
    return [route for function in app.get_functions() for route in _routes(function)]


def _routes(function: Any) -> Iterator[Route]:
    trigger = function.get_trigger().get_dict_repr()
    if trigger["type"] == "httpTrigger":
        about = plain(function.get_user_function().__doc__ or "")
        keyed = trigger["authLevel"] is not func.AuthLevel.ANONYMOUS
        for method in trigger["methods"]:
            yield Route(function.get_function_name(), trigger["route"], method.value, keyed, about)


def document() -> dict[str, Any]:
    """The description as a JSON value."""
    schemas = Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations():
        described = _operation(operation, schemas)
        paths.setdefault(operation.path, {})[operation.route.method.lower()] = described
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
            "schemas": dict(sorted(schemas.by_name.items())),
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


def _operation(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    endpoint = operation.endpoint
    replies = dict(endpoint.replies)
    if operation.route.keyed:
        replies.setdefault(401, {})
    return {
        "operationId": operation.name,
        "tags": [_segments(operation.path)[0]],
        "summary": operation.about,
        "security": [{key: []} for key in KEYS] if operation.route.keyed else [],
        "parameters": [
            *_parameters("path", endpoint.in_path),
            *_parameters("query", endpoint.in_query),
        ],
        **_body(endpoint, schemas),
        "responses": {
            str(status): _reply(status, content, schemas)
            for status, content in sorted(replies.items())
        },
    }


def _parameters(place: str, fields: Iterable[Field]) -> Iterator[dict[str, Any]]:
    for field in fields:
        yield {
            "name": field.name,
            "in": place,
            "required": field.required,
            "description": field.meaning,
            "schema": _schema(field),
        }


def _schema(field: Field) -> JsonSchema:
    return field.schema if field.default is None else {**field.schema, "default": field.default}


def _body(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any]:
    if endpoint.body:
        content = {JSON: {"schema": schemas.of(endpoint.body)}}
        return {"requestBody": {"required": True, "content": content}}
    if not endpoint.in_body:
        return {}
    schema = {
        "type": "object",
        "properties": {
            field.name: {**_schema(field), "description": field.meaning}
            for field in endpoint.in_body
        },
        "required": [field.name for field in endpoint.in_body if field.required],
        "additionalProperties": False,
    }
    example = {"example": endpoint.body_example} if endpoint.body_example else {}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema, **example}}}}


def _reply(status: int, content: Content, schemas: Schemas) -> dict[str, Any]:
    reply: dict[str, Any] = {"description": STATUSES[status]}
    if content:
        reply["content"] = {kind: {"schema": schemas.of(type_)} for kind, type_ in content.items()}
    return reply
