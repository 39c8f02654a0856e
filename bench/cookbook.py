"""The recipes of docs/cookbook.md as resources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.autoscaling import Resource

PAGE = Path(__file__).parents[1] / "docs" / "cookbook.md"


def recipes() -> Mapping[str, Resource]:
    """Each recipe by its heading, in lower case and with underscores."""
    introduction, *sections = PAGE.read_text(encoding="utf-8").split("\n## ")
    return {_name(section): _resource(introduction, section) for section in sections}


def _name(section: str) -> str:
    heading = section.partition("\n")[0].partition(". ")[2]
    return re.sub(r"\W+", "_", heading.lower()).strip("_")


def _resource(introduction: str, section: str) -> Resource:
    names: dict[str, Any] = {}
    exec(_code(introduction) + _code(section), names)  # noqa: S102 - a page of this project
    recipe = names["recipe"]
    assert isinstance(recipe, Resource)
    return recipe


def _code(text: str) -> str:
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return str(block)
