"""The first checks that the Bicep compiler makes: syntax, names and module interfaces.

The compiler is not available from a package registry, so these tests read the files with a grammar.
`make infra` runs the compiler.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tree_sitter import Node

from tests.infra.bicep import BicepFile, identifier, text, walk

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
FILES = {path: BicepFile(path) for path in sorted(INFRA.rglob("*.bicep"))}
NAMES_OF_FUNCTIONS = """
    bool concat contains empty endsWith environment fail filter guid indexOf int items join last
    length loadJsonContent map resourceGroup resourceId split string subscriptionResourceId
    substring take toObject union uniqueString"""
FUNCTIONS = set(NAMES_OF_FUNCTIONS.split())
each_file = pytest.mark.parametrize("file", FILES.values(), ids=lambda file: file.path.stem)


@each_file
def test_the_syntax_is_valid(file: BicepFile) -> None:
    wrong = [node for node in walk(file.root) if node.type == "ERROR" or node.is_missing]
    assert [(node.start_point.row + 1, text(node)) for node in wrong] == []


def declared_names(file: BicepFile) -> set[str]:
    local = {
        text(child)
        for node in walk(file.root)
        if node.type in ("for_statement", "for_loop_parameters", "lambda_expression")
        for child in node.named_children[:2]
        if child.type in ("identifier", "loop_variable", "loop_enumerator")
    }
    return {each.name for each in file.declarations} | local


def used_names(file: BicepFile) -> Iterator[tuple[str, int]]:
    """Every name that is used, with its line."""
    for node in walk(file.root):
        if node.type == "identifier" and not _is_declared_or_called_here(node):
            yield text(node), node.start_point.row + 1


def _is_declared_or_called_here(node: Node) -> bool:
    around = node.parent
    assert around is not None
    first = around.named_children[0] == node
    if around.type in ("object_property", "call_expression", "for_statement", "lambda_expression"):
        return first
    return around.type.endswith("_declaration") and identifier(around) == node


@each_file
def test_every_name_is_declared_and_every_param_and_variable_is_used(file: BicepFile) -> None:
    used = dict(used_names(file))
    declared = declared_names(file) | FUNCTIONS
    assert {name: line for name, line in used.items() if name not in declared} == {}
    idle = {each.name for kind in ("param", "var") for each in file.of_kind(kind)} - set(used)
    assert idle == set()
    called = {
        text(node.named_children[0])
        for node in walk(file.root)
        if node.type == "call_expression" and node.parent and node.parent.type != "decorator"
    }
    assert called <= FUNCTIONS


@each_file
def test_a_module_receives_the_params_that_it_declares(file: BicepFile) -> None:
    for module in file.of_kind("module"):
        body = getattr(module.value, "body", module.value)
        params = FILES[file.path.parent / module.of].of_kind("param")
        needed = {each.name for each in params if not each.has_value}
        given = set(body["params"])
        assert needed <= given <= {each.name for each in params}, module.name


@each_file
def test_every_module_output_that_is_used_exists(file: BicepFile) -> None:
    modules = {each.name: each.of for each in file.of_kind("module")}
    for module, output in re.findall(r"(\w+)\.outputs\.(\w+)", file.path.read_text()):
        outputs = FILES[file.path.parent / modules[module]].of_kind("output")
        assert output in {each.name for each in outputs}, f"{module}.outputs.{output}"


@pytest.mark.parametrize("name", ["main", "azd"])
def test_parameter_files_set_all_required_params_and_no_unknown_ones(name: str) -> None:
    params = FILES[INFRA / f"{name}.bicep"].of_kind("param")
    given = set(json.loads((INFRA / f"{name}.parameters.json").read_text())["parameters"])
    assert {p.name for p in params if not p.has_value} <= given <= {p.name for p in params}


@pytest.mark.skipif(
    shutil.which("bicep") is None,
    reason="there is no Bicep compiler on this machine (see docs/deployment.md)",
)
@pytest.mark.parametrize("name", ["main", "azd"])
def test_the_compiler_reports_no_errors_or_warnings(name: str) -> None:
    """A warning of the linter is a failure too."""
    command = ["bicep", "build", "--stdout", str(INFRA / f"{name}.bicep")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
