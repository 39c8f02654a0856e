"""Who may import whom, for the modules that import-linter cannot take as roots."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def imported(path: Path) -> Iterator[str]:
    """Everything that a file imports, but for the standard library."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
        yield from (name for name in names if name.split(".")[0] not in sys.stdlib_module_names)


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
    found = list(imported(ROOT / file))
    assert found
    wrong = [name for name in found if not any(f"{name}.".startswith(f"{a}.") for a in allowed)]
    assert wrong == []


def test_nothing_below_imports_them_but_the_check_of_the_rules() -> None:
    found = {
        (name, path.relative_to(ROOT).as_posix())
        for path in (ROOT / "shared").rglob("*.py")
        for name in imported(path)
        if name.split(".")[0] in ("function_app", "scaling_rules")
    }
    assert found == {("scaling_rules", "shared/wiring/checks.py")}
