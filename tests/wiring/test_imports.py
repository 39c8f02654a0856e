"""Rules on imports that import-linter cannot check, because their modules are at the top level."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.bindings.test_function_app import ENVIRON
from tests.bindings.test_ingestion_functions import HUB

ROOT = Path(__file__).parents[2]


LOADED = "import json, sys, function_app; print(json.dumps([*sys.modules]))"


def imported(within: ast.AST) -> Iterator[str]:
    """The names of all imported modules except those of the standard library."""
    for node in ast.walk(within):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
        yield from (name for name in names if name.split(".")[0] not in sys.stdlib_module_names)


@cache
def tree(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("file", "allowed"),
    [
        ("function_app.py", ("azure.functions", "shared")),
        ("scaling_rules.py", ("shared.autoscaling", "shared.settings")),
    ],
)
def test_a_top_level_module_imports_only_the_allowed_packages(
    file: str, allowed: tuple[str, ...]
) -> None:
    names = list(imported(tree(ROOT / file)))
    assert names
    wrong = [name for name in names if not any(f"{name}.".startswith(f"{a}.") for a in allowed)]
    assert wrong == []


def test_only_the_check_of_the_rules_imports_a_top_level_module() -> None:
    importers = {
        (name, path.relative_to(ROOT).as_posix())
        for path in (ROOT / "shared").rglob("*.py")
        for name in imported(tree(path))
        if name.split(".")[0] in ("function_app", "scaling_rules")
    }
    assert importers == {("scaling_rules", "shared/wiring/checks.py")}


@cache
def loaded_by_function_app(hub: str = "") -> set[str]:
    environ = {**ENVIRON, **({"EventHubConnection": hub} if hub else {})}
    command = [sys.executable, "-c", LOADED]
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(("hub", "parts"), [("", set()), (HUB, {"ingestion"})])
def test_function_app_loads_only_the_parts_that_are_configured(hub: str, parts: set[str]) -> None:
    optional = {"datasets.flows", "ingestion.events", "messaging", "nightly", "sampling"}
    loaded = loaded_by_function_app(hub)
    assert {name.partition(".")[0] for name in optional if f"shared.{name}" in loaded} == parts, (
        "what is not configured costs time at each cold start"
    )


def test_no_function_imports_a_module_that_function_app_loads_anyway() -> None:
    loaded = loaded_by_function_app()
    deferred = {
        name
        for path in [ROOT / "function_app.py", *(ROOT / "shared").rglob("*.py")]
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for name in imported(node)
    }
    assert deferred & loaded == {"scaling_rules"}, "the user's file, whose errors are reported"
