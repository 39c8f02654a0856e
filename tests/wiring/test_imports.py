"""Who may import whom, for the modules that import-linter cannot take as roots."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bindings.test_function_app import ENVIRON

ROOT = Path(__file__).parents[2]


LOADED = "import json, sys, function_app; print(json.dumps([*sys.modules]))"


def imported(within: ast.AST) -> Iterator[str]:
    """Everything that is imported there, but for the standard library."""
    for node in ast.walk(within):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
        yield from (name for name in names if name.split(".")[0] not in sys.stdlib_module_names)


def tree(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("file", "allowed"),
    [
        ("function_app.py", ("azure.functions", "shared")),
        ("scaling_rules.py", ("shared.autoscaling", "shared.settings")),
    ],
)
def test_a_module_at_the_top_imports_only_what_is_below_it(
    file: str, allowed: tuple[str, ...]
) -> None:
    found = list(imported(tree(ROOT / file)))
    assert found
    wrong = [name for name in found if not any(f"{name}.".startswith(f"{a}.") for a in allowed)]
    assert wrong == []


def test_nothing_below_imports_them_but_the_check_of_the_rules() -> None:
    found = {
        (name, path.relative_to(ROOT).as_posix())
        for path in (ROOT / "shared").rglob("*.py")
        for name in imported(tree(path))
        if name.split(".")[0] in ("function_app", "scaling_rules")
    }
    assert found == {("scaling_rules", "shared/wiring/checks.py")}


def test_no_import_within_a_function_is_of_a_module_that_is_loaded_anyway() -> None:
    command = [sys.executable, "-c", LOADED]
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRON, capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(done.stdout))
    found = {
        name
        for path in [ROOT / "function_app.py", *(ROOT / "shared").rglob("*.py")]
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for name in imported(node)
    }
    assert found & loaded == {"scaling_rules"}, "it belongs to the user, and is checked with care"
