"""The names that users may import are listed in one place, and the list is true."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import shared.autoscaling
from shared.autoscaling.policy import OFFERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
RULES = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
WRITTEN_BY_USERS = ("scaling_rules.py", "examples/device_totals.py")
PAGES = (
    "README.md",
    "docs/rules.md",
    "docs/cookbook.md",
    "docs/events.md",
    "docs/several-plans.md",
    "docs/extending.md",
    "docs/first-hour.md",
    "docs/architecture.md",
)


def listed() -> Mapping[str, list[str]]:
    section = PAGE.split("## Names you may import\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", section, re.MULTILINE)
    return {module: re.findall(r"`(\w+)`", names) for module, names in rows}


LISTED = listed()


def imported(source: str) -> set[tuple[str, str]]:
    """What of this project the source imports: module and name."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in found if (node.module or "").startswith("shared")]
    return {(str(node.module), name.name) for node in ours for name in node.names}


def test_the_list_has_what_rules_are_written_with() -> None:
    assert LISTED["shared.autoscaling"] == shared.autoscaling.__all__


@pytest.mark.parametrize("module", LISTED)
def test_each_listed_name_can_be_imported(module: str) -> None:
    assert [
        name for name in LISTED[module] if not hasattr(importlib.import_module(module), name)
    ] == []


@pytest.mark.parametrize("module", LISTED)
def test_each_listed_class_and_function_says_what_it_is(module: str) -> None:
    values = {name: getattr(importlib.import_module(module), name) for name in LISTED[module]}
    ours = {n: v for n, v in values.items() if getattr(v, "__module__", "").startswith("shared")}
    # A dataclass without a docstring gets its signature for one.
    assert [n for n, v in ours.items() if (v.__doc__ or f"{n}(").startswith(f"{n}(")] == []


def test_the_page_of_rules_explains_each_name_that_rules_are_written_with() -> None:
    unnamed = [n for n in LISTED["shared.autoscaling"] if not re.search(rf"\b{n}\b", RULES)]
    assert unnamed == []


def test_the_page_of_rules_explains_all_that_a_policy_may_offer() -> None:
    section = RULES.split("## A rule of your own")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)", section, re.MULTILINE)) == set(OFFERS)


def test_what_users_write_needs_no_other_name() -> None:
    sources = [(ROOT / path).read_text(encoding="utf-8") for path in WRITTEN_BY_USERS]
    for path in PAGES:
        sources += re.findall(r"```python\n(.*?)```", (ROOT / path).read_text("utf-8"), re.DOTALL)
    needed = set[tuple[str, str]]().union(*map(imported, sources))
    assert {(module, name) for module, name in needed if name != "*"} <= {
        (module, name) for module, names in LISTED.items() for name in names
    }
