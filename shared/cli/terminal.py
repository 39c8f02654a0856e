"""Prints for people, by rich."""

from __future__ import annotations

from rich.console import Console

PIPED_CHARACTERS = 400


def printed(shown: object) -> None:
    """A text or a table, as wide as the terminal; where a program or a file reads it lines stay
    whole."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPED_CHARACTERS)
    console.print(shown)
