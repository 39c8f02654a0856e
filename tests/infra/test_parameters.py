"""The parameter files of azd and of the Azure CLI describe the same deployment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.infra.bicep import BicepFile, Expression

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
MAIN, AZD = BicepFile(INFRA / "main.bicep"), BicepFile(INFRA / "azd.bicep")
SECURE = "secretSettings"
CHOSEN_BY_AZD = {"environmentName", "location"}

VARIABLE = re.compile(r"\$\{([A-Z_]+)(?:=(.*))?\}")


def parameters(name: str) -> dict[str, Any]:
    document = json.loads((INFRA / f"{name}.parameters.json").read_text())
    return {key: given["value"] for key, given in document["parameters"].items()}


def variables(value: Any) -> Iterator[tuple[str, str | None]]:
    """Name and default of each environment variable; None if there is no default."""
    if isinstance(value, dict):
        for each in value.values():
            yield from variables(each)
    else:
        match = VARIABLE.fullmatch(value)
        assert match, f"{value} is not taken from an environment variable"
        yield match[1], match[2]


def test_azd_passes_on_every_parameter_but_the_prefix_of_names() -> None:
    (module,) = AZD.of_kind("module")
    assert set(module.value["params"]) == {p.name for p in MAIN.of_kind("param")} - {"name"}


def test_an_environment_variable_reaches_every_parameter_of_azd() -> None:
    given = parameters("azd")
    assert set(given) == {p.name for p in AZD.of_kind("param")} - {SECURE}
    names = [name for name, _ in variables(given)]
    assert len(names) == len(set(names))


def test_azd_asks_only_for_parameters_without_a_default() -> None:
    required = {each.name for each in AZD.of_kind("param") if not each.has_value}
    given = parameters("azd")
    asked = {key for key in given if any(default is None for _, default in variables(given[key]))}
    assert asked == required


def test_the_defaults_of_azd_equal_those_of_the_template() -> None:
    """azd passes text, so true, 2048 and an empty list are compared as text."""
    given = parameters("azd")
    declared = {each.name: each for each in MAIN.of_kind("param")}
    for each in AZD.of_kind("param"):
        if each.name in CHOSEN_BY_AZD | {SECURE, "settings"} or not each.has_value:
            continue
        ((_, default),) = variables(given[each.name])
        assert default == each.value
        value = declared[each.name].value
        expected = "" if value == [] else value if isinstance(value, str) else json.dumps(value)
        assert default == expected, each.name


def test_both_parameter_files_set_the_same_settings() -> None:
    by_azd = {
        name: default
        for name, value in parameters("azd")["settings"].items()
        for _, default in variables(value)
    }
    assert by_azd == parameters("main")["settings"]
    assert by_azd["DryRun"] == "true"


def test_the_deployment_guide_names_every_environment_variable_of_azd() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)*\b", page))
    chosen = {"AZURE_ENV_NAME", "AZURE_LOCATION"}  # azd asks for these itself
    assert {name for name, _ in variables(parameters("azd"))} - chosen <= named


def test_a_list_is_separated_by_commas_and_may_be_empty() -> None:
    (module,) = AZD.of_kind("module")
    params = module.value["params"]
    assert params["planIds"] == Expression("split(planIds, ',')")
    assert params["alertEmails"] == Expression("empty(alertEmails) ? [] : split(alertEmails, ',')")
