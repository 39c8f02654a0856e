"""Which failures are worth a log line: a new one at once, the same one again only now and then."""

from __future__ import annotations

from dataclasses import dataclass, field

REPEAT_SECONDS = 30.0
"""A failure that lasts is told so often, so that the log never falls silent about it."""


@dataclass(slots=True)
class RepeatedFailures:
    """Remembers, for each thing that can fail, what was told of it last and when."""

    _told: dict[str, tuple[str, float]] = field(default_factory=dict)

    def worth_telling(self, what: str, text: str, now: float) -> bool:
        """``now`` counts seconds and never goes back."""
        before = self._told.get(what)
        if before is not None and before[0] == text and now - before[1] < REPEAT_SECONDS:
            return False
        self._told[what] = text, now
        return True
