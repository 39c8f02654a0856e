"""Names of settings that nobody reads, for they look like slips of the pen."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from shared.settings import SETTINGS

NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*")
OF_AZURE = ("Azure", "AZURE", "APPSETTING", "WEBSITE", "FUNCTIONS", "CONTAINER")
WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
SAME_WORD, SAME_NAME = 0.8, 0.85


def slips(names: Iterable[str]) -> dict[str, str]:
    """The name that was probably meant, by each that is almost one.

    Azure's own settings are left alone, and so is what has little in common with ours: an
    environment is full of names.
    """
    given = {name.partition("__")[0] for name in names}
    doubtful = sorted(given - SETTINGS.keys())
    found = {name: _meant(name) for name in doubtful if _could_be_ours(name)}
    read_all_the_same = {key.upper() for key in given & SETTINGS.keys()}  # Windows: all capitals
    return {name: meant for name, meant in found.items() if meant and name not in read_all_the_same}


def _could_be_ours(name: str) -> bool:
    return bool(NAME.fullmatch(name)) and not name.startswith(OF_AZURE)


def _meant(name: str) -> str:
    """The known name with nearly the same letters, or with most of the words; empty: none."""
    if letters := get_close_matches(name.lower(), LOWER, 1, SAME_NAME):
        return LOWER[letters[0]]
    words = [_alike(word) for word in _words(name)]
    in_common = {
        known: sum(not theirs.isdisjoint(word) for word in words)
        for known, theirs in WORDS_OF.items()
    }
    best = max(in_common, key=lambda known: (in_common[known], -len(WORDS_OF[known])))
    return best if in_common[best] >= 2 and in_common[best] * 3 >= len(words) * 2 else ""


def _alike(word: str) -> set[str]:
    """The words of our names that this one is, is almost, or is short for."""
    longer = {each for each in VOCABULARY if len(word) >= 3 and each.startswith(word)}
    return longer | set(get_close_matches(word, VOCABULARY, 3, SAME_WORD))


def _words(name: str) -> list[str]:
    return [word.lower() for word in WORD.findall(name)]


LOWER = {name.lower(): name for name in SETTINGS}
WORDS_OF = {name: set(_words(name)) for name in SETTINGS}
VOCABULARY = frozenset().union(*WORDS_OF.values())
