"""The pages stay short enough to read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = re.compile(r"`(make settings|python -m local\.\w+)` generates (this page|both)")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(
        page
        for page in (ROOT / "docs").rglob("*.md")
        if page.parent.name != "adr" and not GENERATED.search(page.read_text(encoding="utf-8"))
    ),
]
WORDS_OF_ALL, WORDS_OF_A_PAGE, WORDS_OF_A_CELL = 26_000, 2_500, 40


def words(text: str) -> int:
    """As ``wc -w`` counts them."""
    return len(text.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_and_no_cell_of_a_table_is_too_long(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert words(text) <= WORDS_OF_A_PAGE
    rows = [line for line in text.splitlines() if line.lstrip().startswith("|")]
    cells = [cell for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    assert [cell for cell in cells if words(cell) > WORDS_OF_A_CELL] == []


def test_all_pages_together_are_short_enough() -> None:
    assert sum(words(page.read_text(encoding="utf-8")) for page in PAGES) <= WORDS_OF_ALL
