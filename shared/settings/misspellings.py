"""Finds unknown settings whose name is probably a misspelling of a known one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from shared.settings import SETTINGS

NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*")
AZURE_PREFIXES = ("Azure", "AZURE", "APPSETTING", "WEBSITE", "FUNCTIONS", "CONTAINER")
WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
SAME_WORD, SAME_NAME = 0.8, 0.85


def misspellings(names: Iterable[str]) -> dict[str, str]:
    """The known setting that was probably meant, for each misspelled name. Azure's own settings and
    names with little resemblance are ignored."""
    unknown = {name.partition("__")[0] for name in names}
    unknown = {name for name in unknown if name.lower() not in LOWER and _could_be_ours(name)}
    return {name: meant for name in sorted(unknown) if (meant := _closest_setting(name))}


def _could_be_ours(name: str) -> bool:
    return bool(NAME.fullmatch(name)) and not name.startswith(AZURE_PREFIXES)


def _closest_setting(name: str) -> str:
    """The known name with nearly the same letters or most of the words; else empty."""
    if letters := get_close_matches(name.lower(), LOWER, 1, SAME_NAME):
        return LOWER[letters[0]]
    words = [_similar_words(word) for word in _words(name)]
    in_common = {
        known: sum(not known_words.isdisjoint(word) for word in words)
        for known, known_words in WORDS_OF.items()
    }
    best = max(in_common, key=lambda known: (in_common[known], -len(WORDS_OF[known])))
    return best if in_common[best] >= 2 and in_common[best] * 3 >= len(words) * 2 else ""


def _similar_words(word: str) -> set[str]:
    """The words of known names that equal this word, resemble it, or begin with it."""
    longer = {each for each in VOCABULARY if len(word) >= 3 and each.startswith(word)}
    return longer | set(get_close_matches(word, VOCABULARY, 3, SAME_WORD))


def _words(name: str) -> list[str]:
    return [word.lower() for word in WORD.findall(name)]


LOWER = {name.lower(): name for name in SETTINGS}
WORDS_OF = {name: set(_words(name)) for name in SETTINGS}
VOCABULARY = frozenset().union(*WORDS_OF.values())
