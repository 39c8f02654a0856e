"""The error of sending several texts."""

from __future__ import annotations


class TextsNotSent(Exception):
    """Some of several texts are not known to be sent."""

    def __init__(self, reason: str, sent: frozenset[int]) -> None:
        super().__init__(reason)
        self.sent = sent
        """The positions of the sent ones among the texts of the call."""
