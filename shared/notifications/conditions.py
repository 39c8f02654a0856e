"""`LastingCondition`: what is wrong now, as the page, the status and the notifier show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypedDict

from shared.values.news import News, NewsKind, Severity
from shared.values.text import shown


class ConditionShown(TypedDict):
    """What is wrong now. ``what`` says it in one sentence, ``meaning`` says what it means for
    decisions, and ``todo`` what to do. ``kind`` is the kind of news under which operators are
    notified; null if it is only shown."""

    subject: str
    severity: Severity
    what: str
    meaning: str
    todo: str
    kind: NewsKind | None


@dataclass(frozen=True, slots=True)
class LastingCondition:
    """Something that is wrong now. The fields are those of ``ConditionShown`` and ``News``."""

    subject: str
    severity: Severity
    what: str
    meaning: str = ""
    todo: str = ""
    kind: NewsKind | None = None
    source: str = "/api/resources"
    data: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def news(self, time: datetime, news_id: str = "") -> News:
        """The notification of a condition that has a kind. It has no id while the condition lasts,
        because the notifier records when it began.
        """
        assert self.kind is not None
        return News(
            news_id,
            self.kind,
            self.subject,
            time,
            headline=self.what,
            text=explained(self.meaning, self.todo),
            severity=self.severity,
            source=self.source,
            data=self.data,
        )

    def to_json(self) -> ConditionShown:
        return shown(ConditionShown, self, str)


def explained(meaning: str, todo: str) -> str:
    """Both as sentences of one text."""
    ended = f"{meaning}." if meaning and todo and meaning[-1] not in ".!?" else meaning
    return f"{ended} {todo}".strip()
