"""docs/http.md and docs/openapi.json are generated from the routes and their declarations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from openapi_spec_validator import validate

from local import http_reference, openapi
from local.functions_host.routes import compile_route
from local.openapi import Undescribed
from shared.web import board
from tests.bindings.test_functions_and_keys import HTTP


def test_the_page_and_the_description_are_up_to_date() -> None:
    written = "`python -m local.http_reference` writes them"
    assert http_reference.PAGE.read_text(encoding="utf-8") == http_reference.page(), written
    assert http_reference.OPENAPI.read_text(encoding="utf-8") == http_reference.openapi(), written


def test_the_description_is_valid_openapi() -> None:
    validate(openapi.document())


def test_every_http_function_is_described_with_its_route_method_and_key() -> None:
    described = {
        (operation["operationId"], method.upper(), path): bool(operation["security"])
        for path, methods in openapi.document()["paths"].items()
        for method, operation in methods.items()
    }
    of_resources = {
        ("resources", "GET", "/resources"),
        ("resource", "GET", "/resources/{name}"),
        ("resource_decisions", "GET", "/resources/{name}/decisions"),
        ("resource_history", "GET", "/resources/{name}/history"),
    }
    expected = {
        (name, method, route.removeprefix("api")): level == "function"
        for name, (method, route, level) in HTTP.items()
        if name != "resources"
    }
    assert described == expected | dict.fromkeys(of_resources, True)


@pytest.mark.parametrize("route", ["resources", "resources/{name}/{view}", "resources/{other}"])
def test_a_route_that_does_not_fit_the_model_of_its_address_is_an_error(
    route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = replace(board.resource, route=route)
    monkeypatch.setattr(openapi, "FUNCTIONS", (wrong,))
    with pytest.raises(Undescribed, match=f"resource: its model does not fit /{route}$"):
        openapi.operations()


def test_every_form_of_a_route_with_optional_parts_is_described() -> None:
    for function in openapi.FUNCTIONS:
        parts = len(function.route.split("/"))
        optional = function.route.count("?")
        lengths = {len(each.route.split("/")) for each in function.forms or (function,)}
        assert lengths == set(range(parts - optional, parts + 1)), function.name
        leads = compile_route("", function.route)
        assert None not in [leads.match(each.route) for each in function.forms], function.name
