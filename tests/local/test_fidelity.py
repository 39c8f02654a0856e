"""local/FIDELITY.md names an existing test or a risk for each difference from Azure."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "local" / "FIDELITY.md").read_text(encoding="utf-8")
LINES = [line for line in TEXT.splitlines() if line.startswith("| ")]
ROWS = [line.strip("| ").split(" | ") for line in LINES if not line.startswith("| difference")]
TEST = re.compile(r"`(tests/[\w/]+\.py)((?:::\w+)+)`")


def names(tree: ast.AST) -> dict[str, ast.AST]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {each.name: each for each in ast.iter_child_nodes(tree) if isinstance(each, kinds)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_each_difference_names_an_existing_test_or_a_risk(row: list[str]) -> None:
    difference, cover = row
    assert difference
    if cover.startswith("Risk: "):
        return
    match = TEST.fullmatch(cover)
    assert match, cover
    tree: ast.AST = ast.parse((ROOT / match[1]).read_text(encoding="utf-8"))
    for name in match[2].removeprefix("::").split("::"):
        tree = names(tree)[name]
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
