"""Texts of one line and numbers in texts, from wherever they come."""

from __future__ import annotations

import re

import pytest

from shared.cli.tables import safe
from shared.ingestion.operating.presenting import printable
from shared.values.text import LINE_PATTERN, line_problem, number, whole

ORDINARY = {
    "no-break space": "vente\u00a0: soldes",
    "emoji of two people": "on call \U0001f469\u200d\U0001f4bb",
    "flag of Wales": "\U0001f3f4\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f",
    "emoji newer than Python's Unicode": "\U0001fae8",
    "not yet assigned": "\U0001faff \u0378",
    "Persian": "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "Hindi": "\u0915\u094d\u200d\u0937",
    "soft hyphen": "Ent\u00adlastung",
}
ODD = {
    "\0": "U+0000 (control character)",
    "\t": "U+0009 (control character)",
    "\n": "U+000A (control character)",
    "\x1b": "U+001B (control character)",
    "\x7f": "U+007F (control character)",
    "\x85": "U+0085 (control character)",
    "\u2028": "U+2028 (LINE SEPARATOR)",
    "\u2029": "U+2029 (PARAGRAPH SEPARATOR)",
    "\u061c": "U+061C (ARABIC LETTER MARK)",
    "\u200f": "U+200F (RIGHT-TO-LEFT MARK)",
    "\u202e": "U+202E (RIGHT-TO-LEFT OVERRIDE)",
    "\u2066": "U+2066 (LEFT-TO-RIGHT ISOLATE)",
    "\ud83d": "U+D83D (lone surrogate)",
}


@pytest.mark.parametrize("text", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_text_of_one_line_is_accepted(text: str) -> None:
    assert line_problem(text, 500) == ""
    assert re.search(LINE_PATTERN, text)
    assert printable(text.encode()) == safe(text) == text


@pytest.mark.parametrize("character", ODD, ids=ascii)
def test_a_character_that_breaks_or_reorders_a_line_is_named_with_its_place(character: str) -> None:
    told = f"must be 1 to 500 characters in one line: character 3 is {ODD[character]}"
    assert line_problem(f"ab{character}c", 500) == told
    assert "\ud800" <= character <= "\udfff" or not re.fullmatch(LINE_PATTERN, f"ab{character}c")


def test_a_terminal_gets_no_character_that_it_would_execute() -> None:
    assert safe("a\x1b[2J\u202eb\ud83d") == r"a\x1b[2J\u202eb\ud83d"
    assert printable(b"a\tb\n") == "a\tb\n"
    assert printable(b"a\x1b[2J") is None


@pytest.mark.parametrize("text", ["", " ", "\u00a0\u3000", "\u200b", "\u200d", "x" * 501])
def test_a_blank_or_long_text_is_refused(text: str) -> None:
    assert line_problem(text, 500) == "must be 1 to 500 characters in one line"


def test_a_number_has_digits_0_to_9_only() -> None:
    assert (whole("10"), whole("-3"), number("1e3"), number("+.5"), number("5.")) == (
        10, -3, 1000, 0.5, 5,
    )  # fmt: skip
    for text in ("", " 1", "1_0", "\u0663", "\uff11\uff10", "\u00b2", "0x10", "9" * 50, "1\n"):
        for parse in (whole, number):
            with pytest.raises(ValueError, match="is not a"):
                parse(text)
