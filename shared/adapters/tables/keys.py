"""Names as keys of a table, which knows neither ``/`` nor ``\\``, ``#``, ``?`` and controls."""

from __future__ import annotations

from urllib.parse import quote


def key(text: str) -> str:
    """Any text as a key: readable where it can be, and another one for each text."""
    return quote(text, safe=" ,:@!$").replace("%", "=")


def joined(*names: str) -> str:
    """Several names as one key; the separator is in none of them once they are keys."""
    return "|".join([key(name) for name in names])
