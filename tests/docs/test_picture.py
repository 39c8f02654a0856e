"""The picture in the README shows the page as it is."""

from __future__ import annotations

import json
import re

from bench.pictures.readme import PICTURE, ROOT, TEXTS, labels
from tests.docs.test_docs import README

MADE = json.loads(TEXTS.read_text(encoding="utf-8"))
CODE = [
    *(ROOT / "shared").rglob("*.py"),
    *(ROOT / "shared" / "web" / "templates").iterdir(),
    ROOT / "shared" / "web" / "static" / "dashboard.js",
    ROOT / "bench" / "pictures" / "readme.py",
]
RENEW = "run `make picture`, and look at the picture"


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z]{3,}", text))


def test_the_picture_was_made_with_the_texts_that_the_page_has() -> None:
    assert f"]({PICTURE.relative_to(ROOT)})" in README
    assert MADE["labels"] == labels(), RENEW
    assert len(MADE["labels"]) > 20


def test_every_word_in_the_picture_is_one_of_the_code() -> None:
    shown = words(" ".join(MADE["shown"]))
    assert len(shown) > 40
    known = words(" ".join(path.read_text(encoding="utf-8") for path in CODE))
    assert shown - known == set(), RENEW
