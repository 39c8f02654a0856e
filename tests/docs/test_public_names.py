"""The page of names lists exactly the names that users may import."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

import shared.autoscaling
from shared.autoscaling.policy import OFFERS, Observation

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "names.md").read_text(encoding="utf-8")
RULES = "".join(
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("rules", "policies", "guards", "learning", "extending")
) + "".join(
    path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "sources").glob("*.md"))
)
EXTENDING = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
WRITTEN_BY_USERS = ("scaling_rules.py", "examples/device_totals.py")
PAGES = (
    "README.md",
    *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md"))),
)


def listed() -> Mapping[str, list[str]]:
    rows = re.findall(r"^- `([\w.]+)`: (.*)$", PAGE, re.MULTILINE)
    return {module: re.findall(r"`(\w+)`", names) for module, names in rows}


LISTED = listed()


def imported(source: str) -> set[tuple[str, str]]:
    """The imports from this project in the source, as pairs of module and name."""
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if (node.module or "").startswith("shared")]
    return {(str(node.module), name.name) for node in ours for name in node.names}


def test_the_page_lists_every_public_name_of_autoscaling() -> None:
    assert LISTED["shared.autoscaling"] == shared.autoscaling.__all__


@pytest.mark.parametrize("module", LISTED)
def test_each_listed_class_and_function_has_a_docstring(module: str) -> None:
    values = {name: getattr(importlib.import_module(module), name) for name in LISTED[module]}
    ours = {n: v for n, v in values.items() if getattr(v, "__module__", "").startswith("shared")}
    # A dataclass without a docstring gets its signature as docstring.
    assert [n for n, v in ours.items() if (v.__doc__ or f"{n}(").startswith(f"{n}(")] == []


def test_the_replacements_of_removed_policies_are_public_names() -> None:
    for replacement in shared.autoscaling.REMOVED.values():
        named = set(re.findall(r"\b[A-Z]\w+(?=\()", replacement))
        assert named
        assert named <= set(shared.autoscaling.__all__)


def test_the_pages_on_rules_explain_each_public_name_of_autoscaling() -> None:
    unnamed = [n for n in LISTED["shared.autoscaling"] if not re.search(rf"\b{n}\b", RULES)]
    assert unnamed == []


def names_of_the_table(heading: str) -> set[str]:
    """The names in the first column of the table below a heading of the page about extending."""
    section = EXTENDING.split(f"\n{heading}\n")[1]
    cells = re.findall(r"^\| (`.*?) \|", section.split("\n\n|")[1].split("\n\n")[0], re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)", cell)}


def test_the_page_about_extending_explains_every_member_that_a_policy_may_offer() -> None:
    assert names_of_the_table("### What a policy may offer") == set(OFFERS)


def test_the_page_about_extending_explains_everything_that_a_policy_sees() -> None:
    seen = {field.name for field in fields(Observation)} | {"window", "history"}
    assert names_of_the_table("## A policy") - {"seen"} >= seen


def test_the_examples_import_only_listed_names() -> None:
    sources = [(ROOT / path).read_text(encoding="utf-8") for path in WRITTEN_BY_USERS]
    for path in PAGES:
        sources += re.findall(r"```python\n(.*?)```", (ROOT / path).read_text("utf-8"), re.DOTALL)
    needed = set[tuple[str, str]]().union(*map(imported, sources))
    assert {(module, name) for module, name in needed if name != "*"} <= {
        (module, name) for module, names in LISTED.items() for name in names
    }
