"""HTTP route templates."""

from collections.abc import Mapping

import pytest

from local.functions_host.routes import compile_route


@pytest.mark.parametrize(
    ("template", "path", "expected"),
    [
        ("status", "/api/status", {}),
        ("status", "/API/Status/", {}),
        ("status", "/api/status/more", None),
        ("plans/{name}", "/api/plans/My%20plan", {"name": "My plan"}),
        ("plans/{name}", "/api/plans/a%2Fb", {"name": "a/b"}),
        ("plans/{name}", "/api/plans", None),
        ("plans/{name?}", "/api/plans", {}),
        ("plans/{name}/{day?}", "/api/plans/x/5", {"name": "x", "day": "5"}),
        ("plans/{name}/{day?}", "/api/plans/x", {"name": "x"}),
        ("plans/{name}/{day?}", "/api/plans/x/5/6", None),
        ("files/{name}.{kind}", "/api/files/a.txt", {"name": "a", "kind": "txt"}),
        ("a.b", "/api/axb", None),
    ],
)
def test_a_template_matches_paths_and_returns_their_parameters(
    template: str, path: str, expected: Mapping[str, str] | None
) -> None:
    assert compile_route("api", template).match(path) == expected


def test_an_empty_route_prefix_adds_no_segment() -> None:
    assert compile_route("", "status").match("/status") == {}


def test_an_optional_parameter_may_be_the_whole_route() -> None:
    route = compile_route("", "{name?}")
    assert route.match("/") == {}
    assert route.match("/x") == {"name": "x"}


def test_the_most_literal_route_ranks_first() -> None:
    templates = ["plans/{name}", "plans/{name}.{kind}", "plans/today"]
    ranked = sorted(templates, key=lambda template: compile_route("api", template).rank)
    assert ranked == ["plans/today", "plans/{name}.{kind}", "plans/{name}"]


@pytest.mark.parametrize(
    "template", ["plans/{name:length(3)}", "plans/{name", "plans/{day:int}", "plans/{*rest}"]
)
def test_unsupported_route_templates_are_refused(template: str) -> None:
    with pytest.raises(ValueError, match="the local host does not support the route part"):
        compile_route("api", template)
